"""Retry policies of handlers: rejected, skipped and delayed messages, on brokers and on logs."""

from __future__ import annotations

import queue
from functools import partial
from pathlib import Path

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import json_of
from tests.integration.client_harness import WAIT_S
from tests.metaq.consumers import Seen
from tests.metaq.logs import fill
from tests.waiting import until
from txmsg import Consumer, Message, Producer, ReceivedMessage, Reject, Retry, RetryAfter, Skip
from txmsg.client.app import Txmsg
from txmsg.metaq import Log, open_log
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES, LogQueue


def decide(message: ReceivedMessage) -> None:
    """Raise the exception that the body names."""
    match message.body:
        case b"reject":
            raise Reject("no such country: XX")
        case b"skip":
            raise Skip("nothing to do")
        case b"soon" if message.attempt == 1:
            raise RetryAfter(0.001, "the bank asks us to come again")
        case b"late":
            raise RetryAfter(3600)
        case b"typed":
            raise LookupError("no order")


RETRY = Retry(delays_s=[3600], by_type={LookupError: Reject})


def test_a_broker_follows_the_retry_policy_of_handlers(broker: BrokerProcess) -> None:
    where = ("--broker", broker.address)
    handled: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(broker.address, group="g", concurrency=1)

    @consumer.subscribe("t", retry=RETRY)
    def handle(message: ReceivedMessage) -> None:
        decide(message)
        handled.put(message)

    with consumer, Producer(broker.address, group="shop") as producer:
        ids = {
            body: producer.send(Message("t", body, ordering_key=key))
            for body, key in (
                *((b"reject", "k"), (b"behind", "k"), (b"skip", None), (b"soon", None)),
                *((b"late", None), (b"typed", None), (b"good", None)),
            )
        }
        got = {message.id: message.attempt for message in (handled.get(timeout=WAIT_S) for _ in range(3))}
        # Messages behind a rejected one of their key are delivered as retries, for the first or the second time.
        assert got.pop(ids[b"behind"]) in {1, 2}
        assert got == {ids[b"good"]: 1, ids[b"soon"]: 2}
        letters = partial(json_of, "dead-letter", "list", "--group", "g", *where)
        until(lambda: len(letters()["dead_letters"]) == 2)
        dead = {letter["id"]: letter for letter in letters()["dead_letters"]}
        assert dead.keys() == {ids[b"reject"], ids[b"typed"]}
        assert {letter["attempts"] for letter in dead.values()} == {1}
        assert "no such country: XX" in dead[ids[b"reject"]]["last_error"]
        (retry,) = json_of("group", "retries", "g", *where)["retries"]
        assert retry["id"] == ids[b"late"]


def test_rejected_messages_do_not_pause_a_group(broker: BrokerProcess) -> None:
    consumer = Consumer(broker.address, group="g")
    rejected: queue.Queue[bytes] = queue.Queue()

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        rejected.put(message.body)
        raise Reject("all of them are wrong")

    count = 500  # more than pause a group when they fail
    with consumer, Producer(broker.address, group="shop") as producer:
        producer.send_many([Message("t", b"%d" % number) for number in range(count)])
        for _ in range(count):
            rejected.get(timeout=WAIT_S)
        where = ("--broker", broker.address)
        until(lambda: json_of("group", "lag", "g", *where)["dead"] == count)


def test_a_log_consumer_follows_the_retry_policy_of_handlers(tmp_path: Path) -> None:
    bodies = [b"reject", b"skip", b"soon", b"late", b"typed", b"good"]
    with Log(tmp_path) as log:
        fill(log, "t", 0, [len(bodies)])
    seen = Seen()
    app = Txmsg(log=tmp_path, group="g")

    @app.subscribe("t", source="log", retry=RETRY)
    def handle(message: ReceivedMessage) -> None:
        assert message.offset is not None
        seen(message)
        decide(message._replace(body=bodies[message.offset]))

    with app:
        until(lambda: (2, 2) in seen.attempts and len(seen.messages) == len(bodies) + 1)
    assert sorted(seen.attempts) == sorted([*((offset, 1) for offset in range(len(bodies))), (2, 2)])
    with open_log(tmp_path) as log_again:
        kept = {
            topic: [
                message.headers["txmsg-tried"]
                for fetched in log_again.fetch({LogQueue(topic, number): 0 for number in log_again.queues_of(topic)})
                for batch in fetched.batches
                for message in batch.messages()
            ]
            for topic in (f"{RETRIES}g", f"{DEAD_LETTERS}g")
        }
    assert ["no such country" in each or "no order" in each for each in kept[f"{DEAD_LETTERS}g"]] == [True, True]
    assert len(kept[f"{RETRIES}g"]) == 2
