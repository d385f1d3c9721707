"""Refusals of the fence."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import (
    Engine,
    create_engine,
)
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from tests.errors_page import is_documented
from tests.integration.fence.business import (
    COMMIT,
    recorded,
    register,
    users_count,
)
from txmsg.checker.fence import AsyncFence, Fence, FenceCheckListener
from txmsg.checker.tables import create_tables, metadata
from txmsg.client import Producer
from txmsg.errors import MisuseError, StorageError
from txmsg.message import Message, new_transaction_id


def test_a_fence_row_inside_a_savepoint_is_refused(engine: Engine, fence: Fence) -> None:
    with Session(engine) as session, session.begin(), session.begin_nested():
        with pytest.raises(MisuseError, match="savepoint"):
            fence.write(session, new_transaction_id())


def test_savepoints_after_the_fence_row_are_allowed(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        with session.begin_nested() as savepoint:
            register(session)
            savepoint.rollback()
        session.commit()
    assert (fence.check(transaction_id), users_count(engine)) == (COMMIT, 0)


def test_a_session_inside_a_foreign_savepoint_or_transaction_is_refused(engine: Engine, fence: Fence) -> None:
    with engine.connect() as connection, connection.begin():
        with Session(connection) as session, pytest.raises(MisuseError, match="began outside"):
            fence.write(session, new_transaction_id())
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            with pytest.raises(MisuseError, match="savepoint"):
                fence.write(session, new_transaction_id())


def test_a_session_in_autocommit_is_refused(engine: Engine, fence: Fence) -> None:
    autocommit_engine = create_engine(engine.url, isolation_level="AUTOCOMMIT")
    for autocommit in (autocommit_engine, engine.execution_options(isolation_level="AUTOCOMMIT")):
        with Session(autocommit) as session, pytest.raises(MisuseError, match="AUTOCOMMIT"):
            fence.write(session, new_transaction_id())
    assert recorded(engine) == {}
    autocommit_engine.dispose()


def test_a_session_of_another_database_is_refused(fence: Fence, tmp_path: Path) -> None:
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    create_tables(other)
    with Session(other) as session, pytest.raises(MisuseError, match="not that of fence"):
        fence.write(session, new_transaction_id())
    other.dispose()


def test_a_session_of_a_database_without_fence_tables_is_refused(engine: Engine, fence: Fence, tmp_path: Path) -> None:
    fence.fence_id()
    other = engine
    if engine.dialect.name == "sqlite":
        other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    else:
        metadata.drop_all(engine)
    with Session(other) as session, pytest.raises(StorageError) as caught:
        fence.write(session, new_transaction_id())
    assert f"table txmsg_fence is absent from {other.url}, which session= opens" in str(caught.value)
    assert is_documented(caught.value)
    other.dispose()


async def test_an_async_session_of_a_database_without_fence_tables_is_refused(async_url: str) -> None:
    engine = create_async_engine(async_url)
    fence = AsyncFence(engine)
    await create_tables(engine)
    await fence.fence_id()
    async with engine.begin() as connection:
        await connection.run_sync(metadata.drop_all)
    async with AsyncSession(engine) as session:
        with pytest.raises(StorageError, match=r"table txmsg_fence is absent from .*, which session= opens"):
            await fence.write(session, new_transaction_id())
    await engine.dispose()


def test_a_late_transaction_on_a_database_without_fence_tables_is_rolled_back(engine: Engine, fence: Fence) -> None:
    producer = Producer("localhost:1", group="shop", check_listener=FenceCheckListener(engine))
    assert producer.fence is not None
    producer.fence.fence_id()
    metadata.drop_all(engine)

    def register_late(session: Session) -> None:
        with producer.transaction(session) as tx:
            register(session)
            tx.send(Message("t", b"x"))

    with Session(engine) as session, pytest.raises(StorageError, match="table txmsg_fence is absent"):
        register_late(session)
    assert users_count(engine) == 0
    producer.close()


def test_engines_whose_checks_would_join_the_business_transaction_are_refused() -> None:
    for engine in (create_engine("sqlite://"), create_engine("sqlite:///x.db", poolclass=StaticPool)):
        with pytest.raises(MisuseError, match="one connection"):
            Fence(engine)


def test_an_async_engine_needs_an_async_fence(tmp_path: Path) -> None:
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}")
    with pytest.raises(MisuseError, match="make an AsyncFence"):
        Fence(async_engine)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="use an AsyncProducer"):
        Producer("localhost:1", group="shop", check_listener=FenceCheckListener(async_engine))


async def test_an_async_fence_on_a_sync_engine_has_the_fence_of_that_database(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        session.commit()
    same = AsyncFence(engine)
    assert await same.check(transaction_id) is COMMIT
    assert await same.fence_id() == fence.fence_id()
