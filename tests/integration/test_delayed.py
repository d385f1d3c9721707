"""Delayed messages in the database: their release into queues, concurrent brokers, and recalls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from psycopg import AsyncConnection

from tests.integration.batch_harness import Notify
from txmsg.broker.scheduler import DueWindow, Released, Scheduler, SchedulerConfig
from txmsg.broker.store.batch import WriteBatch
from txmsg.broker.store.connect import connect_writer, open_pool
from txmsg.broker.store.scheduled import Scheduled
from txmsg.errors import MisuseError
from txmsg.message import new_transaction_id
from txmsg.message.columns import Columns

_HOUR_S = 3600
_DEAD = 60_000


class _Segment:
    """The segments of a broker that has not refreshed since the first one was opened."""

    def __init__(self, db: Notify) -> None:
        self.open, self.previous = 1, 0
        self._db = db

    async def refresh(self) -> None:
        ((self.open, self.previous),) = await self._db.rows(
            "select (select id from txmsg.segment where state = 'open'), "
            "(select coalesce(max(id), 0) from txmsg.segment where state = 'closed')"
        )


def _delayed(db: Notify, count: int, *, in_s: float = _HOUR_S) -> Columns:
    columns = db.columns(count)
    columns.deliver_at_us = [time.time_ns() // 1000 + int(in_s * 1_000_000) + row for row in range(count)]
    return columns


async def _pass(db: Notify, hours: int = 1) -> None:
    """Move all due times back, as if so much time had passed."""
    await db.connection.execute(
        f"update txmsg.scheduled set deliver_at = deliver_at - interval '{hours} h 1 s'".encode()
    )


async def _release(db: Notify, *, rows_max: int = 1000, size_bytes_max: int = 2**23) -> Released:
    async with open_pool(db.url) as pool:
        return await Scheduled(pool, _Segment(db)).release_due(
            since=None, rows_max=rows_max, size_bytes_max=size_bytes_max
        )


async def test_a_delayed_message_enters_its_queue_when_it_is_due_and_not_before(db: Notify) -> None:
    plain, half = _delayed(db, 5), _delayed(db, 5)
    await db.apply(WriteBatch(half=half))
    applied = await db.apply(WriteBatch(plain=plain, commit=half.transaction_id))
    assert (applied.ends, applied.problems) == ({}, {})
    assert applied.deliver_at_us == min(plain.deliver_at_us)
    assert (await _release(db)).count == 0
    assert await db.rows("select count(*) from txmsg.message") == [(0,)]
    await _pass(db)
    released = await _release(db)
    assert (released.count, sum(released.ends.values()), released.more) == (10, 10, False)
    assert await db.rows("select count(*) from txmsg.scheduled") == [(0,)]
    stored = await db.rows("select transaction_id, half_stored_at is not null, decided_by from txmsg.message")
    assert {(row[0].bytes, *row[1:]) for row in stored} == {
        *((transaction_id, False, 0) for transaction_id in plain.transaction_id),
        *((transaction_id, True, 1) for transaction_id in half.transaction_id),
    }
    await db.assert_dense()


async def test_a_delay_counts_from_storing_by_the_clock_of_the_database(db: Notify) -> None:
    """The sender's clock does not count. A copy of a half has the same delay, and the first copy counts."""
    plain, half = db.columns(2), db.columns(2)
    for columns in (plain, half):
        columns.deliver_after_us = [_HOUR_S * 1_000_000] * 2
        columns.born_at_us = [(time.time_ns() // 1000) - 5 * _HOUR_S * 1_000_000] * 2
    await db.apply(WriteBatch(half=half))
    stored = await db.rows("select deliver_at from txmsg.half_message order by transaction_id")
    half.born_at_us = [time.time_ns() // 1000] * 2
    assert (await db.apply(WriteBatch(half=half))).problems == {}
    assert await db.rows("select deliver_at from txmsg.half_message order by transaction_id") == stored
    await db.apply(WriteBatch(plain=plain, commit=half.transaction_id))
    in_s = "select extract(epoch from deliver_at - now())::float8 from txmsg.scheduled"
    assert all(_HOUR_S - 300 < row[0] <= _HOUR_S for row in await db.rows(in_s))
    assert len(await db.rows(in_s)) == 4
    assert (await _release(db)).count == 0
    await _pass(db)
    assert (await _release(db)).count == 4
    other = db.columns(1)
    other.deliver_after_us = [_HOUR_S * 1_000_000]
    await db.apply(WriteBatch(half=other))
    other.deliver_after_us = [2 * _HOUR_S * 1_000_000]
    assert (await db.apply(WriteBatch(half=other))).problems == {other.transaction_id[0]: "other"}


async def test_a_message_already_due_at_commit_is_delivered_at_once(db: Notify) -> None:
    half, plain = _delayed(db, 3, in_s=-1), _delayed(db, 3, in_s=-_HOUR_S)
    await db.apply(WriteBatch(half=half))
    applied = await db.apply(WriteBatch(commit=half.transaction_id, plain=plain))
    assert (sum(applied.ends.values()), applied.deliver_at_us) == (6, None)


async def test_due_messages_are_released_in_order_of_due_time_up_to_the_limit(db: Notify) -> None:
    plain = _delayed(db, 6)
    plain.queue = [db.queues[0]] * 6
    plain.deliver_at_us.reverse()
    plain.body = [b"x" * 1000] * 6
    await db.apply(WriteBatch(plain=plain))
    await _pass(db)
    by_size = await _release(db, size_bytes_max=2500)
    assert (by_size.count, by_size.more) == (2, True)
    one_large = await _release(db, size_bytes_max=1)
    assert (one_large.count, one_large.more) == (1, True)
    by_count = await _release(db, rows_max=2)
    assert (by_count.count, by_count.more) == (2, True)
    assert (await _release(db)).count == 1
    stored = await db.rows("select transaction_id from txmsg.message order by queue_offset")
    assert [row[0].bytes for row in stored] == plain.transaction_id[::-1]


async def test_a_scheduled_message_counts_as_stored_and_its_transaction_as_committed(db: Notify) -> None:
    plain, half = _delayed(db, 2), _delayed(db, 2)
    await db.apply(WriteBatch(half=half))
    await db.apply(WriteBatch(plain=plain, commit=half.transaction_id))
    again = await db.apply(WriteBatch(plain=plain, commit=half.transaction_id))
    assert (again.problems, again.deliver_at_us) == ({}, None)
    assert (await db.apply(WriteBatch(rollback=half.transaction_id))).problems == dict.fromkeys(
        half.transaction_id, "conflict"
    )
    assert (await db.apply(WriteBatch(half=half))).problems == dict.fromkeys(half.transaction_id, "resolved")
    plain.body[0] = b"another"
    assert (await db.apply(WriteBatch(plain=plain))).problems == {plain.transaction_id[0]: "other"}
    assert await db.rows("select count(*) from txmsg.half_message") == [(0,)]
    assert await db.rows("select count(*) from txmsg.scheduled") == [(4,)]


async def test_a_repeat_during_the_release_is_deduplicated(db: Notify) -> None:
    plain = _delayed(db, 4)
    await db.apply(WriteBatch(plain=plain))
    await _pass(db)
    late = [at_us - 2 * _HOUR_S * 1_000_000 for at_us in plain.deliver_at_us]
    plain.deliver_at_us = late  # by the time of this copy it is due
    assert (await db.apply(WriteBatch(plain=plain))).ends == {}, "it still waits to be moved"
    await _release(db)
    assert (await db.apply(WriteBatch(plain=plain))).problems == {}
    assert await db.rows("select count(*) from txmsg.message") == [(4,)]


async def test_concurrent_releases_move_each_message_once(db: Notify) -> None:
    plain = _delayed(db, 400)
    await db.apply(WriteBatch(plain=plain))
    await _pass(db)

    async def broker() -> int:
        moved = 0
        async with open_pool(db.url) as pool:
            scheduled = Scheduled(pool, _Segment(db))
            while (one := await scheduled.release_due(since=None, rows_max=7, size_bytes_max=2**23)).more or one.count:
                moved += one.count
        return moved

    async with asyncio.timeout(120):
        moved = await asyncio.gather(*(broker() for _ in range(4)))
    assert sum(moved) == 400
    assert await db.rows("select count(*), count(distinct transaction_id) from txmsg.message") == [(400, 400)]
    await db.assert_dense()


async def test_a_release_after_a_rotation_finds_the_open_segment(db: Notify) -> None:
    await db.apply(WriteBatch(plain=_delayed(db, 3)))
    await _pass(db)
    await db.connection.execute("select txmsg.rotate(1)")
    assert (await _release(db)).count == 3
    assert await db.rows("select distinct segment from txmsg.message") == [(2,)]


async def test_a_recalled_message_is_remembered_and_never_delivered(db: Notify) -> None:
    half, plain, due, undecided = _delayed(db, 1), _delayed(db, 1), _delayed(db, 1, in_s=-1), _delayed(db, 1)
    pair = _delayed(db, 2)
    pair.transaction_id[1], pair.n[1], pair.queue[1] = pair.transaction_id[0], 1, pair.queue[0]
    for columns in (half, undecided, pair):
        await db.apply(WriteBatch(half=columns))
    await db.apply(WriteBatch(plain=plain, commit=[half.transaction_id[0], pair.transaction_id[0]]))
    await db.apply(WriteBatch(plain=due))
    named = [
        *half.transaction_id,
        *plain.transaction_id,
        *due.transaction_id,
        *undecided.transaction_id,
        pair.transaction_id[1],
        new_transaction_id().bytes,
    ]
    said = ["recalled", "recalled", "entered", "undecided", "recalled", "unknown"]
    async with open_pool(db.url) as pool:
        scheduled = Scheduled(pool, _Segment(db))
        ids = [
            row[0] for row in await db.rows("select unnest(array" + str([each.hex() for each in named]) + "::uuid[])")
        ]
        for _ in range(2):  # a repeat is answered alike
            assert list(await scheduled.recall(ids, [0, 0, 0, 0, 1, 0])) == said
    await _pass(db)
    assert (await _release(db)).count == 1, "the other message of the pair"
    assert (await db.apply(WriteBatch(plain=plain))).problems == {plain.transaction_id[0]: "other"}
    committed = [half.transaction_id[0], pair.transaction_id[0]]
    for place in (1, 0), (2, 1):
        late_copy = await db.apply(WriteBatch(half=half), segment=place[0], previous=place[1])
        assert late_copy.problems == {half.transaction_id[0]: "resolved"}
        again = await db.apply(WriteBatch(commit=committed), segment=place[0], previous=place[1])
        assert again.problems == {}, "its outcome stays commit"
        against = await db.apply(WriteBatch(rollback=committed), segment=place[0], previous=place[1])
        assert against.problems == dict.fromkeys(committed, "conflict")
        await db.connection.execute("select txmsg.rotate((select id from txmsg.segment where state = 'open'))")
        await db.connection.execute("select txmsg.add_segment()")
    assert (
        await db.apply(WriteBatch(commit=half.transaction_id, rollback=plain.transaction_id), segment=3, previous=2)
    ).problems == (dict.fromkeys(half.transaction_id + plain.transaction_id, "expired"))
    assert await db.rows("select transaction_id from txmsg.message join txmsg.rolled_back using (transaction_id)") == []


async def test_a_recall_and_a_concurrent_release_agree(db: Notify) -> None:
    plain = _delayed(db, 200)
    await db.apply(WriteBatch(plain=plain))
    await _pass(db)
    ids = [row[0] for row in await db.rows("select transaction_id from txmsg.scheduled")]
    async with open_pool(db.url) as pool:
        scheduled = Scheduled(pool, _Segment(db))

        async def recall() -> int:
            said = [await scheduled.recall([transaction_id], [0]) for transaction_id in ids]
            return said.count(["recalled"])

        async def release() -> int:
            moved = 0
            while (one := await scheduled.release_due(since=None, rows_max=5, size_bytes_max=2**23)).more or one.count:
                moved += one.count
            return moved

        async with asyncio.timeout(120):
            recalled, moved = await asyncio.gather(recall(), release())
    assert recalled + moved == 200
    assert await db.rows("select count(*) from txmsg.message") == [(moved,)]
    await db.assert_dense()


# ---- the loop


async def test_the_window_moves_forward_and_returns_for_messages_stored_late(db: Notify) -> None:
    ends: dict[int, int] = {}

    def note(grown: Mapping[int, int]) -> None:
        ends.update(grown)

    async with open_pool(db.url) as pool:
        window = DueWindow()
        scheduler = Scheduler(Scheduled(pool, _Segment(db)), window, on_ends=note, look_again=lambda _: None)
        await scheduler.run_once()  # the window begins now
        late = _delayed(db, 2)
        deliver_at_us = (await db.apply(WriteBatch(plain=late))).deliver_at_us
        await _pass(db)  # it became visible after its own due time, and the window has passed that
        assert (await scheduler.run_once()).count == 0
        assert deliver_at_us is not None
        window.note(deliver_at_us - (_HOUR_S + 2) * 1_000_000)
        assert (await scheduler.run_once()).count == 2
        await db.apply(WriteBatch(plain=_delayed(db, 3)))  # by another broker, without a notice to this one
        await _pass(db)
        assert (await scheduler.run_once()).count == 0
        assert (await scheduler.run_once(sweep=True)).count == 3
    assert sum(ends.values()) == 5


async def test_a_scan_for_due_messages_reads_no_dead_rows_of_released_ones(
    db: Notify,
) -> None:
    async def pages(since: datetime) -> int:
        async with await connect_writer(db.url, lock_timeout_s=60, transaction_timeout_s=120) as connection:
            await _pages_read(db.connection)  # its reads are reported before the measurement
            before = await _pages_read(connection)
            await connection.execute(
                "call txmsg.release_due(1, %s, 1000, 8388608, null, null, null, null, null)", (since,)
            )
            return await _pages_read(connection) - before

    await db.connection.execute("alter table txmsg.scheduled set (autovacuum_enabled = off)")
    start = await pages(datetime.now(UTC))
    start = await pages(datetime.now(UTC))
    async with await AsyncConnection.connect(db.url) as reader:
        await reader.execute("set transaction isolation level repeatable read")
        await reader.execute("select count(*) from txmsg.message")
        await db.connection.execute("analyze txmsg.scheduled")
        for _ in range(_DEAD // 4000):
            await db.apply(WriteBatch(plain=_delayed(db, 4000)))
        await _pass(db)
        release = "call txmsg.release_due(1, null, 4000, 8388608, null, null, null, null, null)"
        while await db.rows("select from txmsg.scheduled where deliver_at <= now() limit 1"):
            await db.rows(release)
        await db.apply(WriteBatch(plain=_delayed(db, 4000)))  # and these are not due
        then = await pages(datetime.now(UTC) - timedelta(seconds=1))
        everything = await pages(datetime(2000, 1, 1, tzinfo=UTC))
    assert everything > 100 + start, "the dead rows cost nothing from the beginning, either: this shows nothing"
    assert then <= start + 10


async def _pages_read(connection: AsyncConnection[object]) -> int:
    """Return pages of the table and its indexes read by this session, and by others as far as they have reported."""
    await connection.execute("select pg_stat_force_next_flush()")
    await connection.execute("select pg_stat_clear_snapshot()")
    cursor = await connection.execute(
        "select heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit from pg_statio_user_tables "
        "where schemaname = 'txmsg' and relname = 'scheduled'"
    )
    row = await cursor.fetchone()
    assert isinstance(row, tuple)
    return int(row[0])


def test_an_invalid_interval_is_refused() -> None:
    with pytest.raises(MisuseError, match="interval_s=0"):
        SchedulerConfig(interval_s=0)
