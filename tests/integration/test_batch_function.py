"""The batch function on a real database: every rule that the comments in 0001_functions.sql state."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from txmsg.broker.store.batch import STALE_SEGMENT, Applied, Batch, Columns, apply
from txmsg.broker.store.connect import connect_writer, open_pool
from txmsg.broker.store.topics import TopicRegistry
from txmsg.message import new_transaction_id


@dataclass
class Notify:
    """A Notify database with a topic of four queues, a producer, and one writer session."""

    url: str
    queues: tuple[int, ...]
    producer: int
    connection: AsyncConnection[Any]

    def columns(self, count: int, *, ids: list[bytes] | None = None, body: bytes = b"body") -> Columns:
        ids = ids or [new_transaction_id().bytes for _ in range(count)]
        return Columns(
            ids=ids,
            n=[0] * count,
            queue=[self.queues[each[-1] % 4] for each in ids],
            producer=[self.producer] * count,
            key=[""] * count,
            tag=[""] * count,
            headers=[b""] * count,
            body=[body] * count,
            born_at_us=[time.time_ns() // 1000] * count,
        )

    async def apply(self, batch: Batch, *, segment: int = 1, previous: int = 0) -> Applied:
        return await apply(self.connection, batch, segment=segment, previous=previous, first_check_s=6)

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = await self.connection.execute(statement.encode())
        return await cursor.fetchall()


@asynccontextmanager
async def notify(url: str) -> AsyncIterator[Notify]:
    pool = open_pool(url)
    await pool.open(wait=True)
    topics = TopicRegistry(pool, auto_create=True, queues=4)
    topic = await topics.ensure("orders")
    producer = await topics.producer("shop", b"")
    async with await connect_writer(url, lock_timeout_s=5, transaction_timeout_s=15) as connection:
        yield Notify(url, topic.queue_ids, producer, connection)
    await pool.close()


def on_database(test: Callable[[Notify], Awaitable[None]]) -> Callable[[str], None]:
    """Runs an async test with a `Notify`; pytest gives the fixture."""

    async def run(url: str) -> None:
        async with notify(url) as database:
            await test(database)

    def wrapper(notify_url: str) -> None:
        asyncio.run(run(notify_url))

    wrapper.__name__ = test.__name__
    return wrapper


@on_database
async def test_a_half_is_no_message_until_it_is_committed(db: Notify) -> None:
    half = db.columns(3)
    assert (await db.apply(Batch(half=half))).ends == {}
    assert await db.rows("select count(*) from txmsg.message") == [(0,)]
    applied = await db.apply(Batch(commit=half.ids[:2], rollback=half.ids[2:]))
    assert applied.problems == {}
    assert sum(applied.ends.values()) == 2
    assert {row[0].bytes for row in await db.rows("select transaction_id from txmsg.message")} == set(half.ids[:2])
    assert await db.rows("select count(*) from txmsg.half_message") == [(0,)]


@on_database
async def test_the_same_outcome_again_is_fine_and_the_other_one_is_refused(db: Notify) -> None:
    half = db.columns(2)
    await db.apply(Batch(half=half))
    committed, rolled_back = half.ids
    for _ in range(2):
        assert (await db.apply(Batch(commit=[committed], rollback=[rolled_back]))).problems == {}
    refused = await db.apply(Batch(commit=[rolled_back], rollback=[committed]))
    assert refused.problems == {committed: "conflict", rolled_back: "conflict"}
    assert await db.rows("select count(*) from txmsg.message") == [(1,)]


@on_database
async def test_an_unknown_transaction_is_expired_never_guessed(db: Notify) -> None:
    ids = [new_transaction_id().bytes for _ in range(2)]
    assert (await db.apply(Batch(commit=ids[:1], rollback=ids[1:]))).problems == dict.fromkeys(ids, "expired")


@on_database
async def test_a_late_copy_of_a_half_does_not_come_back_to_life(db: Notify) -> None:
    half = db.columns(2)
    await db.apply(Batch(half=half))
    await db.apply(Batch(commit=half.ids[:1], rollback=half.ids[1:]))
    assert (await db.apply(Batch(half=half))).problems == dict.fromkeys(half.ids, "resolved")
    assert await db.rows("select count(*) from txmsg.half_message") == [(0,)]


@on_database
async def test_a_late_copy_that_waits_for_the_commit_does_not_come_back_to_life(db: Notify) -> None:
    half = db.columns(1)
    await db.apply(Batch(half=half))
    async with await AsyncConnection.connect(db.url) as other:  # a commit that is not visible yet
        await other.execute("delete from txmsg.half_message")
        await other.execute(
            "insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at) "
            "values (1, 1, 0, %s, 0, '', now())",
            (half.ids[0].hex(),),
        )
        late = asyncio.create_task(db.apply(Batch(half=half)))
        async with await AsyncConnection.connect(db.url, autocommit=True) as watcher:
            while True:  # until the late copy waits for the deletion
                cursor = await watcher.execute(
                    "select count(*) from pg_locks where not granted and locktype = 'transactionid'"
                )
                if await cursor.fetchone() == (1,):
                    break
        await other.commit()
    assert (await late).problems == {half.ids[0]: "resolved"}
    assert await db.rows("select count(*) from txmsg.half_message") == [(0,)]


@on_database
async def test_the_same_half_again_is_one_half_and_another_content_is_refused(db: Notify) -> None:
    half = db.columns(2)
    await db.apply(Batch(half=half))
    assert (await db.apply(Batch(half=half))).problems == {}
    other = db.columns(2, ids=half.ids)
    other.body[1] = b"another"
    assert (await db.apply(Batch(half=other))).problems == {half.ids[1]: "other"}
    assert await db.rows("select distinct body from txmsg.half_message") == [(b"body",)]


@on_database
async def test_a_repeated_plain_send_is_stored_once(db: Notify) -> None:
    plain = db.columns(3)
    await db.apply(Batch(plain=plain))
    assert (await db.apply(Batch(plain=plain))).problems == {}
    plain.body[0] = b"another"
    assert (await db.apply(Batch(plain=plain))).problems == {plain.ids[0]: "other"}
    assert await db.rows("select count(*) from txmsg.message") == [(3,)]


@on_database
async def test_unknown_makes_the_check_due_now(db: Notify) -> None:
    half = db.columns(2)
    await db.apply(Batch(half=half))
    await db.apply(Batch(check=half.ids[:1]))
    due = await db.rows("select transaction_id from txmsg.half_message where next_check_at < now() + interval '1 s'")
    assert [row[0].bytes for row in due] == half.ids[:1]


@on_database
async def test_a_segment_that_is_not_open_is_refused_and_nothing_is_stored(db: Notify) -> None:
    with pytest.raises(psycopg.DatabaseError, match="is not open") as caught:
        await db.apply(Batch(plain=db.columns(1)), segment=2)
    assert caught.value.sqlstate == STALE_SEGMENT
    assert await db.rows("select count(*) from txmsg.message") == [(0,)]


@on_database
async def test_offsets_and_memory_go_on_across_a_rotation(db: Notify) -> None:
    half = db.columns(8)
    await db.apply(Batch(half=half))
    await db.apply(Batch(commit=half.ids[:4], rollback=half.ids[4:6]))
    assert await db.rows("select txmsg.rotate_1(1)") == [(2,)]
    assert await db.rows("select txmsg.rotate_1(1)") == [(2,)], "a second broker that rotates changes nothing"
    await db.apply(Batch(commit=half.ids[6:]), segment=2, previous=1)
    again = await db.apply(Batch(half=half, commit=[], rollback=half.ids[:1]), segment=2, previous=1)
    assert again.problems[half.ids[0]] in ("resolved", "conflict")
    assert len(again.problems) == 8
    await assert_dense(db)


async def assert_dense(db: Notify) -> None:
    """I4: offsets of every queue are 0, 1, 2, ... without a gap or a repeat."""
    bad = await db.rows(
        "select queue from txmsg.message group by queue "
        "having min(queue_offset) <> 0 or max(queue_offset) <> count(*) - 1 or count(distinct queue_offset) <> count(*)"
    )
    assert bad == []


@on_database
async def test_writers_with_repeats_in_opposite_orders_neither_deadlock_nor_leave_gaps(db: Notify) -> None:
    half = db.columns(200)
    rng = random.Random(7)

    async def writer(turn: int) -> None:
        async with await connect_writer(db.url, lock_timeout_s=30, transaction_timeout_s=60) as connection:
            order = list(range(200))
            for _ in range(5):
                rng.shuffle(order)
                copies = half.only({half.ids[row] for row in order[:100]})
                ends = [half.ids[row] for row in order[100:150]]
                outcome = Batch(commit=ends) if turn % 2 else Batch(rollback=ends)
                await apply(connection, Batch(half=copies), segment=1, previous=0, first_check_s=6)
                await apply(connection, outcome, segment=1, previous=0, first_check_s=6)

    await db.apply(Batch(half=half))
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for turn in range(4):
            tasks.create_task(writer(turn))
    await assert_dense(db)
    both = await db.rows("select 1 from txmsg.message m join txmsg.rolled_back r using (transaction_id)")
    assert both == []
    again = await db.rows(
        "select 1 from txmsg.half_message h where exists (select from txmsg.message m where m.transaction_id = "
        "h.transaction_id) or exists (select from txmsg.rolled_back r where r.transaction_id = h.transaction_id)"
    )
    assert again == []


@on_database
async def test_half_rows_are_found_by_index_whatever_statistics_say(db: Notify) -> None:
    await db.connection.execute("analyze txmsg.half_message")
    plan = await db.rows(
        "explain (costs off) delete from txmsg.half_message h "
        "where h.transaction_id = any('{00000000-0000-7000-8000-000000000000}') and h.queue = any(array[1, 2])"
    )
    assert any("half_message_pkey" in row[0] for row in plan), plan
