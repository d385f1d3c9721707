"""`memory:` and txmsg.testing.Memory: tests of sending services without a broker."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.waiting import until
from txmsg import (
    CheckMessageListener,
    Consumer,
    Message,
    MisuseError,
    Producer,
    ReceivedMessage,
    Reject,
    Skip,
    Topic,
    TransactionState,
    Txmsg,
)
from txmsg.errors import OutcomeConflict, OutcomeExpired
from txmsg.testing import Memory, handle
from txmsg.testing.faults import dies_after_commit


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        connection.execute(text("create table orders (id integer primary key)"))
    yield engine
    engine.dispose()


class Shop:
    """Places orders, mails each, and counts the mails."""

    def __init__(self, engine: Engine) -> None:
        self.app = app = Txmsg("memory:", group="shop", database=engine)
        self.mailed: list[int] = []
        self.counted: list[list[int]] = []

        @app.transactional_message("order.placed", key="order_id")
        def place(session: Session, order_id: int) -> None:
            session.execute(text("insert into orders values (:id)"), {"id": order_id})

        self.place = place

        @app.subscribe("order.placed", group="mailer")
        def mail(order_id: int) -> None:
            self.mailed.append(order_id)
            self.producer.send(Message("mailed", b'{"order_id":%d}' % order_id))

        @app.subscribe("mailed", group="counter", batch=2)
        def count(messages: list[ReceivedMessage]) -> None:
            self.counted.append([message.json()["order_id"] for message in messages])

        self.producer = app.producer("mailer")


@pytest.fixture
def shop(engine: Engine, txmsg_memory: Memory) -> Iterator[Shop]:
    shop = Shop(engine)
    with shop.app:
        yield shop


def test_a_committed_call_is_sent_and_a_rolled_back_one_is_not(shop: Shop, txmsg_memory: Memory) -> None:
    shop.place(order_id=1)
    with pytest.raises(IntegrityError):
        shop.place(order_id=1)
    sent = txmsg_memory.sent("order.placed")
    assert [(each.key, each.json(), each.offset) for each in sent] == [("1", {"order_id": 1}, 0)]
    assert txmsg_memory.undecided() == []


def test_a_call_before_the_start_of_the_application_is_sent(engine: Engine, txmsg_memory: Memory) -> None:
    shop = Shop(engine)
    shop.place(order_id=1)
    with shop.app:
        assert len(txmsg_memory.sent("order.placed")) == 1


def test_messages_and_those_sent_by_handlers_are_handled_once(shop: Shop, txmsg_memory: Memory) -> None:
    for order_id in (1, 2, 3):
        shop.place(order_id=order_id)
    assert shop.mailed == []
    assert txmsg_memory.deliver(shop.app) == 6
    assert (shop.mailed, shop.counted) == ([1, 2, 3], [[1, 2], [3]])
    assert txmsg_memory.deliver(shop.app) == 0
    shop.place(order_id=4)
    assert txmsg_memory.deliver(shop.app) == 2
    assert shop.mailed == [1, 2, 3, 4]


def test_a_failed_message_is_handled_again(engine: Engine, txmsg_memory: Memory) -> None:
    app = Txmsg("memory:", group="g")
    attempts: list[str | None] = []

    @app.subscribe("t", tag="a")
    def handle(message: ReceivedMessage) -> None:
        attempts.append(message.key)
        if attempts == ["1", "2"]:
            raise ValueError("boom")

    with Producer("memory:", group="p") as producer:
        producer.send_many([Message("t", b"", key=key, tag=tag) for key, tag in (("1", "a"), ("x", "b"), ("2", "a"))])
    with pytest.raises(ValueError, match="boom"):
        txmsg_memory.deliver(app)
    assert txmsg_memory.deliver(app) == 1
    assert attempts == ["1", "2", "2"]


def test_handlers_that_send_to_each_other_endlessly_are_refused(txmsg_memory: Memory) -> None:
    app = Txmsg("memory:", group="g")
    producer = app.producer("p")

    @app.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        producer.send(Message("t", b""))

    with app:
        producer.send(Message("t", b""))
        with pytest.raises(MisuseError, match="handlers send on without end"):
            txmsg_memory.deliver(app)


@dataclass
class Order:
    order_id: int


def test_messages_of_a_typed_topic_have_their_payload_type(txmsg_memory: Memory) -> None:
    orders = Topic("orders", Order, key="order_id")
    with Producer("memory:", group="p") as producer:
        producer.send(orders.message(Order(7)))
    assert [each.payload for each in txmsg_memory.sent(orders)] == [Order(7)]


class Commits(CheckMessageListener):
    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


def test_an_unknown_outcome_is_checked_with_the_listener(txmsg_memory: Memory) -> None:
    with Producer("memory:", group="p", check_listener=Commits()) as producer:
        half = producer.half([Message("t", b"1")])
        assert [each.body for each in txmsg_memory.undecided()] == [b"1"]
        producer.end(half, TransactionState.UNKNOWN)
        until(lambda: bool(txmsg_memory.sent("t")))
    assert txmsg_memory.undecided() == []


def test_a_transaction_that_died_after_its_commit_stays_undecided(shop: Shop, txmsg_memory: Memory) -> None:
    with dies_after_commit(shop.app):
        shop.place(order_id=1)
    assert [each.key for each in txmsg_memory.undecided()] == ["1"]
    assert txmsg_memory.sent() == []


def test_outcomes_are_final(txmsg_memory: Memory) -> None:
    with Producer("memory:", group="p") as producer, Producer("memory:", group="q") as other:
        half = producer.half([Message("t", b"1")])
        with pytest.raises(OutcomeExpired):
            other.end(half, TransactionState.COMMIT)
        producer.end(half, TransactionState.COMMIT)
        producer.end(half, TransactionState.COMMIT)
        with pytest.raises(OutcomeConflict):
            producer.end(half, TransactionState.ROLLBACK)
    assert len(txmsg_memory.sent("t")) == 1


def test_a_delayed_message_can_be_recalled(txmsg_memory: Memory) -> None:
    with Producer("memory:", group="p") as producer:
        later, soon = producer.send_many(
            [Message("t", b"", deliver_after=timedelta(hours=1)), Message("t", b"", key="soon")]
        )
        assert producer.recall(later) is True
        assert producer.recall(soon) is False
    assert [each.key for each in txmsg_memory.sent()] == ["soon"]


def test_coroutines_send_and_handle(tmp_path: Path, txmsg_memory: Memory) -> None:
    async def run() -> tuple[int, list[int]]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
        async with engine.begin() as connection:
            await connection.execute(text("create table orders (id integer primary key)"))
        app = Txmsg("memory:", group="shop", database=engine)
        mailed: list[int] = []

        @app.transactional_message("order.placed", key="order_id")
        async def place(session: AsyncSession, order_id: int) -> None:
            await session.execute(text("insert into orders values (:id)"), {"id": order_id})

        @app.subscribe("order.placed", group="mailer")
        async def mail(order_id: int) -> None:
            mailed.append(order_id)

        async with app:
            await asyncio.gather(*(place(order_id=order_id) for order_id in range(20)))
            count = await txmsg_memory.deliver_async(app)
            with pytest.raises(MisuseError, match=r"await deliver_async"):
                txmsg_memory.deliver(app)
        await engine.dispose()
        return count, sorted(mailed)

    assert asyncio.run(run()) == (20, list(range(20)))


def test_a_forked_child_starts_with_an_empty_memory(txmsg_memory: Memory) -> None:
    with Producer("memory:", group="p") as producer:
        producer.send(Message("t", b""))
        if not (child := os.fork()):
            os._exit(len(txmsg_memory.sent()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(txmsg_memory.sent()) == 1


@pytest.mark.parametrize("consume", [lambda: Consumer("memory:", group="g"), lambda: Txmsg("memory:").run()])
def test_consuming_from_memory_is_refused(consume: Any) -> None:
    with pytest.raises(MisuseError, match="`txmsg up`"):
        consume()


def test_the_environment_variable_selects_the_memory_broker(
    txmsg_memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMSG_BROKERS", Memory.address)
    with Producer(group="p") as producer:
        producer.send(Message("t", b""))
    assert len(txmsg_memory.sent()) == 1


def test_plain_handlers_run_on_the_thread_of_the_test(txmsg_memory: Memory) -> None:
    app = Txmsg("memory:", group="g")
    threads = []

    @app.subscribe("one")
    def one(message: ReceivedMessage) -> None:
        threads.append(threading.current_thread())

    @app.subscribe("many", batch=10)
    def many(messages: list[ReceivedMessage]) -> None:
        threads.append(threading.current_thread())

    @app.subscribe("other")
    async def other(message: ReceivedMessage) -> None:
        threads.append(threading.current_thread())

    with Producer("memory:", group="p") as producer:
        for topic in ("one", "many", "other"):
            producer.send(Message(topic, b""))
    assert txmsg_memory.deliver(app) == 3
    here = threading.current_thread()
    assert [each is here for each in threads] == [True, True, False]
    handle(app, Message("one", b""))
    assert threads[-1] is here


def test_an_interrupted_delivery_ends(txmsg_memory: Memory) -> None:
    app = Txmsg("memory:", group="g")

    @app.subscribe("t")
    async def wait(message: ReceivedMessage) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    with Producer("memory:", group="p") as producer:
        producer.send(Message("t", b""))
    with pytest.raises(KeyboardInterrupt):
        txmsg_memory.deliver(app)


@pytest.mark.parametrize("leave", [lambda: pytest.fail("of the test"), lambda: signal.raise_signal(signal.SIGINT)])
def test_exceptions_that_end_a_test_propagate_from_a_handler(txmsg_memory: Memory, leave: Callable[[], None]) -> None:
    app = Txmsg("memory:", group="g")

    @app.subscribe("t")
    def handle_it(message: ReceivedMessage) -> None:
        leave()

    with pytest.raises((KeyboardInterrupt, pytest.fail.Exception)):
        handle(app, Message("t", b""))


@pytest.mark.parametrize(("error", "raised"), [(Skip("of the test"), False), (Reject("of the test"), True)])
def test_a_handled_message_is_not_handled_again(txmsg_memory: Memory, error: Exception, raised: bool) -> None:
    app = Txmsg("memory:", group="g")
    seen = []

    @app.subscribe("t")
    def handle_it(message: ReceivedMessage) -> None:
        seen.append(message.key)
        if message.key == "1":
            raise error

    with Producer("memory:", group="p") as producer:
        producer.send_many([Message("t", b"", key=key) for key in ("1", "2")])
    with pytest.raises(Reject) if raised else nullcontext():
        txmsg_memory.deliver(app)
    txmsg_memory.deliver(app)
    assert seen == ["1", "2"]


def test_coroutine_handlers_can_send_in_every_test(txmsg_memory: Memory) -> None:
    app = Txmsg("memory:", group="g")

    @app.subscribe("t")
    async def pass_on(message: ReceivedMessage) -> None:
        await app.send_async("u", 1)

    for _ in range(2):
        handle(app, Message("t", b""))
    with app:
        handle(app, Message("t", b""))
    assert len(txmsg_memory.sent("u")) == 3


def test_messages_of_several_topics_and_of_patterns_are_delivered_once(txmsg_memory: Memory) -> None:
    app = Txmsg("memory:", group="shop")
    lists: list[list[tuple[str, bytes]]] = []
    others: list[str] = []

    @app.subscribe("order.placed", "order.paid", batch=3)
    def handle(messages: list[ReceivedMessage]) -> None:
        lists.append([(each.topic, each.body) for each in messages])

    @app.subscribe("order.*", group="audit")
    def note(message: ReceivedMessage) -> None:
        others.append(message.topic)

    with app:
        for number, topic in enumerate(["order.placed", "order.paid", "orders", "order.moved", "order.placed"]):
            app.send(Message(topic, str(number).encode()))
        assert txmsg_memory.deliver(app) == 7
    assert lists == [[("order.placed", b"0"), ("order.paid", b"1"), ("order.placed", b"4")]]
    assert others == ["order.placed", "order.paid", "order.moved", "order.placed"]
    assert txmsg_memory.deliver(app) == 0
