"""Refusals for driver connections, on SQLite alone. Integration tests show that nothing is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import aiosqlite
import pytest

from txmsg import (
    AsyncProducer,
    FenceCheckListener,
    MisuseError,
    Producer,
    StorageError,
    TransactionRefused,
    create_tables,
    idempotent,
    new_transaction_id,
    transactional_message,
)
from txmsg.checker.connections.asyncpg_driver import _numbered
from txmsg.client.fence import AsyncFence, Fence, purge_inbox
from txmsg.client.flows.flow import LocalTransaction
from txmsg.message import TransactionState

COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK
Connect = Callable[[], sqlite3.Connection]


@pytest.fixture
def connect(tmp_path: Path) -> Connect:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "shop.db")

    create_tables(connect)
    with closing(connect()) as connection:
        connection.execute("create table orders (id integer primary key)")
    return connect


@pytest.fixture
def fence(connect: Connect) -> Fence:
    return Fence(connect)


def orders(connect: Connect) -> list[int]:
    with closing(connect()) as connection:
        return [number for (number,) in connection.execute("select id from orders")]


def insert(connection: sqlite3.Connection) -> None:
    connection.execute("insert into orders default values")


def run(fence: Fence | None, factory: Any, work: Callable[[sqlite3.Connection], Any]) -> tuple[UUID, Any]:
    transaction_id = new_transaction_id()
    return transaction_id, LocalTransaction(fence, transaction_id, "place").run(factory, work)


def test_the_result_is_returned_and_the_connection_is_closed(fence: Fence, connect: Connect) -> None:
    kept: list[sqlite3.Connection] = []

    def work(connection: sqlite3.Connection) -> str:
        insert(connection)
        kept.append(connection)
        return "done"

    transaction_id, result = run(fence, connect, work)
    assert (result, orders(connect)) == ("done", [1])
    assert fence.check(transaction_id) is COMMIT  # type: ignore[arg-type]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        insert(kept[0])


@pytest.mark.parametrize("level", [None, "IMMEDIATE"])
def test_the_autocommit_mode_of_the_connection_does_not_matter(
    fence: Fence, connect: Connect, tmp_path: Path, level: Any
) -> None:
    def factory() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "shop.db", isolation_level=level)

    def fails(connection: sqlite3.Connection) -> None:
        insert(connection)
        raise ZeroDivisionError

    run(fence, factory, insert)
    with pytest.raises(ZeroDivisionError):
        run(fence, factory, fails)
    assert orders(connect) == [1]


def test_a_commit_blocked_by_a_reader_is_rolled_back(fence: Fence, connect: Connect, tmp_path: Path) -> None:
    def factory() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "shop.db", timeout=0)

    with closing(connect()) as reader:
        reading = reader.execute("select * from sqlite_master")
        reading.fetchone()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            run(fence, factory, insert)
        reading.close()
    assert orders(connect) == []


def test_the_end_of_the_transaction_is_noticed_without_a_fence(connect: Connect) -> None:
    with pytest.raises(MisuseError, match="was ended or aborted inside"):
        run(None, connect, lambda connection: connection.rollback())
    run(None, connect, insert)
    assert orders(connect) == [1]


def test_a_connection_already_in_a_transaction_is_refused_and_not_changed(fence: Fence, connect: Connect) -> None:
    with closing(connect()) as outer:
        insert(outer)

        class Block:
            def __enter__(self) -> sqlite3.Connection:
                return outer

            def __exit__(self, *_: object) -> None:
                pass

        with pytest.raises(MisuseError, match="in a transaction already"):
            run(fence, Block, insert)
        assert outer.in_transaction
        outer.commit()
    assert orders(connect) == [1]


def test_a_late_transaction_is_refused(fence: Fence, connect: Connect) -> None:
    transaction_id = new_transaction_id()
    assert fence.check(transaction_id) is ROLLBACK
    with pytest.raises(TransactionRefused):
        LocalTransaction(fence, transaction_id, "place").run(connect, insert)
    assert orders(connect) == []


def test_a_database_with_another_fence_or_without_one_is_refused(
    fence: Fence, connect: Connect, tmp_path: Path
) -> None:
    def elsewhere() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "other.db")

    with pytest.raises(StorageError, match=r"create_tables\(connect\)"):
        run(fence, elsewhere, insert)
    create_tables(elsewhere)
    with pytest.raises(MisuseError, match="not to the database of fence"):
        run(fence, elsewhere, insert)


@pytest.mark.parametrize("given", [None, "text", object()])
def test_a_session_factory_without_a_connection_is_refused(fence: Fence, given: object) -> None:
    with pytest.raises(MisuseError, match=r"session= of place gave .*opens a connection of psycopg"):
        run(fence, lambda: given, insert)
    with pytest.raises(MisuseError, match="opens a connection of its own"):
        Fence(lambda: given).fence_id()  # type: ignore[arg-type,return-value]


async def test_an_async_connect_function_needs_an_async_fence(fence: Fence, tmp_path: Path) -> None:
    async def connect_async() -> aiosqlite.Connection:
        return await aiosqlite.connect(tmp_path / "shop.db")

    with pytest.raises(MisuseError, match="make an AsyncFence"):
        Fence(connect_async)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="`async def`"):
        Fence(lambda: connect_async()).fence_id()  # type: ignore[arg-type,return-value]  # noqa: PLW0108 - what it returns is not known before it is called
    assert await AsyncFence(connect_async).fence_id() == fence.fence_id()


def test_one_shared_connection_is_refused(connect: Connect) -> None:
    with closing(connect()) as one:
        with pytest.raises(MisuseError, match="twice"):
            Fence(lambda: one).fence_id()
    with closing(connect()) as one:
        producer = Producer(group="shop", check_listener=FenceCheckListener(connect))
        with pytest.raises(MisuseError, match="is one connection"):
            transactional_message(producer, topic="t", session=one)(insert)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="given one connection"):
            idempotent(one)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match=r"not .*Connection"):
            Fence(one)  # type: ignore[arg-type]


def test_checks_do_not_depend_on_connection_settings_of_the_application(connect: Connect, tmp_path: Path) -> None:
    def as_chosen() -> sqlite3.Connection:
        connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
        connection.row_factory = lambda _, row: {"first": row[0]}
        return connection

    fence = Fence(as_chosen)
    transaction_id, _ = run(fence, as_chosen, insert)
    assert fence.fence_id() == Fence(connect).fence_id()
    assert fence.check(transaction_id) is COMMIT  # type: ignore[arg-type]
    assert fence.check(new_transaction_id()) is ROLLBACK
    assert purge_inbox(as_chosen) == 0


def test_an_async_producer_accepts_a_sync_connect_function_for_checks(connect: Connect) -> None:
    producer = AsyncProducer(group="shop", check_listener=FenceCheckListener(connect))
    assert producer.fence is not None


def test_placeholders_are_numbered_for_asyncpg() -> None:
    assert _numbered("SELECT %s, 'commit' WHERE id = %s") == "SELECT $1, 'commit' WHERE id = $2"
    assert _numbered("SAVEPOINT own") == "SAVEPOINT own"
