"""The decorators on driver connections, with a broker, as in an application without SQLAlchemy."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from tests.broker_process import BrokerProcess
from tests.integration.client_harness import WAIT_S, counts, half_count, message_count
from tests.integration.connections.drivers import ASYNC, SYNC, Connect, address_of, connecting
from tests.waiting import until
from txmsg import (
    AsyncProducer,
    FenceCheckListener,
    MisuseError,
    Outbox,
    Producer,
    ReceivedMessage,
    TransactionRefused,
    create_tables,
    idempotent,
    transactional_message,
)
from txmsg.checker.connections.engines import DriverConnection
from txmsg.checker.connections.opening import driver_of, driver_of_async
from txmsg.client.fence import Fence
from txmsg.client.receiving.inbox_handler import IdempotentHandler
from txmsg.client.receiving.inbox_handler_async import AsyncIdempotentHandler
from txmsg.message import new_transaction_id

_SYNC_OF = {"psycopg-async": "psycopg", "asyncpg": "psycopg", "aiosqlite": "sqlite3", "aiomysql": "pymysql"}
_QUICK = {"psycopg", "sqlite3", "asyncpg"}


def _drivers(*names: str) -> list[Any]:
    return [name if name in _QUICK else pytest.param(name, marks=pytest.mark.long) for name in names]


class Business:
    """A business database, prepared and inspected with the synchronous driver."""

    def __init__(self, driver: str, address: str) -> None:
        self.address = address
        connect = connecting(driver, address)
        self.connect: Callable[[], AbstractContextManager[DriverConnection]] = connect
        self.connect_async: Callable[[], Awaitable[DriverConnection]] = connect
        self.connect_sync: Connect = connecting(_SYNC_OF.get(driver, driver), address)
        create_tables(self.connect_sync)
        self._execute("create table effects (name varchar(80) primary key)")

    def names(self) -> list[str]:
        return [name for (name,) in self._execute("select name from effects order by name")]

    def _execute(self, sql: str) -> list[Any]:
        connection = self.connect_sync()
        cursor = connection.cursor()
        cursor.execute(sql)
        found = list(cursor.fetchall()) if cursor.description else []
        connection.commit()
        connection.close()
        return found


@pytest.fixture
def business(driver: str, request: pytest.FixtureRequest, tmp_path: Path) -> Business:
    return Business(driver, address_of(driver, request, tmp_path))


class Refused(Exception):
    pass


def insert(connection: Any, name: str) -> None:
    found = driver_of(connection)
    assert found is not None
    found.execute(connection, "insert into effects values (%s)", name)


async def insert_async(connection: Any, name: str) -> None:
    found = driver_of_async(connection)
    assert found is not None
    await found.execute(connection, "insert into effects values (%s)", name)


@pytest.mark.parametrize("driver", _drivers(*SYNC))
def test_a_message_is_delivered_if_and_only_if_its_connection_committed(
    broker: BrokerProcess, business: Business, notify_url: str
) -> None:
    listener = FenceCheckListener(business.connect_sync)
    with Producer(broker.address, group="shop", timeout_s=WAIT_S, check_listener=listener) as producer:

        @transactional_message(producer, topic="order", key="name", session=business.connect)
        def place(connection: DriverConnection, name: str, *, fails: bool = False) -> str:
            insert(connection, name)
            if fails:
                raise Refused
            return name

        @transactional_message(producer, topic="order", session=business.connect)
        def rolls_back_by_itself(connection: DriverConnection) -> None:
            insert(connection, "lost")
            connection.cursor().execute("ROLLBACK")
            insert(connection, "of no transaction with a fence row")

        assert place("kept") == "kept"
        with pytest.raises(Refused):
            place("undone", fails=True)
        with pytest.raises(MisuseError, match="was ended or aborted inside"):
            rolls_back_by_itself()
    assert business.names() == ["kept"]
    assert counts(notify_url) == (0, 1)


@pytest.mark.parametrize("driver", _drivers(*ASYNC))
def test_an_async_message_is_delivered_if_and_only_if_its_connection_committed(
    broker: BrokerProcess, business: Business, notify_url: str
) -> None:
    async def run() -> None:
        listener = FenceCheckListener(business.connect_async)
        async with AsyncProducer(broker.address, group="shop", timeout_s=WAIT_S, check_listener=listener) as producer:

            @transactional_message(producer, topic="order", key="name", session=business.connect_async)
            async def place(connection: DriverConnection, name: str, *, fails: bool = False) -> str:
                await insert_async(connection, name)
                if fails:
                    raise Refused
                return name

            @transactional_message(producer, topic="order", session=business.connect_async)
            async def rolls_back_by_itself(connection: DriverConnection) -> None:
                await insert_async(connection, "lost")
                found = driver_of_async(connection)
                assert found is not None
                await found.execute(connection, "ROLLBACK")

            assert await place("kept") == "kept"
            with pytest.raises(Refused):
                await place("undone", fails=True)
            with pytest.raises(MisuseError, match="was ended or aborted inside"):
                await rolls_back_by_itself()

    asyncio.run(run())
    assert business.names() == ["kept"]
    assert counts(notify_url) == (0, 1)


@pytest.mark.parametrize("when", ["inside", "after"])
@pytest.mark.parametrize("driver", [pytest.param(name, marks=pytest.mark.long) for name in (*SYNC, *ASYNC)])
def test_a_killed_application_leaves_message_and_effects_together(
    driver: str, when: str, broker: BrokerProcess, business: Business, notify_url: str
) -> None:
    command = [sys.executable, "-m", "tests.integration.connections.dying", driver, business.address]
    ended = subprocess.run([*command, broker.address, when], timeout=WAIT_S, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert half_count(notify_url) == 1
    listener = FenceCheckListener(business.connect_sync)
    with Producer(broker.address, group="shop", timeout_s=WAIT_S, check_listener=listener) as producer:
        producer.start()
        until(lambda: half_count(notify_url) == 0)
    assert business.names() == (["first"] if when == "after" else [])
    assert message_count(notify_url) == (1 if when == "after" else 0)


@pytest.mark.parametrize("driver", ["psycopg"])
def test_connections_may_come_from_a_pool(broker: BrokerProcess, business: Business, notify_url: str) -> None:
    listener = FenceCheckListener(business.connect_sync)
    with (
        ConnectionPool(business.address, min_size=1, max_size=1, open=True) as pool,
        Producer(broker.address, group="shop", timeout_s=WAIT_S, check_listener=listener) as producer,
    ):

        @transactional_message(producer, topic="order", session=pool.connection)
        def place(connection: psycopg.Connection, name: str) -> None:
            with connection.transaction():  # a savepoint
                insert(connection, name)

        place("first")
        place("second")  # on the same connection, which was returned to the pool
    assert business.names() == ["first", "second"]
    assert message_count(notify_url) == 2


@pytest.mark.parametrize("driver", ["psycopg"])
def test_without_a_broker_the_message_goes_to_the_outbox_in_the_same_transaction(
    broker: BrokerProcess, business: Business, notify_url: str
) -> None:
    listener = FenceCheckListener(business.connect_sync)
    with Producer(broker.address, group="shop", timeout_s=WAIT_S, check_listener=listener) as producer:

        @transactional_message(producer, topic="order", session=business.connect, when_away=Outbox(wait_s=0.05))
        def place(connection: DriverConnection, name: str) -> None:
            insert(connection, name)

        producer.start()
        broker.kill()
        place("kept")
        assert business.names() == ["kept"]
        broker.start()
        until(lambda: message_count(notify_url) == 1)


Handle = Callable[[ReceivedMessage], object]


@pytest.mark.parametrize("driver", ["psycopg", "sqlite3", "pymysql"])
def test_a_handler_on_a_connection_has_its_effects_once(business: Business) -> None:
    @idempotent(business.connect, group="mailer")
    def handle(connection: DriverConnection, message: ReceivedMessage) -> None:
        insert(connection, message.body.decode())
        if message.body == b"fails":
            raise Refused

    _check_once(business, handle)


@pytest.mark.parametrize("driver", ["psycopg-async", "asyncpg", "aiosqlite", "aiomysql"])
def test_an_async_handler_on_a_connection_has_its_effects_once(business: Business) -> None:
    @idempotent(business.connect_async, group="mailer")
    async def handle(connection: DriverConnection, message: ReceivedMessage) -> None:
        await insert_async(connection, message.body.decode())
        if message.body == b"fails":
            raise Refused

    _check_once(business, lambda message: asyncio.run(handle(message)))


def _check_once(business: Business, handle: Handle) -> None:
    message = ReceivedMessage("order", b"once", id_bytes=new_transaction_id().bytes)
    handle(message)
    handle(message)  # its row exists: it is skipped, otherwise the key of effects would be violated
    for generation in (2, 1, 2):  # redriven, and delivered as before
        handle(message._replace(body=b"again", generation=generation))
    failing = ReceivedMessage("order", b"fails", id_bytes=new_transaction_id().bytes)
    for _ in range(2):  # not recorded, so that it is retried
        with pytest.raises(Refused):
            handle(failing)
    assert business.names() == ["again", "once"]


@pytest.mark.parametrize("driver", ["psycopg", "sqlite3", "pymysql"])
def test_a_batch_on_a_connection_has_its_effects_once(business: Business) -> None:
    @idempotent(business.connect, group="mailer")
    def handle(connection: DriverConnection, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            insert(connection, message.body.decode())

    assert isinstance(handle, IdempotentHandler)
    _check_lists(business, handle.handle_list)


@pytest.mark.parametrize("driver", ["psycopg-async", "asyncpg", "aiosqlite", "aiomysql"])
def test_a_batch_on_an_async_connection_has_its_effects_once(business: Business) -> None:
    @idempotent(business.connect_async, group="mailer")
    async def handle(connection: DriverConnection, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            await insert_async(connection, message.body.decode())

    assert isinstance(handle, AsyncIdempotentHandler)
    of_lists = handle.handle_list
    _check_lists(business, lambda messages: asyncio.run(of_lists(messages)))


def _check_lists(business: Business, handle: Callable[[list[ReceivedMessage]], Sequence[Exception | None]]) -> None:
    a, b, again, c = (
        ReceivedMessage("order", name, id_bytes=new_transaction_id().bytes) for name in (b"a", b"b", b"a", b"c")
    )
    assert handle([a, b]) == [None, None]
    assert handle([b, a]) == [None, None]
    results = handle([b, again, c])  # its second message breaks the key of effects
    assert [each is None for each in results] == [True, False, True]
    assert business.names() == ["a", "b", "c"]


@pytest.mark.parametrize("driver", ["sqlite3"])
def test_a_late_call_is_refused(broker: BrokerProcess, business: Business, notify_url: str) -> None:
    listener = FenceCheckListener(business.connect_sync)
    with Producer(broker.address, group="shop", timeout_s=WAIT_S, check_listener=listener) as producer:

        @transactional_message(producer, topic="order", session=business.connect)
        def place(connection: DriverConnection, name: str) -> None:
            insert(connection, name)

        fence = Fence(business.connect_sync)
        producer.hooks.after_half = lambda half: fence.check(half.transaction_id)
        with pytest.raises(TransactionRefused):
            place("late")
    assert (business.names(), message_count(notify_url)) == ([], 0)
