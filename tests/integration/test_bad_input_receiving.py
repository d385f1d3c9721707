"""Bad input on the receiving side: misbehaving handlers and listeners, invalid receipts."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.errors_page import is_documented
from tests.integration.client_harness import WAIT_S, collecting, half_count, nothing_comes, waited_for
from tests.waiting import until
from txmsg.administration.ask import Nothing
from txmsg.administration.halves import AdminService
from txmsg.client import Consumer, Producer, idempotent
from txmsg.errors import StorageError
from txmsg.message import Message, ReceivedMessage, TransactionState
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify


@pytest.fixture(scope="module")
def notify_url(postgres: PostgresServer, notify_template: str) -> Iterator[str]:
    """A Notify database shared by the tests of this file; each has its own topic and groups."""
    name = f"bad_receiving_{os.getpid()}"
    yield postgres.create_database(name, template=notify_template)
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def broker(notify_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that checks half messages every second."""
    options = ("--first-check-s", "0", "--check-interval-s", "1")
    with BrokerProcess(notify_url, *options, log=tmp_path_factory.mktemp("broker") / "log") as broker:
        yield broker
    assert "Traceback" not in broker.log.read_text()


@pytest.fixture
def producer(broker: BrokerProcess) -> Iterator[Producer]:
    with Producer(broker.address, group="p") as producer:
        yield producer


# ---- handlers


def exits() -> None:
    sys.exit("bye")


def stops() -> None:
    next(iter(()))


def cancels() -> None:
    raise asyncio.CancelledError


def interrupts() -> None:
    raise KeyboardInterrupt


def odd_text() -> None:
    raise ValueError("NUL \0, surrogate \udce9")


MISBEHAVING: dict[bytes, tuple[Callable[[], None], str]] = {
    b"exits": (exits, "raised SystemExit(bye): taken as any other exception"),
    b"stops": (stops, "raised StopIteration()"),
    b"cancels": (cancels, "CancelledError"),
    b"interrupts": (interrupts, "raised KeyboardInterrupt()"),
    b"odd text": (odd_text, "ValueError: NUL \\0, surrogate \\udce9"),
}


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_after_any_exception_of_a_handler_its_message_is_redelivered_and_the_consumer_continues(
    broker: BrokerProcess, producer: Producer, notify_url: str, is_async: bool
) -> None:
    topic = f"raise.{is_async}"
    handled: queue.Queue[bytes] = queue.Queue()
    kinds = {body: each for body, each in MISBEHAVING.items() if not (is_async and body == b"interrupts")}
    consumer = Consumer(broker.address, group=topic, concurrency=1)  # the only worker must outlive them all
    seen = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        if message.attempt == 1 or not seen.is_set():
            kinds[message.body][0]()
        handled.put(message.body)

    async def handle_async(message: ReceivedMessage) -> None:
        handle(message)

    consumer.subscribe(topic)(handle_async if is_async else handle)
    with consumer:
        producer.send_many([Message(topic, body) for body in kinds])
        texts = last_errors(notify_url, topic, count=len(kinds))
        seen.set()
        done: set[bytes] = set()
        while done != kinds.keys():
            done.add(handled.get(timeout=WAIT_S))
    for body, (_, words) in kinds.items():
        if body == b"stops" and is_async:
            words = "coroutine raised StopIteration"  # noqa: PLW2901 - in a coroutine, Python itself says so
        assert words in texts[body]


def last_errors(notify_url: str, group: str, *, count: int) -> dict[bytes, str]:
    """Return the errors shown for a group's retries, by body, when there are this many."""
    statement = (
        "select r.body, r.last_error from txmsg.retry r join txmsg.consumer_group g on g.id = r.group_id "
        "where g.name = %s"
    )
    with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:

        def look() -> dict[bytes, str] | None:
            found: dict[bytes, str] = dict(connection.execute(statement, (group,)).fetchall())
            return found if len(found) >= count else None

        return until(look, why=f"fewer than {count} errors")


