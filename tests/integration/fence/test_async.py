"""The fence with an AsyncEngine and each driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime

import pytest
from sqlalchemy import (
    update,
)
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from tests.integration.fence.business import (
    COMMIT,
    CONNECTION_ID,
    ROLLBACK,
    UNKNOWN,
    kill_by,
    message,
)
from txmsg.checker.fence import AsyncFence, FenceCheckListener
from txmsg.checker.tables import create_tables, fence_table
from txmsg.errors import MisuseError, TransactionRefused
from txmsg.message import TransactionId, TransactionState, new_transaction_id


async def _states_of_a_transaction(engine: AsyncEngine) -> None:
    listener = FenceCheckListener(engine)
    fence = AsyncFence(engine)
    await create_tables(engine)
    done, undone, late = (new_transaction_id() for _ in range(3))
    async with AsyncSession(engine) as session:
        await fence.write(session, done)
        assert await fence.check(done) is UNKNOWN
        await session.commit()
        await fence.write(session, undone)
        await session.rollback()
        assert [await fence.check(each) for each in (done, undone, late)] == [COMMIT, ROLLBACK, ROLLBACK]
        with pytest.raises(TransactionRefused):
            await fence.write(session, late)
        await session.rollback()
        async with session.begin(), session.begin_nested():
            with pytest.raises(MisuseError, match="savepoint"):
                await fence.write(session, new_transaction_id())
    answer = listener.check(message(done))
    assert not isinstance(answer, TransactionState)
    assert await answer is COMMIT


async def _break_in_the_pool(engine: AsyncEngine) -> None:
    fence = AsyncFence(engine)
    await create_tables(engine)
    async with engine.connect() as pooled:
        connection_id = await pooled.scalar(CONNECTION_ID[engine.dialect.name])
    others = create_async_engine(engine.url)
    async with others.connect() as other:
        await other.run_sync(kill_by, int(connection_id or 0))
    assert await fence.check(new_transaction_id()) is ROLLBACK
    await others.dispose()


async def _purge(engine: AsyncEngine) -> None:
    fence = AsyncFence(engine)
    await create_tables(engine)
    old, held_by_a_broker = new_transaction_id(), new_transaction_id()
    await fence.check(old)
    await fence.check(held_by_a_broker)
    async with engine.begin() as connection:
        await connection.execute(update(fence_table).values(created_at=datetime(2020, 1, 1, tzinfo=UTC)))

    asked: list[int] = []

    async def held(ids: list[TransactionId]) -> Collection[TransactionId]:
        asked.append(len(ids))
        return [held_by_a_broker]

    assert await fence.purge(600, held) == 1
    assert asked == [0, 2], "first whether anybody answers at all"
    assert await fence.check(held_by_a_broker) is ROLLBACK


async def _cancelled_check(engine: AsyncEngine) -> None:
    fence = AsyncFence(engine)
    await create_tables(engine)
    transaction_id = new_transaction_id()
    async with AsyncSession(engine) as session:
        await fence.write(session, transaction_id)
        while True:
            check = asyncio.create_task(fence.check(transaction_id))
            done, _ = await asyncio.wait([check], timeout=0.05)
            if not done:
                break
            assert check.result() is UNKNOWN, "on a slow machine its time may be over by then"
        check.cancel()
        await asyncio.gather(check, return_exceptions=True)
        await session.commit()
    assert await fence.check(transaction_id) is COMMIT


@pytest.mark.parametrize("scenario", [_states_of_a_transaction, _purge, _cancelled_check])
async def test_the_async_fence_behaves_as_the_sync_one(
    async_url: str, scenario: Callable[[AsyncEngine], Awaitable[None]]
) -> None:
    engine = create_async_engine(async_url)
    try:
        await scenario(engine)
    finally:
        await engine.dispose()


@pytest.mark.parametrize("async_url", ["postgresql", "asyncpg", "mariadb"], indirect=True)
async def test_a_check_on_a_broken_pooled_connection_is_answered_on_another(async_url: str) -> None:
    engine = create_async_engine(async_url)
    await _break_in_the_pool(engine)
    await engine.dispose()
