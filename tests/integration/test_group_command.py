"""`txmsg group`: positions of groups, their settings, and seeks while their consumers run."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.errors_page import is_documented
from tests.integration.cli_harness import asked, json_of, said
from tests.integration.client_harness import WAIT_S, collecting, nothing_comes
from tests.integration.test_dead_letter_command import listed, processed
from tests.waiting import until
from txmsg.client import Consumer, Producer
from txmsg.errors import MisuseError, UnknownGroup, UnknownTopic
from txmsg.message import Message, MessageId, ReceivedMessage


def shown(broker: BrokerProcess, name: str = "collector") -> dict[str, Any]:
    found: dict[str, Any] = json_of("group", "show", name, "--broker", broker.address)
    return found


def waiting(broker: BrokerProcess, name: str = "collector") -> int:
    found: int = json_of("group", "lag", name, "--broker", broker.address)["waiting"]
    return found


def seek(broker: BrokerProcess, to: str, *options: str) -> list[dict[str, Any]]:
    command = ("group", "seek", "collector", "--topic", "t", "--to", to, *options, "--yes", "--broker", broker.address)
    queues: list[dict[str, Any]] = json_of(*command)["queues"]
    return queues


def ids_of(got: queue.Queue[ReceivedMessage], count: int) -> set[MessageId]:
    """Return the ids of the next messages, all different; checks that there are exactly so many."""
    found = {got.get(timeout=WAIT_S).id for _ in range(count)}
    assert len(found) == count
    assert nothing_comes(got)
    return found


def refused(broker: BrokerProcess, *args: str) -> str:
    text = said("group", *args, "--broker", broker.address, status=1).removeprefix("Error: ").strip()
    assert any(is_documented(kind(text)) for kind in (MisuseError, UnknownGroup, UnknownTopic)), text
    return text


def test_groups_are_listed_and_shown_with_their_lag(broker: BrokerProcess) -> None:
    where = ("--broker", broker.address)
    assert said("group", "list", *where) == "no consumer groups\n"
    processed(broker, Message("t", b"1"), Message("t", b"2"))
    until(lambda: waiting(broker) == 0)
    with Producer(broker.address, group="shop") as producer:
        for _ in range(5):
            producer.send(Message("t", b"3"))
    (group,) = json_of("group", "list", *where)["groups"]
    assert (group["group"], group["waiting"], group["retrying"], group["dead"]) == ("collector", 5, 0, 0)
    assert group["topics"] == [{"topic": "t", "waiting": 5, "retrying": 0, "dead": 0}]
    group = shown(broker)
    assert (group["paused"], group["poisoned_key"], group["retries"], group["rate"]) == (False, "continue", None, None)
    with collecting(broker.address, "t", group="attached") as got:
        got.get(timeout=WAIT_S)  # the group is there
        clients = until(lambda: json_of("cluster", "clients", "--contains", "ATTACHED", *where)["clients"])
        assert [(client["consumer_group"], client["pid"]) for client in clients] == [("attached", os.getpid())]
        (member,) = until(lambda: shown(broker, "attached")["members"])
        assert (member["host"], member["pid"]) == (socket.gethostname(), os.getpid())
    assert json_of("cluster", "clients", "--contains", "no such", *where) == {"clients": [], "more": False}
    assert [each["queue"] for each in group["queues"]] == [0, 1, 2, 3]
    assert sum(each["end"] - each["next_offset"] for each in group["queues"]) == 5
    assert "collector" in said("group", "list", *where)
    assert "continue" in said("group", "show", "collector", *where)
    assert "Waiting" in said("group", "lag", "collector", *where)
    assert "consumer group 'nobody' is unknown" in refused(broker, "show", "nobody")


def test_groups_are_listed_in_pages_and_by_part_of_their_name(broker: BrokerProcess, notify_url: str) -> None:
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("insert into txmsg.consumer_group (name) select 'g' || n from generate_series(1, 9) n")
        connection.execute("insert into txmsg.producer (group_name) select 'p' || n from generate_series(1, 3) n")
    where = ("--broker", broker.address)
    pages = [json_of("group", "list", "--limit", "4", *where)]
    while pages[-1]["next"]:
        pages.append(json_of("group", "list", "--limit", "4", "--page", pages[-1]["next"], *where))
    assert [[group["group"] for group in page["groups"]] for page in pages] == [
        ["g1", "g2", "g3", "g4"],
        ["g5", "g6", "g7", "g8"],
        ["g9"],
    ]
    assert [checks["group"] for page in pages for checks in page["producer_groups"]] == ["p1", "p2", "p3"]
    found = json_of("group", "list", "--contains", "3", *where)
    assert ([group["group"] for group in found["groups"]], found["next"]) == (["g3"], None)
    assert [checks["group"] for checks in found["producer_groups"]] == ["p3"]


def test_a_group_is_created_with_settings_before_its_first_consumer(broker: BrokerProcess) -> None:
    where = ("--broker", broker.address)
    assert "is unknown" in said("group", "alter", "ledger", "--orderly", "on", *where, status=1)
    assert json_of("group", "create", "ledger", "--orderly", "on", *where)["orderly"]
    assert json_of("group", "create", "ledger", *where)["orderly"]  # which it leaves as it is
    assert not json_of("group", "alter", "ledger", "--orderly", "off", *where)["orderly"]
    with Producer(broker.address, group="shop") as producer:
        producer.send(Message("t", b"sent before"))
    with collecting(broker.address, "t", group="ledger") as got:
        assert got.get(timeout=WAIT_S).body == b"sent before"


def test_group_settings_are_changed_and_stored(broker: BrokerProcess) -> None:
    processed(broker, Message("t", b"1"))
    alter = ("group", "alter", "collector", "--broker", broker.address)
    assert json_of(*alter, "--retry-delays", "1s 90s", "--retries", "3")["retry_delays"] == ["1s", "1m30s"]
    assert json_of(*alter, "--retry-exponential", "1s..5s", "--poisoned-key", "park") == {
        "group": "collector",
        "retry_delays": ["1s", "2s", "4s", "5s"],
        "retries": 3,
        "poisoned_key": "park",
        "rate": None,
        "concurrency": None,
        "stopped": False,
        "orderly": False,
    }
    assert json_of(*alter, "--rate", "2.5")["rate"] == 2.5
    settings = json_of(*alter, "--rate", "0", "--default-retries")
    assert (settings["rate"], settings["retry_delays"], settings["retries"]) == (None, None, None)
    assert "name what to change" in said(*alter, status=2)
    assert "is not a duration" in said(*alter, "--retry-delays", "1s soon", status=2)
    assert "give one of them" in said(*alter, "--retry-delays", "1s", "--retry-exponential", "1s..2s", status=2)
    assert "each of at most 7 days" in refused(broker, "alter", "collector", "--retry-delays", "8d")
    assert "must be a whole number from 0 to 10000" in refused(broker, "alter", "collector", "--retries", "10001")


def test_a_failing_message_dies_after_the_configured_retries_and_can_be_redriven(
    broker: BrokerProcess,
) -> None:
    processed(broker, Message("t", b"1"))
    where = ("--broker", broker.address)
    said("group", "alter", "collector", "--retries", "1", "--retry-delays", "100ms", *where)
    is_mended = threading.Event()
    handled: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(broker.address, group="collector")

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        if not is_mended.is_set():
            raise ValueError("no route to the bank")
        handled.put(message)

    with consumer:
        until(lambda: bool(shown(broker)["members"]))
        with Producer(broker.address, group="shop") as producer:
            sent = producer.send(Message("t", b"2", key="k"))
        until(lambda: listed(broker) == [sent])
        (letter,) = json_of("dead-letter", "show", sent, *where)["dead_letters"]
        assert [failure["attempt"] for failure in letter["failures"]] == [1, 2]
        assert all("no route to the bank" in failure["error"] for failure in letter["failures"])
        (message,) = json_of("message", "trace", sent, *where)["messages"]
        assert [(group["group"], group["state"]) for group in message["groups"]] == [("collector", "dead")]
        is_mended.set()
        assert json_of("dead-letter", "redrive", "--group", "collector", *where) == {"redriven": 1}
        again = handled.get(timeout=WAIT_S)
    assert (again.id, again.attempt, again.generation) == (sent, 1, 1)
    assert listed(broker) == []


def parked_key(broker: BrokerProcess) -> None:
    processed(broker, Message("t", b"0"))
    said(
        *("group", "alter", "collector", "--retries", "0", "--poisoned-key", "park"),
        *("--broker", broker.address),
    )


@contextmanager
def failing_once(broker: BrokerProcess, body: bytes) -> Iterator[queue.Queue[ReceivedMessage]]:
    """A consumer that refuses one body until its next generation; handled messages are in the queue."""
    handled: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(broker.address, group="collector")

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        if message.body == body and not message.generation:
            raise ValueError("poison")
        handled.put(message)

    with consumer:
        yield handled


@pytest.mark.parametrize("way", ["redrive", "purge"])
def test_a_parked_key_continues_in_order_when_its_dead_letter_is(way: str, broker: BrokerProcess) -> None:
    parked_key(broker)
    where = ("--group", "collector", "--broker", broker.address)
    with failing_once(broker, b"1") as handled:
        until(lambda: bool(shown(broker)["members"]))
        with Producer(broker.address, group="shop") as producer:
            poison, *others = [producer.send(Message("t", b"%d" % n, ordering_key="k")) for n in range(1, 6)]
        until(lambda: listed(broker) == [poison])
        assert nothing_comes(handled)
        (letter,) = json_of("dead-letter", "list", *where)["dead_letters"]
        assert (letter["blocks_key"], letter["ordering_key"]) == (True, "k")
        options = ["--yes"] if way == "purge" else []
        said("dead-letter", way, *where, *options)
        expected = ([poison] if way == "redrive" else []) + others
        assert [handled.get(timeout=WAIT_S).id for _ in expected] == expected
        with Producer(broker.address, group="shop") as producer:
            last = producer.send(Message("t", b"6", ordering_key="k"))
        assert handled.get(timeout=WAIT_S).id == last
    assert listed(broker) == []


def test_a_seek_to_the_earliest_affects_only_its_group_while_consumers_run(broker: BrokerProcess) -> None:
    sent = set(processed(broker, *(Message("t", b"%d" % n) for n in range(10))))
    with collecting(broker.address, "t", group="other") as others, collecting(broker.address, "t") as got:
        assert ids_of(others, 10) == sent
        until(lambda: waiting(broker) == 0)
        queues = seek(broker, "earliest")
        assert [each["next_offset"] for each in queues] == [0, 0, 0, 0]
        again = [got.get(timeout=WAIT_S) for _ in sent]
        assert {each.id for each in again} == sent
        assert {(each.attempt, each.generation) for each in again} == {(1, 0)}
        until(lambda: waiting(broker) == 0)
        assert not any(each["seeking"] for each in shown(broker)["queues"])
        seek(broker, "earliest", "--again")
        again = [got.get(timeout=WAIT_S) for _ in sent]
        assert {each.id for each in again} == sent
        assert min(each.generation for each in again) > 1000
        assert nothing_comes(got)
        assert nothing_comes(others)


def test_held_and_acknowledged_messages_are_redelivered_after_a_seek_back(broker: BrokerProcess) -> None:
    said("topic", "create", "t", "--queues", "1", "--broker", broker.address)
    held, done = processed(broker, Message("t", b"held"), Message("t", b"done"))
    until(lambda: waiting(broker) == 0)
    holding, released = threading.Event(), threading.Event()
    attempts: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(broker.address, group="collector")

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        attempts.put(message)
        if message.id == held and not holding.is_set():
            holding.set()
            assert released.wait(WAIT_S)

    with consumer:
        seek(broker, "earliest")
        assert holding.wait(WAIT_S)
        until(lambda: waiting(broker) == 1)  # the later one is acknowledged, the cursor stands before both
        assert {attempts.get(timeout=WAIT_S).id for _ in range(2)} == {held, done}
        seek(broker, "earliest")
        assert {attempts.get(timeout=WAIT_S).id for _ in range(2)} == {held, done}
        released.set()
        until(lambda: waiting(broker) == 0)


def test_a_group_seeks_to_a_time_an_offset_or_the_end(broker: BrokerProcess, notify_url: str) -> None:
    processed(broker, Message("t", b"0"))
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("delete from txmsg.message")
        connection.execute(
            "insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at, stored_at) "
            "select 1, q.id, g, gen_random_uuid(), 0, '', now(), "
            "timestamptz '2026-05-01T10:00:00Z' + g * interval '1 s' "
            "from txmsg.queue q, generate_series(0, 299) g where q.number < 2"
        )
        connection.execute("select txmsg.rotate(1)")
        connection.execute(
            "insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at, stored_at) "
            "select 2, q.id, 300 + g, gen_random_uuid(), 0, '', now(), timestamptz '2026-05-01T12:00:00Z' "
            "+ g * interval '1 s' from txmsg.queue q, generate_series(0, 9) g where q.number = 0"
        )

    def places(to: str, *options: str) -> list[int]:
        return [each["next_offset"] for each in seek(broker, to, *options)]

    assert places("2026-05-01T10:00:00Z") == [0, 0, 0, 0]
    assert places("2026-05-01T10:02:00.5Z") == [121, 121, 0, 0]
    assert places("2026-05-01T12:04:59+02:00") == [299, 299, 0, 0]
    assert places("2026-05-01T11:00:00Z") == [300, 300, 0, 0]
    assert places("2026-05-01T11:59:58Z") == [300, 300, 0, 0]
    assert places("2026-05-01T12:00:01Z") == [301, 300, 0, 0]
    assert places("2026-05-01T12:00:10Z") == [310, 300, 0, 0]
    assert places("latest") == [310, 300, 0, 0]
    assert places("7", "--queue", "1") == [7]
    assert [each["next_offset"] for each in shown(broker)["queues"]] == [310, 7, 0, 0]
    assert waiting(broker) == 293
    dry = json_of(
        *("group", "seek", "collector", "--topic", "t", "--to", "2026-05-01T10:00:30Z", "--dry-run"),
        *("--broker", broker.address),
    )
    assert [each["to"] for each in dry["queues"]] == [30, 30, 0, 0]
    assert [each["next_offset"] for each in dry["queues"]] == [310, 7, 0, 0]
    assert (dry["skipped"], dry["repeated"]) == (23, 280)
    to_the_end = ("group", "seek", "collector", "--topic", "t", "--to", "latest", "--broker", broker.address)
    assert "skip up to 293 messages of t that group collector has not processed, for good?" in asked(*to_the_end)
    assert waiting(broker) == 293
    assert "offset 7 needs a queue, and topic 't' has 4" in refused(
        broker, "seek", "collector", "--topic", "t", "--to", "7"
    )
    assert "offset 311 is not kept in queue 0 of topic 't': give 0 to 310" in refused(
        broker, "seek", "collector", "--topic", "t", "--to", "311", "--queue", "0"
    )
    assert "reads no queue 9" in refused(broker, "seek", "collector", "--topic", "t", "--to", "latest", "--queue", "9")
    assert "topic 'u' is unknown" in refused(broker, "seek", "collector", "--topic", "u", "--to", "latest")
    said("topic", "create", "u", "--broker", broker.address)
    assert "does not read topic 'u' yet" in refused(broker, "seek", "collector", "--topic", "u", "--to", "latest")
    command = ("group", "seek", "collector", "--topic", "t", "--to", "soon", "--broker", broker.address)
    assert "'soon' is not a valid start position" in said(*command, status=2)


def test_a_group_with_members_or_messages_is_deleted_only_by_force(broker: BrokerProcess, notify_url: str) -> None:
    processed(broker, Message("t", b"1"))
    where = ("--broker", broker.address)
    with collecting(broker.address, "t"):
        until(lambda: len(shown(broker)["members"]) == 1)
        for how in ("--yes", "--dry-run"):
            assert "group 'collector' has 1 members, the last seen " in refused(broker, "delete", "collector", how)
    # A closed consumer is not a member, although it polled a moment ago.
    until(lambda: not shown(broker)["members"], within_s=WAIT_S)
    dry = json_of("group", "delete", "collector", "--dry-run", *where)
    assert dry == {"group": "collector", "members": 0, "waiting": 0, "retrying": 0, "dead": 0, "dry_run": True}
    assert "delete group collector, which has 0 messages to read and 0 dead letters" in asked(
        "group", "delete", "collector", *where
    )
    assert said("group", "delete", "collector", "--yes", "--force", *where) == "group collector deleted\n"
    assert json_of("group", "list", *where)["groups"] == []
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        assert connection.execute("select count(*) from txmsg.cursor").fetchone() == (0,)
    with collecting(broker.address, "t") as got:  # recreated, and begins at the earliest message
        assert len(ids_of(got, 1)) == 1


@pytest.mark.parametrize("command", [["group", "list"], ["group", "lag", "g"], ["topic", "show", "t"]])
def test_an_unreachable_broker_is_named(command: list[str]) -> None:
    assert "no answer from a broker at localhost:1" in said(*command, "--broker", "localhost:1", status=1)
