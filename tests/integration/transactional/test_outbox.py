"""Calls that continue without a broker: a real broker is killed, on each kind of database."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pymysql
import pytest
from click.testing import CliRunner
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from tests.integration.client_harness import WAIT_S, collecting, half_count
from tests.integration.connections.drivers import connecting
from tests.integration.fence.conftest import make_business
from tests.waiting import until
from txmsg import FenceCheckListener, MessageId, Outbox, ReceivedMessage, create_tables
from txmsg.checker.tables import outbox_table
from txmsg.client import AsyncProducer, Producer, transactional_message
from txmsg.client.connections import rows as raw_rows
from txmsg.client.connections import rows_async as raw_rows_async
from txmsg.client.outbox import rows
from txmsg.errors import MessageTooLarge
from txmsg.ops.cli.outbox import outbox

_tables = MetaData()
orders = Table("orders", _tables, Column("name", String(40), primary_key=True), Column("n", Integer))
_OUTBOX = Outbox(wait_s=0.5)


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[Engine]:
    patience = {"timeout": 60} if request.param == "sqlite" else {}  # its writers wait for each other without fairness
    engine = create_engine(make_business(request.param, request, tmp_path), connect_args=patience)  # type: ignore[arg-type]
    _tables.create_all(engine)
    create_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def producer(broker: BrokerProcess, engine: Engine) -> Iterator[Producer]:
    with Producer(broker.address, group="shop", check_listener=FenceCheckListener(engine)) as producer:
        yield producer


def count(engine: Engine, table: Table) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def bodies(got: queue.Queue[ReceivedMessage], wanted: int) -> list[bytes]:
    """Return the bodies of the next messages, in order of first arrival. A redelivered message has its former id."""
    found: dict[MessageId, bytes] = {}
    while len(found) < wanted:
        message = got.get(timeout=WAIT_S)
        found[message.id] = message.body
    return list(found.values())


def assert_stored_once(notify_url: str, wanted: list[bytes]) -> None:
    """Check that all of them, and nothing else, are stored once no half is undecided."""
    until(lambda: half_count(notify_url) == 0)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        assert sorted(body for (body,) in connection.execute("select body from txmsg.message")) == sorted(wanted)


def test_calls_while_the_broker_is_dead_are_delivered_once_and_in_order(
    broker: BrokerProcess, producer: Producer, engine: Engine, notify_url: str
) -> None:
    @transactional_message(
        producer,
        topic="order",
        ordering_key="key",
        session=sessionmaker(engine),
        message=lambda key, n: f"{key} {n}".encode(),
        when_away=_OUTBOX,
    )
    def place(session: Session, key: str, n: int) -> None:
        session.execute(insert(orders).values(name=f"{key} {n}", n=n))
        if n == 3:
            raise ValueError(n)

    def call(numbers: range) -> None:
        for n in numbers:
            try:
                place("a", n)
                place("b", n)
            except ValueError:
                assert n == 3

    call(range(2))
    broker.kill()
    call(range(2, 6))
    assert count(engine, outbox_table) > 0
    broker.start()
    call(range(6, 12))  # as long as rows of their key wait, these wait behind them
    with collecting(broker.address, "order") as got:
        wanted = 2 * 12 - 2
        found = bodies(got, wanted)
    assert count(engine, orders) == wanted
    for key in ("a", "b"):
        of_key = [body for body in found if body.startswith(key.encode())]
        assert of_key == [f"{key} {n}".encode() for n in range(12) if n != 3]
    until(lambda: count(engine, outbox_table) == 0)
    assert_stored_once(notify_url, found)


async def test_a_call_of_a_coroutine_is_stored_in_the_outbox_and_relayed(
    broker: BrokerProcess, engine: Engine, notify_url: str
) -> None:
    url = engine.url.set(
        drivername={
            "postgresql+psycopg": "postgresql+asyncpg",
            "mariadb+pymysql": "mariadb+aiomysql",
            "mysql+pymysql": "mysql+aiomysql",
            "sqlite": "sqlite+aiosqlite",
        }[engine.url.drivername]
    )
    async_engine = create_async_engine(url)
    async with AsyncProducer(broker.address, group="shop", check_listener=FenceCheckListener(async_engine)) as producer:

        @transactional_message(
            producer, topic="order", session=async_sessionmaker(async_engine), when_away=Outbox(wait_s=0.1)
        )
        async def place(session: AsyncSession, n: int) -> int:
            await session.execute(insert(orders).values(name=str(n), n=n))
            return n

        broker.kill()
        assert [await place(n) for n in range(3)] == [0, 1, 2]
        assert count(engine, outbox_table) == 3
        broker.start()
        with collecting(broker.address, "order") as got:
            found = await asyncio.to_thread(bodies, got, 3)
            assert sorted(found) == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
        assert count(engine, outbox_table) == 0
        await asyncio.to_thread(assert_stored_once, notify_url, found)
    await async_engine.dispose()


def test_a_call_waits_behind_outbox_messages_of_another_process(
    broker: BrokerProcess, producer: Producer, engine: Engine
) -> None:
    """The row of the other process makes this one use the outbox, although the broker is available."""
    with Producer("127.0.0.1:1", group="shop", check_listener=FenceCheckListener(engine)) as cut_off:

        def placing(by: Producer) -> object:
            @transactional_message(
                by, topic="order", ordering_key="key", session=sessionmaker(engine), when_away=Outbox(wait_s=2.0)
            )
            def place(session: Session, key: str, n: int) -> None: ...

            return place

        there, away = placing(producer), placing(cut_off)
        producer.start()
        other = uuid4()
        with engine.connect() as connection:  # another relay leads: nothing is relayed meanwhile
            until(lambda: rows.take_turn(connection, "shop", other))
            away(key="k", n=1)  # type: ignore[operator]
            there(key="k", n=2)  # type: ignore[operator]
            assert count(engine, outbox_table) == 2
            rows.leave_turn(connection, "shop", other)
    with collecting(broker.address, "order") as got:
        assert bodies(got, 2) == [b'{"key":"k","n":1}', b'{"key":"k","n":2}']


def test_an_operator_relays_waiting_messages(broker: BrokerProcess, engine: Engine, notify_url: str) -> None:
    with Producer("127.0.0.1:1", group="shop", check_listener=FenceCheckListener(engine)) as cut_off:

        @transactional_message(cut_off, topic="order", session=sessionmaker(engine), when_away=_OUTBOX)
        def place(session: Session, n: int) -> None: ...

        for n in range(3):
            place(n=n)

    def call(*arguments: str) -> str:
        url = engine.url.render_as_string(hide_password=False)
        done = CliRunner().invoke(outbox, [*arguments, "--database", url], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return str(done.output)

    assert [each["topics"] for each in json.loads(call("list", "--json"))["rows"]] == ["order"] * 3
    relayed = json.loads(call("relay", "--group", "shop", "--broker", broker.address, "--json"))
    assert relayed == {"relayed": 3, "waiting": None}
    assert "nothing waits" in call("list")
    assert_stored_once(notify_url, [b'{"n":%d}' % n for n in range(3)])


@pytest.mark.parametrize("engine", ["mariadb"], indirect=True)
def test_a_message_too_large_for_the_business_database_is_refused_without_effects(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PACKET_CHECKED_BYTES", 10)
    monkeypatch.setattr(rows, "_PACKET_ROOM_BYTES", 10**10)
    with Producer("127.0.0.1:1", group="shop", check_listener=FenceCheckListener(engine)) as cut_off:

        @transactional_message(cut_off, topic="order", session=sessionmaker(engine), when_away=_OUTBOX)
        def place(session: Session, n: int) -> None:
            session.execute(insert(orders).values(name=str(n), n=n))

        with pytest.raises(MessageTooLarge, match="raise its max_allowed_packet"):
            place(n=1)
    assert (count(engine, orders), count(engine, outbox_table)) == (0, 0)


@pytest.mark.parametrize("cursors", [pymysql.cursors.Cursor, pymysql.cursors.DictCursor])
def test_a_message_too_large_for_a_pymysql_connection_is_refused(
    mariadb_url: str, cursors: type[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_rows, "PACKET_CHECKED_BYTES", 10)
    monkeypatch.setattr(rows, "_PACKET_ROOM_BYTES", 10**10)

    def connect() -> Any:
        connection = connecting("pymysql", mariadb_url)()
        connection.cursorclass = cursors
        return connection

    create_tables(connect)
    with Producer("127.0.0.1:1", group="shop", check_listener=FenceCheckListener(connect)) as cut_off:

        def place(connection: Any, n: int) -> None:
            raise AssertionError("it is called though its message cannot be kept")

        sending: Any = transactional_message(cut_off, topic="order", session=connect, when_away=_OUTBOX)
        with pytest.raises(MessageTooLarge, match="raise its max_allowed_packet"):
            sending(place)(n=1)


async def test_a_message_too_large_for_an_aiomysql_connection_is_refused(
    mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_rows_async, "PACKET_CHECKED_BYTES", 10)
    monkeypatch.setattr(rows, "_PACKET_ROOM_BYTES", 10**10)
    connect = connecting("aiomysql", mariadb_url)
    made: Any = create_tables(connect)
    await made
    async with AsyncProducer("127.0.0.1:1", group="shop", check_listener=FenceCheckListener(connect)) as cut_off:

        async def place(connection: Any, n: int) -> None:
            raise AssertionError("it is called though its message cannot be kept")

        sending: Any = transactional_message(cut_off, topic="order", session=connect, when_away=_OUTBOX)
        with pytest.raises(MessageTooLarge, match="raise its max_allowed_packet"):
            await sending(place)(n=1)


@pytest.mark.long
def test_under_load_with_repeated_outages_nothing_is_lost_duplicated_or_reordered(
    broker: BrokerProcess, producer: Producer, engine: Engine, notify_url: str
) -> None:
    threads, calls = 6, 150

    @transactional_message(
        producer,
        topic="order",
        ordering_key="key",
        session=sessionmaker(engine),
        message=lambda key, n: f"{key} {n}".encode(),
        when_away=Outbox(wait_s=0.1),
    )
    def place(session: Session, key: str, n: int) -> None:
        session.execute(insert(orders).values(name=f"{key} {n}", n=n))

    failed: list[BaseException] = []

    def load(key: str) -> None:
        try:
            for n in range(calls):
                place(key, n)
        except BaseException as exc:  # noqa: BLE001 - shown below
            failed.append(exc)

    running = [threading.Thread(target=load, args=(f"k{number}",)) for number in range(threads)]
    for each in running:
        each.start()
    for outage in range(3):
        broker.kill()
        enough = producer._outbox.written + 20

        def has_kept(enough: int = enough) -> bool:
            return producer._outbox.written > enough or not any(each.is_alive() for each in running)

        until(has_kept, why=f"nothing is kept in outage {outage}")
        broker.start()
        until(lambda: producer._outbox.relayed > 0)
    for each in running:
        each.join(WAIT_S)
    assert not failed
    until(lambda: count(engine, outbox_table) == 0)
    with collecting(broker.address, "order") as got:
        found = bodies(got, threads * calls)
    for number in range(threads):
        of_key = [body for body in found if body.startswith(b"k%d " % number)]
        assert of_key == [b"k%d %d" % (number, n) for n in range(calls)]
    with engine.connect() as connection:
        assert rows.waiting(connection) == []
    assert_stored_once(notify_url, found)
    with engine.connect() as connection:
        placed = [name.encode() for name in connection.scalars(select(orders.c.name))]
    assert sorted(found) == sorted(placed)
