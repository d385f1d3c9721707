"""The pool of a broker: sessions ended by the server, and event loops that end while it connects."""

from __future__ import annotations

import asyncio
import socket
import threading

import psycopg
import pytest

from tests.waiting import until, until_async
from txmsg.broker.store import connect
from txmsg.broker.store.connect import open_pool, session
from txmsg.errors import BrokerUnavailable

DEADLINE_S = 60.0


async def test_a_session_ended_by_the_server_is_not_reused(notify_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_FRESH_S", 600.0)
    pool = open_pool(notify_url, size_max=1)
    await pool.open()
    try:
        async with session(pool) as connection:
            pid = connection.info.backend_pid
        with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as other:
            other.execute("select pg_terminate_backend(%s)", (pid,))
            until(lambda: not other.execute("select from pg_stat_activity where pid = %s", (pid,)).fetchall())
        async with session(pool) as connection:
            cursor = await connection.execute("select pg_backend_pid()")
            assert await cursor.fetchone() != (pid,)
    finally:
        await pool.close()


async def test_a_caller_without_a_connection_gets_the_reason(notify_url: str) -> None:
    absent = open_pool("postgresql://nobody@127.0.0.1:1/none")
    await absent.open()
    absent.timeout = 0.0
    await until_async(lambda: absent.trouble)
    with pytest.raises(BrokerUnavailable, match=r"is away: .*Connection refused") as refused:
        async with session(absent):
            pass
    assert "couldn't get a connection" not in str(refused.value)
    await absent.close()
    small = open_pool(notify_url, size_max=1)
    await small.open(wait=True)
    async with session(small):
        small.timeout = 0.0
        with pytest.raises(BrokerUnavailable, match="1 of at most 1 are in use"):
            async with session(small):
                pass
    await small.close()


def test_an_event_loop_can_end_while_its_pool_connects() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/none"

        async def open_and_fail() -> None:
            pool = open_pool(url)
            await pool.open()
            connected, _ = await asyncio.to_thread(silent.accept)
            asked.append(connected)
            raise RuntimeError(f"a test fails with {pool.name}")

        def run() -> None:
            with pytest.raises(RuntimeError, match="a test fails"):
                asyncio.run(open_and_fail())

        asked: list[socket.socket] = []
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(DEADLINE_S)
        for connected in asked:
            connected.close()
        assert len(asked) == 1
        assert not thread.is_alive()