def test_a_coroutine_returned_by_a_def_handler_is_awaited_before_the_acknowledgement(
    broker: BrokerProcess, producer: Producer
) -> None:
    handled: queue.Queue[int] = queue.Queue()
    consumer = Consumer(broker.address, group="returning")

    async def work(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        handled.put(message.attempt)
        if message.attempt == 1:
            raise ValueError("its error counts, too")

    @consumer.subscribe("returning")
    def returning(message: ReceivedMessage) -> Coroutine[Any, Any, None]:
        return work(message)

    with consumer:
        producer.send(Message("returning", b"x"))
        assert [handled.get(timeout=WAIT_S) for _ in range(2)] == [1, 2]


def test_a_handler_whose_decorator_hides_a_generator_acknowledges_nothing(
    broker: BrokerProcess, producer: Producer, notify_url: str
) -> None:
    consumer = Consumer(broker.address, group="hidden")

    def generator(message: ReceivedMessage) -> Iterator[int]:
        yield 1

    def hiding(handler: Any) -> Any:
        @wraps(handler)
        def call(message: ReceivedMessage) -> Any:
            return handler(message)

        return call

    consumer.subscribe("hidden")(hiding(generator))
    with consumer:
        producer.send(Message("hidden", b"x"))
        assert "returned a generator, whose body has not run" in last_errors(notify_url, "hidden", count=1)[b"x"]


def test_a_hanging_handler_is_named_and_its_message_is_not_redelivered(
    broker: BrokerProcess, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="txmsg.client")
    began, go_on = threading.Event(), threading.Event()
    handled: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(broker.address, group="hang", concurrency=2, visibility_timeout_s=4)

    @consumer.subscribe("hang")
    def handle(message: ReceivedMessage) -> None:
        if message.body == b"hangs":
            began.set()
            go_on.wait(WAIT_S)
        handled.put(message)

    consumer.start()
    hung = producer.send(Message("hang", b"hangs"))
    assert began.wait(WAIT_S)
    with consumer, collecting(broker.address, "hang", group="hang") as elsewhere:
        said = waited_for(
            caplog, f"handler of topic 'hang' has held message {hung} for longer than visibility_timeout_s=4"
        )
        assert "handlers are late (concurrency=2)" in said
        fine = {b"fine %d" % n for n in range(20)}
        producer.send_many([Message("hang", body) for body in sorted(fine)])
        bodies: list[bytes] = []
        while not fine <= set(bodies):
            for each in (handled, elsewhere):
                with suppress(queue.Empty):
                    bodies.append(each.get(timeout=0.05).body)
        assert nothing_comes(elsewhere, within_s=4.5), "more than a visibility timeout, and one has passed before"
        go_on.set()
        assert handled.get(timeout=WAIT_S).body == b"hangs"
    assert "came too late" not in caplog.text
    with collecting(broker.address, "hang", group="hang") as again:
        assert nothing_comes(again)


def test_a_missing_inbox_table_is_reported_and_no_message_counts_as_handled(
    broker: BrokerProcess, producer: Producer, notify_url: str, tmp_path: Path
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'consumer.db'}")
    consumer = Consumer(broker.address, group="inbox")

    @consumer.subscribe("inbox")
    @idempotent(sessionmaker(engine))
    def handle(session: Session, message: ReceivedMessage) -> None:
        raise AssertionError("must not run")

    with consumer:
        producer.send(Message("inbox", b"x"))
        said = last_errors(notify_url, "inbox", count=1)[b"x"].splitlines()
    engine.dispose()
    kind, _, words = said[0].partition(": ")
    assert kind == "StorageError"
    # A long text, such as of a long path, is truncated in the first line and complete in the last.
    assert is_documented(StorageError(words)) or is_documented(StorageError(said[-1])), said


# ---- receipts


def like(receipt: pb.Receipt, **changes: int | list[int]) -> pb.Receipt:
    """Return the receipt with other values."""
    return pb.Receipt(**{field.name: value for field, value in receipt.ListFields()} | changes)


def test_invalid_receipts_acknowledge_nothing_and_are_reported_one_by_one(broker: BrokerProcess) -> None:
    with BlockingChannel(broker.address) as channel, Producer(broker.address, group="p") as producer:

        def receive(group: str, *, count: int = 10, **more: Any) -> pb.ReceiveReply:
            subscriptions = [pb.Subscription(topic="receipts")]
            request = pb.ReceiveRequest(
                group=group, client_id=group, subscriptions=subscriptions, max_messages=count, wait_ms=10_000, **more
            )
            return channel.call(Notify.receive, request, timeout_s=WAIT_S)

        def take(group: str) -> list[pb.Receipt]:
            """Return a receipt for each of the three messages."""
            taken: list[pb.Receipt] = []
            while len(taken) < 3:
                for batch in receive(group, visibility_timeout_ms=60_000).batches:
                    taken += [like(batch.receipt, offset=[offset]) for offset in batch.receipt.offset]
            return taken

        def waiting(group: str) -> int:
            stats = channel.call(AdminService.stats, Nothing(), timeout_s=WAIT_S)
            return sum(each.waiting for each in stats.groups if each.group == group)

        producer.send_many([Message("receipts", b"%d" % n) for n in range(3)])
        mine, theirs = take("a"), take("b")
        bad = [
            *theirs,
            like(mine[0], token=mine[0].token + 1_000_000),
            like(mine[0], token=0),
            like(mine[0], epoch=mine[0].epoch - 1),
            like(mine[0], epoch=2**64 - 1),
            like(mine[0], offset=[2**64 - 1]),
            like(mine[0], queue_id=2**32 - 1),
            pb.Receipt(),
        ]
        reply = receive("a", count=0, acks=[*bad, mine[1]], refusals=[pb.Refusal(receipt=each) for each in bad])
        assert sorted(map(str, reply.expired)) == sorted(map(str, bad * 2))
        assert (waiting("a"), waiting("b")) == (2, 3)
        assert [str(each) for each in receive("a", count=0, acks=[mine[1]]).expired] == [str(mine[1])]  # once only
        assert list(receive("a", count=0, acks=[mine[0], mine[2]]).expired) == []
        assert list(receive("b", count=0, acks=theirs).expired) == []
        assert (waiting("a"), waiting("b")) == (0, 0)
        assert [str(each) for each in receive("nobody", count=0, acks=mine).expired] == [str(each) for each in mine]


def test_an_expired_receipt_cannot_refuse_its_message(broker: BrokerProcess, producer: Producer) -> None:
    with BlockingChannel(broker.address) as channel:

        def receive(**more: Any) -> pb.ReceiveReply:
            request = pb.ReceiveRequest(
                group="slow",
                client_id="c",
                subscriptions=[pb.Subscription(topic="slow")],
                wait_ms=10_000,
                **more,
            )
            return channel.call(Notify.receive, request, timeout_s=WAIT_S)

        def one(*, visibility_timeout_ms: int) -> pb.DeliveredColumns:
            while not (batches := receive(max_messages=1, visibility_timeout_ms=visibility_timeout_ms).batches):
                continue
            return batches[0]

        producer.send(Message("slow", b"x"))
        first, second = one(visibility_timeout_ms=1000), one(visibility_timeout_ms=600_000)
        assert (list(first.attempt), list(second.attempt)) == ([], [2])
        refused = pb.Refusal(receipt=first.receipt, error="late", delay_ms=-1)
        assert list(receive(refusals=[refused]).expired) == [first.receipt]
        assert list(receive(acks=[second.receipt]).expired) == []


def test_a_message_with_an_exact_visibility_timeout_is_redelivered_when_it_expires(
    broker: BrokerProcess, producer: Producer
) -> None:
    with BlockingChannel(broker.address) as channel:

        def receive(**more: Any) -> pb.ReceiveReply:
            subscriptions = [pb.Subscription(topic="exact")]
            request = pb.ReceiveRequest(
                group="exact", client_id="c", subscriptions=subscriptions, wait_ms=10_000, **more
            )
            return channel.call(Notify.receive, request, timeout_s=WAIT_S)

        def one(visibility_timeout_ms: int, *, exact: bool = False) -> pb.DeliveredColumns:
            timeout: dict[str, Any] = {"visibility_timeout_ms": visibility_timeout_ms, "exact": exact}
            while not (batches := receive(max_messages=1, **timeout).batches):
                continue
            return batches[0]

        producer.send(Message("exact", b"x"))
        first = one(600_000)
        assert list(receive(held=[first.receipt], visibility_timeout_ms=0, exact=True).expired) == []
        second = one(1, exact=True)
        third = one(600_000)
        assert [list(each.attempt) for each in (first, second, third)] == [[], [2], [3]]
        assert list(receive(acks=[first.receipt, second.receipt]).expired) == [first.receipt, second.receipt]
        assert list(receive(acks=[third.receipt]).expired) == []


# ---- check listeners


def test_a_listener_that_raises_or_hangs_is_checked_until_it_answers(
    broker: BrokerProcess, notify_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    caplog.set_level(logging.INFO, logger="txmsg.client")

    class Listener:
        asked = 0

        def check(self, message: ReceivedMessage) -> Any:
            self.asked += 1
            match self.asked:
                case 1:
                    raise ConnectionError("the business database is away")
                case 2:
                    return "commit"
                case 3:
                    go_on.wait(WAIT_S)
                    return TransactionState.UNKNOWN
            return TransactionState.COMMIT

    with (
        Producer(broker.address, group="moody", check_listener=Listener()) as producer,
        collecting(broker.address, "moody", group="moody") as got,
    ):
        half = producer.half([Message("moody", b"x")])
        said = waited_for(caplog, "the listener still hangs in an earlier one")
        go_on.set()
        assert got.get(timeout=WAIT_S).transaction_id == half.transaction_id
        assert half_count(notify_url) == 0
    assert f"check of transaction {half.transaction_id}: the listener raised: UNKNOWN" in said
    assert "the listener returned 'commit': UNKNOWN" in said
