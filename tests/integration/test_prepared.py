"""Statements executed without the driver's cursor: parameters arrive, and answers belong to their statements."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tests.waiting import until_async
from txmsg.broker.store.connect import connect_writer, open_pool, session
from txmsg.broker.store.prepared import PreparedConnection, Statement

_BYTEA, _INT = 17, 23
_LENGTH = Statement(b"length", b"select length($1), $1 is null", (_BYTEA,))
_DIVIDE = Statement(b"divide", b"select 6 / $1", (_INT,))
_SLEEP = Statement(b"sleep", b"select pg_sleep($1), 'slept'", (_INT,))
_MORE_THAN_BUFFERS_HOLD = 32 * 1024 * 1024


def _int(number: int) -> bytes:
    return number.to_bytes(4)


@pytest.fixture
async def connection(notify_url: str) -> AsyncIterator[PreparedConnection]:
    async with await connect_writer(notify_url, lock_timeout_s=60, transaction_timeout_s=120) as connected:
        yield connected


async def test_parameters_larger_than_all_buffers_arrive(connection: PreparedConnection) -> None:
    assert await connection.run(_LENGTH, [bytes(_MORE_THAN_BUFFERS_HOLD)]) == (_MORE_THAN_BUFFERS_HOLD, False)
    assert await connection.run(_LENGTH, [None]) == (None, True)


async def test_an_error_of_the_server_is_raised_by_the_driver_and_the_session_continues(
    connection: PreparedConnection,
) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await connection.run(_DIVIDE, [_int(0)])
    assert await connection.run(_DIVIDE, [_int(2)]) == (3,)


async def test_other_statements_of_the_driver_do_not_deallocate_a_prepared_one(connection: PreparedConnection) -> None:
    for _ in range(20):
        assert await connection.run(_DIVIDE, [_int(3)]) == (2,)
        await connection.execute("select 1 where %s = 1", (1,))
        await connection.execute("create temporary table passing ()")
        await connection.execute("drop table passing")


async def test_concurrent_statements_wait_for_each_other(connection: PreparedConnection) -> None:
    divided = [connection.run(_DIVIDE, [_int(number)]) for number in (1, 2, 3, 6)]
    assert await asyncio.gather(*divided) == [(6,), (3,), (2,), (1,)]


async def test_a_cancelled_statement_closes_its_session(connection: PreparedConnection) -> None:
    """Its late answer must not be taken for that of the next statement."""
    sleeping = asyncio.create_task(connection.run(_SLEEP, [_int(60)]))
    await until_async(lambda: connection.pgconn.transaction_status == TransactionStatus.ACTIVE)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    assert connection.closed
    with pytest.raises(psycopg.OperationalError):
        await connection.run(_DIVIDE, [_int(1)])


async def test_a_session_ended_by_the_server_is_reported_with_the_reason(
    connection: PreparedConnection, notify_url: str
) -> None:
    sleeping = asyncio.create_task(connection.run(_SLEEP, [_int(60)]))
    async with await psycopg.AsyncConnection.connect(notify_url, autocommit=True) as other:
        async with asyncio.timeout(60):
            while not sleeping.done():
                await other.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where pid = %s and wait_event = 'PgSleep'",
                    (connection.info.backend_pid,),
                )
    with pytest.raises(psycopg.errors.AdminShutdown):
        await sleeping
    assert connection.closed


async def test_the_event_loop_stops_watching_a_socket_found_closed(
    connection: PreparedConnection,
) -> None:
    """The next opened file gets the same number."""
    assert await connection.run(_DIVIDE, [_int(2)]) == (3,)
    number = connection.fileno()
    connection.pgconn.finish()
    with pytest.raises(psycopg.OperationalError):
        await connection.run(_DIVIDE, [_int(2)])
    assert not asyncio.get_running_loop().remove_reader(number)


async def test_a_closed_session_is_not_given_out_by_the_pool(notify_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even for a session that was just used and so is not checked."""
    monkeypatch.setattr("txmsg.broker.store.connect._FRESH_S", math.inf)
    async with open_pool(notify_url, size_max=1) as pool:
        async with session(pool) as connection:
            assert isinstance(connection, PreparedConnection)
            await connection.fetch(b"select 1", (), ())
        await connection.close()
        async with session(pool) as another:
            assert another is not connection
            assert isinstance(another, PreparedConnection)
            assert (await another.fetch(b"select 1", (), ())).ntuples == 1


async def test_a_session_ended_by_the_server_between_statements_is_known_as_closed(
    connection: PreparedConnection, notify_url: str
) -> None:
    assert await connection.run(_DIVIDE, [_int(2)]) == (3,)
    async with await psycopg.AsyncConnection.connect(notify_url, autocommit=True) as other:
        await other.execute("select pg_terminate_backend(%s)", (connection.info.backend_pid,))
    await until_async(lambda: connection.closed)
    with pytest.raises(psycopg.OperationalError):
        await connection.run(_DIVIDE, [_int(2)])


async def test_an_answer_is_found_without_a_readiness_event(connection: PreparedConnection) -> None:
    """As with uvloop after a socket error, which it reports once: a broker waited forever after a crash."""
    assert await connection.run(_DIVIDE, [_int(3)]) == (2,)
    asyncio.get_running_loop().remove_reader(connection.pgconn.socket)
    async with asyncio.timeout(60):
        assert await connection.run(_DIVIDE, [_int(2)]) == (3,)
