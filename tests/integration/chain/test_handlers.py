"""Handlers that consume, write and send in one transaction of the application's database."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from tests.broker_process import BrokerProcess
from tests.business import POOL_OF_ONE
from tests.integration.chain.databases import BusinessDatabase
from tests.integration.client_harness import WAIT_S, collecting, half_count, nothing_comes
from tests.waiting import until
from txmsg import Message, Producer, ReceivedMessage, Retry, Transaction, Txmsg

PAY = text("insert into paid values (:id, :amount)")
AT_ONCE = Retry(delays_s=[0.1])


@pytest.fixture
def engine(database: BusinessDatabase) -> Iterator[Engine]:
    made = create_engine(database.url, **POOL_OF_ONE)
    if database.kind == "sqlite":
        begin_immediate(made)
    yield made
    made.dispose()


def begin_immediate(engine: Engine) -> None:
    """Begin transactions with BEGIN IMMEDIATE on SQLite, as SQLAlchemy's documentation recommends."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def place(broker: BrokerProcess, *ids: int) -> None:
    with Producer(broker.address, group="orders") as producer:
        producer.send_many([Message("order.placed", f'{{"order_id":{id}}}'.encode()) for id in ids])


def fetched(got: queue.Queue[ReceivedMessage], count: int) -> list[str]:
    return sorted(got.get(timeout=WAIT_S).body.decode() for _ in range(count))


@pytest.mark.parametrize("options", [{}, {"isolation_level": "SERIALIZABLE"}], ids=["default", "serializable"])
def test_effects_and_messages_share_one_transaction(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, options: dict[str, Any]
) -> None:
    app = Txmsg(broker.address, group="payment", database=engine.execution_options(**options))
    attempts: list[int] = []

    @app.subscribe("order.placed", retry=AT_ONCE)
    def pay(order_id: int, session: Session, tx: Transaction) -> None:
        attempts.append(order_id)
        session.execute(PAY, {"id": order_id, "amount": 7})
        tx.send("order.paid", {"order_id": order_id}, key=order_id)
        if attempts.count(order_id) < 3:
            raise ArithmeticError

    with collecting(broker.address, "order.paid") as got, app:
        place(broker, 1, 2)
        assert fetched(got, 2) == ['{"order_id":1}', '{"order_id":2}']
        assert nothing_comes(got)
    assert database.paid() == [(1, 7), (2, 7)]
    assert sorted(attempts) == [1, 1, 1, 2, 2, 2]


def test_messages_of_a_generator_are_sent_if_and_only_if_its_effects_commit(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine
) -> None:
    app = Txmsg(broker.address, group="payment", database=engine)
    attempts: list[int] = []

    @app.subscribe("order.placed", retry=AT_ONCE)
    def pay(order_id: int, session: Session) -> Iterator[Message]:
        attempts.append(order_id)
        yield Message("order.paid", f"{order_id} first".encode())
        session.execute(PAY, {"id": order_id, "amount": 7})
        if attempts.count(order_id) < 2:
            raise ArithmeticError
        yield Message("order.paid", f"{order_id} second".encode())

    with collecting(broker.address, "order.paid") as got, app:
        place(broker, 1, 2)
        assert fetched(got, 4) == ["1 first", "1 second", "2 first", "2 second"]
        assert nothing_comes(got)
    assert database.paid() == [(1, 7), (2, 7)]


async def test_messages_of_an_async_generator_are_sent_if_and_only_if_its_effects_commit(
    broker: BrokerProcess, database: BusinessDatabase, async_engine: AsyncEngine
) -> None:
    app = Txmsg(broker.address, group="payment", database=async_engine)
    attempts: list[int] = []

    @app.subscribe("order.placed", retry=AT_ONCE)
    async def pay(order_id: int, session: AsyncSession) -> AsyncIterator[Message]:
        attempts.append(order_id)
        yield Message("order.paid", f"{order_id} first".encode())
        await session.execute(PAY, {"id": order_id, "amount": 7})
        if attempts.count(order_id) < 2:
            raise ArithmeticError
        yield Message("order.paid", f"{order_id} second".encode())

    with collecting(broker.address, "order.paid") as got:
        async with app:
            await asyncio.to_thread(place, broker, 1, 2)
            assert await asyncio.to_thread(fetched, got, 4) == ["1 first", "1 second", "2 first", "2 second"]
            assert await asyncio.to_thread(nothing_comes, got)
    assert database.paid() == [(1, 7), (2, 7)]


async def test_effects_and_messages_of_coroutines_share_one_transaction(
    broker: BrokerProcess, database: BusinessDatabase, async_engine: AsyncEngine
) -> None:
    app = Txmsg(broker.address, group="payment", database=async_engine)
    attempts: list[int] = []

    @app.subscribe("order.placed", retry=AT_ONCE)
    async def pay(tx: Transaction, order_id: int, session: AsyncSession) -> None:
        attempts.append(order_id)
        await session.execute(PAY, {"id": order_id, "amount": 7})
        tx.send("order.paid", {"order_id": order_id})
        if attempts.count(order_id) < 2:
            raise ArithmeticError

    with collecting(broker.address, "order.paid") as got:
        async with app:
            await asyncio.to_thread(place, broker, 1, 2)
            assert await asyncio.to_thread(fetched, got, 2) == ['{"order_id":1}', '{"order_id":2}']
            assert await asyncio.to_thread(nothing_comes, got)
    assert database.paid() == [(1, 7), (2, 7)]
    assert sorted(attempts) == [1, 1, 2, 2]


def test_a_redelivery_after_the_commit_has_no_effect(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, notify_url: str
) -> None:
    app = Txmsg(broker.address, group="payment", database=engine)

    @app.subscribe("order.placed")
    def pay(message: ReceivedMessage, session: Session, tx: Transaction) -> None:
        session.execute(PAY, {"id": message.json()["order_id"], "amount": 7})
        tx.send("order.paid", message.body)

    with collecting(broker.address, "order.placed") as placed, collecting(broker.address, "order.paid") as got, app:
        place(broker, 1)
        again = placed.get(timeout=WAIT_S)
        paid = got.get(timeout=WAIT_S)
        until(lambda: half_count(notify_url) == 0)
        handle_again(app, again)
        assert nothing_comes(got)
        handle_again(app, again._replace(generation=1))  # asked for by an operator
        assert got.get(timeout=WAIT_S).id != paid.id
    assert database.paid() == [(1, 7), (1, 7)]


def handle_again(app: Txmsg, message: ReceivedMessage) -> None:
    """Handle a message again, as after redelivery to another process."""
    from txmsg.testing import handle

    handle(app, message, group="payment")


def test_a_session_parameter_alone_makes_effects_happen_once(database: BusinessDatabase, engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", database=engine)

    @app.subscribe("order.placed", group="payment")
    def pay(order_id: int, session: Session) -> None:
        session.execute(PAY, {"id": order_id, "amount": 7})
        if len(session.execute(text("select 1 from paid")).all()) > 1:
            raise ArithmeticError

    message = ReceivedMessage("order.placed", b'{"order_id":1}', id_bytes=bytes(16))
    handle_again(app, message)
    handle_again(app, message)
    with pytest.raises(ArithmeticError):
        handle_again(app, message._replace(id_bytes=bytes([1] * 16)))
    assert database.paid() == [(1, 7)]
