"""`txmsg group retries`, `retry`, `skip`, `stop` and `start`: tools for a failing group."""

from __future__ import annotations

import queue

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import asked, json_of, said
from tests.integration.client_harness import WAIT_S, collecting, nothing_comes
from tests.integration.test_dead_letter_command import processed
from tests.waiting import until
from txmsg.client import Consumer, Producer
from txmsg.errors import UnknownGroup
from txmsg.message import Message, MessageId, ReceivedMessage


def test_retries_can_be_listed_delivered_at_once_and_skipped(broker: BrokerProcess) -> None:
    where = ("--broker", broker.address)
    processed(broker, Message("t", b"0"))
    said("group", "alter", "collector", "--retry-delays", "1h", *where)
    handled: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(broker.address, group="collector")

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        if message.body == b"poison" or (message.body == b"slow" and message.attempt == 1):
            raise ValueError("no route to the bank")
        handled.put(message)

    def retries(*options: str) -> list[str]:
        return [retry["id"] for retry in json_of("group", "retries", "collector", *options, *where)["retries"]]

    with consumer, Producer(broker.address, group="shop") as producer:
        poison = producer.send(Message("t", b"poison", ordering_key="k"))
        slow = producer.send(Message("t", b"slow"))
        behind = producer.send(Message("t", b"behind", ordering_key="k"))
        until(lambda: len(retries()) == 3)
        page = json_of("group", "retries", "collector", "--limit", "2", *where)
        first, second = page["retries"]
        assert {first["id"], second["id"]} == {poison, slow}  # messages waiting for their key come last
        assert (first["attempts"], first["failures"][0]["attempt"], first["due_at"] is None) == (1, 1, False)
        assert "no route to the bank" in first["last_error"]
        (last,) = json_of("group", "retries", "collector", "--page", page["next"], *where)["retries"]
        assert (last["id"], last["due_at"], last["ordering_key"], last["attempts"]) == (behind, None, "k", 0)
        assert poison in said("group", "retries", "collector", *where)
        assert nothing_comes(handled)
        assert json_of("group", "retry", "collector", *where) == {"group": "collector", "retries": 2}
        again = handled.get(timeout=WAIT_S)
        assert (again.id, again.attempt) == (slow, 2)
        until(lambda: set(retries()) == {poison, behind})
        assert json_of("group", "retry", "collector", "--id", behind, *where)["retries"] == 0
        assert "skip" in asked("group", "skip", "collector", poison, *where)
        assert poison in retries()
        skipped = json_of("group", "skip", "collector", poison, "--yes", *where)
        assert skipped == {"group": "collector", "skipped": 1}
        assert handled.get(timeout=WAIT_S).id == behind
    until(lambda: retries() == [])
    gone = said("group", "skip", "collector", poison, "--yes", *where, status=1)
    assert f"group 'collector' has no retry {poison}" in gone
    unknown = said("group", "retry", "nobody", *where, status=1)
    assert UnknownGroup.__name__ not in unknown
    assert "consumer group 'nobody' is unknown" in unknown


def test_a_stopped_group_gets_nothing_until_it_is_started(broker: BrokerProcess) -> None:
    where = ("--broker", broker.address)
    with collecting(broker.address, "t") as got, Producer(broker.address, group="shop") as producer:
        first = producer.send(Message("t", b"1"))
        assert got.get(timeout=WAIT_S).id == first
        with collecting(broker.address, "t", group="other") as others:
            assert others.get(timeout=WAIT_S).id == first
            assert json_of("group", "stop", "collector", *where) == {"group": "collector", "stopped": True}
            assert json_of("group", "show", "collector", *where)["stopped"]
            sent: list[MessageId] = []

            def is_stopped() -> bool:
                sent.append(producer.send(Message("t", b"2")))
                assert others.get(timeout=WAIT_S).id == sent[-1]
                return nothing_comes(got)

            until(is_stopped)  # the broker learns of it meanwhile
        assert json_of("group", "lag", "collector", *where)["waiting"] == 1
        said("group", "start", "collector", *where)
        assert got.get(timeout=WAIT_S).id == sent[-1]
