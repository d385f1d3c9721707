"""Locks of the batch function: none waits for a client, none deadlocks, and any number of queues fits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql

from tests.batch_calls import apply_batch, write_batch
from tests.integration.batch_harness import Notify, columns_of
from txmsg.broker.store.arrays import uuid_array
from txmsg.broker.store.batch import WriteBatch, apply
from txmsg.broker.store.connect import connect_writer
from txmsg.broker.store.prepared import PreparedConnection
from txmsg.message import new_transaction_id_bytes
from txmsg.message.columns import Columns

_LOCKS_MAX = 1024  # of queues, as the function says
_ANSWER_ROWS = 20_000  # more than the socket buffers of any system hold


@asynccontextmanager
async def writer_session(url: str) -> AsyncIterator[PreparedConnection]:
    async with await connect_writer(url, lock_timeout_s=120, transaction_timeout_s=240) as connection:
        yield connection


async def write(connection: PreparedConnection, batch: WriteBatch, *, segment: int = 1) -> None:
    applied = await apply(connection, batch, segment=segment, previous=segment - 1, first_check_s=6)
    assert applied.problems == {}


async def until_rows(watcher: AsyncConnection[Any], statement: str, *args: object) -> list[tuple[Any, ...]]:
    """Return the rows of a statement as soon as there are any."""
    async with asyncio.timeout(60):
        while True:
            rows = await (await watcher.execute(statement.encode(), args)).fetchall()
            if rows:
                return rows


# ---- a paused or cut-off client


async def test_a_broker_that_does_not_read_its_answer_holds_no_lock(db: Notify) -> None:
    with closing(psycopg.connect(db.url, autocommit=True)) as paused:
        pid = paused.info.backend_pid
        ids = uuid_array([new_transaction_id_bytes() for _ in range(_ANSWER_ROWS)])
        call = f"call {write_batch(commit='$1')}"
        paused.pgconn.send_query_params(call.encode(), [ids.data], param_types=[ids.oid], param_formats=[1])
        while paused.pgconn.flush():
            pass  # the request is sent, and from here on the broker does nothing
        await until_rows(
            db.connection,
            "select from pg_stat_activity where pid = %s and wait_event = 'ClientWrite' and backend_xmin is null",
            pid,
        )
        held = await db.rows(f"select locktype, mode from pg_locks where pid = {pid} and locktype <> 'virtualxid'")
        assert held == []
        await db.connection.execute("select txmsg.rotate(1)")  # which waits for every batch that is not committed


# ---- opposite orders


def _crossing(queues: list[int], rounds: int) -> tuple[Columns, Columns]:
    """Return transactions of two messages each, and the same queues in opposite order under other ids."""
    up = [queue for each in range(rounds) for queue in (queues[each % len(queues)], queues[-1 - each % len(queues)])]
    forth, back = columns_of(up), columns_of(up[::-1])
    for columns in (forth, back):
        columns.transaction_id = [columns.transaction_id[place - place % 2] for place in range(len(up))]
        columns.n = [place % 2 for place in range(len(up))]
    return forth, back


async def test_batches_that_name_queues_in_opposite_orders_do_not_deadlock(db: Notify) -> None:
    """A third session holds the two queues in the middle until both batches wait for them."""
    queues = (await _topics(db, 1))[:64]
    middle = ", ".join(f"pg_advisory_lock(7702, {queue % 1024})" for queue in queues[31:33])
    async with (
        writer_session(db.url) as one,
        writer_session(db.url) as two,
        await AsyncConnection.connect(db.url, autocommit=True) as holder,
    ):
        for _ in range(5):
            forth, back = _crossing(queues, 64)
            await write(one, WriteBatch(half=forth))
            await write(two, WriteBatch(half=back))
            await holder.execute(f"select {middle}".encode())
            up = WriteBatch(plain=columns_of(queues), commit=sorted(set(forth.transaction_id)))
            down = WriteBatch(plain=columns_of(queues[::-1]), commit=sorted(set(back.transaction_id), reverse=True))
            writing = asyncio.gather(write(one, up), write(two, down))  # a deadlock is an error, 40P01
            await until_rows(
                db.connection, "select from pg_locks where locktype = 'advisory' and not granted having count(*) = 2"
            )
            await holder.execute("select pg_advisory_unlock_all()")
            await writing
    await db.assert_dense()
    assert await db.rows("select count(*) from txmsg.message") == [(5 * (2 * 64 + 2 * 128),)]


async def test_copies_of_halves_in_opposite_orders_do_not_deadlock(db: Notify) -> None:
    async with writer_session(db.url) as one, writer_session(db.url) as two:
        for _ in range(30):
            half = columns_of([1] * 500)
            back = columns_of([1] * 500, ids=half.transaction_id[::-1])
            await asyncio.gather(write(one, WriteBatch(half=half)), write(two, WriteBatch(half=back)))
    assert await db.rows("select count(*) from txmsg.half_message") == [(30 * 500,)]


# ---- thousands of queues


async def _topics(db: Notify, count: int) -> list[int]:
    """Create `count` topics of 1,000 queues each and return the ids of the queues."""
    rows = await db.rows(
        "with made as (insert into txmsg.topic (name, queue_count, ordered_queues) "
        f"select 'wide' || g, 1000, 1000 from generate_series(1, {count}) g returning id) "
        "insert into txmsg.queue (topic_id, number) select id, g from made, generate_series(0, 999) g returning id"
    )
    return [row[0] for row in rows]


async def test_a_batch_into_thousands_of_queues_takes_a_bounded_number_of_locks(db: Notify) -> None:
    queues = (await _topics(db, 5))[:4096]
    half = columns_of(queues)
    await db.apply(WriteBatch(half=half))
    async with await AsyncConnection.connect(db.url) as other:
        await other.execute(
            f"select count(*) from {apply_batch(commit='%s::uuid[]')}".encode(),
            ([transaction_id.hex() for transaction_id in half.transaction_id],),
        )  # not committed: its locks can be counted
        (count,) = await db.rows(f"select count(*) from pg_locks where pid = {other.info.backend_pid}")
        assert _LOCKS_MAX < count[0] < _LOCKS_MAX + 100, "the queues' locks, the rotation's, and those on tables"
        await other.commit()
    ends = await db.rows("select queue, max(queue_offset) from txmsg.message group by queue")
    assert sorted(ends) == [(queue, 0) for queue in sorted(queues)]


async def test_brokers_with_thousands_of_queues_in_flight_do_not_exhaust_the_lock_table(db: Notify) -> None:
    """Four batches of 4,096 queues each: more than twice as many queues as the server has locks by default."""
    queues = await _topics(db, 17)
    shares = [queues[start : start + 4096] for start in range(0, 4 * 4096, 4096)]

    async def broker(share: list[int]) -> None:
        async with writer_session(db.url) as connection:
            for _ in range(3):
                await write(connection, WriteBatch(plain=columns_of(share)))

    async with asyncio.timeout(120):
        await asyncio.gather(*map(broker, shares))  # without room it is 53200, out of shared memory
    await db.assert_dense()
    assert await db.rows("select count(*), count(distinct queue) from txmsg.message") == [(3 * 4 * 4096, 4 * 4096)]


# ---- segments are added and dropped


async def test_senders_do_not_wait_for_open_readers_when_segments_are_added_and_dropped(db: Notify) -> None:
    for segment in (1, 2):
        await write(db.connection, WriteBatch(plain=db.columns(8)), segment=segment)
        await db.connection.execute(f"select txmsg.rotate({segment})")
        await db.connection.execute("select txmsg.add_segment()")
    await write(db.connection, WriteBatch(plain=db.columns(8)), segment=3)
    async with await AsyncConnection.connect(db.url, autocommit=True) as keeper, writer_session(db.url) as sender:
        async with await AsyncConnection.connect(db.url) as reader:
            await reader.execute("select count(*) from txmsg.message")  # and its transaction stays open
            detaching = asyncio.create_task(
                keeper.execute("alter table txmsg.message detach partition txmsg.message_1 concurrently")
            )
            await until_rows(
                db.connection,
                "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'",
                keeper.info.backend_pid,
            )
            for segment in (3, 4):  # senders, rotations and new segments continue
                half = db.columns(20)
                await write(sender, WriteBatch(half=half, plain=db.columns(20)), segment=segment)
                await write(sender, WriteBatch(commit=half.transaction_id), segment=segment)
                await db.connection.execute(f"select txmsg.rotate({segment})")
                await db.connection.execute("select txmsg.add_segment()")
            assert not detaching.done(), "the reader was to be open all the while"
        await detaching
        await keeper.execute(sql.SQL("drop table txmsg.message_1"))
        await write(sender, WriteBatch(plain=db.columns(20)), segment=5)
    gaps = await db.rows(
        "select queue from txmsg.message group by queue having max(queue_offset) - min(queue_offset) <> count(*) - 1"
    )
    assert gaps == []
    assert await db.rows("select count(*) from txmsg.message") == [(2 * 8 + 2 * 40 + 20,)]


async def test_a_rotation_on_an_older_snapshot_is_refused(db: Notify) -> None:
    """It would not see the writes of the batches that it waits for, and would reuse their offsets."""
    await db.connection.execute("set default_transaction_isolation = 'repeatable read'")
    with pytest.raises(psycopg.DatabaseError, match="needs read committed"):
        await db.connection.execute("select txmsg.rotate(1)")
    with pytest.raises(psycopg.DatabaseError, match="needs read committed"):
        await db.apply(WriteBatch(plain=db.columns(1)))
