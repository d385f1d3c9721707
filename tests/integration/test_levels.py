"""The durability of a batch follows from the topics that it touches, whoever sends it."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg import AsyncConnection

from tests.batch_calls import apply_batch
from tests.integration.batch_harness import Notify, columns_of
from txmsg.broker.config import BrokerConfig
from txmsg.broker.segments import Segments
from txmsg.broker.store.batch import Unreplicated, WriteBatch
from txmsg.broker.store.connect import open_pool

_WAITING = "select 1 from pg_locks where locktype = 'advisory' and not granted"
_CALL = f"""
select count(*) from {apply_batch(commit="%(commit)s::uuid[]", rollback="%(rollback)s::uuid[]", decided_by="null")}
"""


async def topic_of(db: Notify, durability: str) -> int:
    """Return a queue of a new topic with this durability."""
    await db.connection.execute(
        "insert into txmsg.topic (name, queue_count, ordered_queues, durability) values (%s, 1, 1, %s)",
        (durability, durability),
    )
    (row,) = await db.rows("insert into txmsg.queue (topic_id, number) select max(id), 0 from txmsg.topic returning id")
    queue: int = row[0]
    return queue


async def level_of(db: Notify, *, commit: list[bytes], rollback: list[bytes] | None = None) -> str:
    """Return the synchronous_commit with which a batch with these outcomes would be committed. Does not commit it."""
    async with await AsyncConnection.connect(db.url) as connection:
        await connection.execute("set synchronous_commit = local")
        ids = {"commit": [each.hex() for each in commit], "rollback": [each.hex() for each in rollback or []]}
        await connection.execute(_CALL.encode(), ids)
        row = await (await connection.execute("show synchronous_commit")).fetchone()
        await connection.rollback()
    assert row is not None
    return str(row[0])


async def test_outcomes_have_the_highest_durability_of_their_topics(db: Notify) -> None:
    fast = await topic_of(db, "async")
    half = columns_of([fast, fast, db.queues[0]])
    await db.apply(WriteBatch(half=half))
    assert await level_of(db, commit=half.transaction_id[:2]) == "off"
    assert await level_of(db, commit=[], rollback=half.transaction_id[:1]) == "off"
    assert await level_of(db, commit=half.transaction_id[1:]) == "local"
    assert await level_of(db, commit=half.transaction_id[:2], rollback=half.transaction_id[2:]) == "local"
    assert await level_of(db, commit=half.transaction_id[2:]) == "local"


async def test_a_replicated_batch_is_refused_completely_without_a_standby(db: Notify) -> None:
    half = columns_of([db.queues[0]])
    await db.apply(WriteBatch(half=half))
    safe = await topic_of(db, "replicated")
    for batch in (
        WriteBatch(plain=columns_of([safe])),
        WriteBatch(half=columns_of([safe, db.queues[0]])),
        WriteBatch(plain=columns_of([safe]), commit=half.transaction_id),
    ):
        with pytest.raises(Unreplicated, match="no synchronous standby is attached"):
            await db.apply(batch)
    assert await db.rows("select from txmsg.message") == []
    assert len(await db.rows("select from txmsg.half_message")) == 1


async def test_a_repeated_outcome_has_its_original_durability(db: Notify) -> None:
    """The half of its transaction is gone, and its first answer may have been unknown."""
    half = columns_of([db.queues[0], db.queues[1]])
    await db.apply(WriteBatch(half=half))
    await db.apply(WriteBatch(commit=half.transaction_id))
    await db.connection.execute("update txmsg.topic set durability = 'replicated'")
    for ids in (half.transaction_id[:1], half.transaction_id[1:]):
        with pytest.raises(psycopg.DatabaseError) as refused:
            await level_of(db, commit=ids)
        assert refused.value.sqlstate == "TX004"
    plain = columns_of([db.queues[0]], ids=half.transaction_id[:1])
    with pytest.raises(Unreplicated):
        await db.apply(WriteBatch(plain=plain))


async def test_senders_wait_only_briefly_behind_a_rotation_waiting_for_a_standby(db: Notify) -> None:
    """A batch that its standby does not confirm keeps its locks, including that of rotation."""
    config = BrokerConfig(storage=db.url, segment_age_s=1, outcome_memory_s=0)
    await db.connection.execute("update txmsg.segment set opened_at = now() - interval '1 h' where state = 'open'")
    async with (
        open_pool(db.url) as pool,
        await AsyncConnection.connect(db.url) as unconfirmed,
        await AsyncConnection.connect(db.url, autocommit=True) as watcher,
    ):
        segments = Segments(pool, config)
        await segments.refresh()
        await unconfirmed.execute("select pg_advisory_xact_lock_shared(7701, 0)")
        rotating = asyncio.create_task(segments.run_once())
        async with asyncio.timeout(60):
            while not await (await watcher.execute(_WAITING)).fetchall():
                pass
        await db.apply(WriteBatch(plain=db.columns(8)))  # waits for the rotation, until that gives up
        assert not await rotating
        assert segments.open == 1
        await unconfirmed.commit()
        assert await segments.run_once()
