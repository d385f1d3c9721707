"""Statements on segments: they are made, opened, listed and dropped. The caller owns the connection.

A segment is dropped by steps that cannot be one transaction. Each checks the present state, so that the whole may be
interrupted anywhere and begun again, by any broker:

    marked (segment.dropping) -> detached -> table dropped, for each of its tables -> its row deleted
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from psycopg import sql
from psycopg.rows import class_row

from txmsg.broker.store.connect import Connection
from txmsg.message import Offset, QueueNumber

PARTITIONS = {"message": "message", "memory": "message", "rolled_back": "rolled_back", "journal": "journal"}
"""The tables of a segment by kind, such as memory_N of segment N, and the table that each is a partition of."""

_DETACH_WAIT_S = 5.0
_LOCK_WAIT_S = 0.2
"""For a lock behind which readers of the segment would wait."""

_POSITIONS = """
    select 'group ' || g.name as reader, c.queue_id, c.next_offset, c.acked
      from txmsg.effective_cursor c join txmsg.consumer_group g on g.id = c.group_id
    union all
    select 'mirror ' || m.name, q.id, coalesce(p.next_offset, 0), '{}'
      from txmsg.mirror m
     cross join lateral txmsg.mirrored_queues(m.include, m.exclude) q
      left join txmsg.mirror_queue p on p.mirror = m.name and p.queue = q.id
"""
"""The position of each reader in each queue: all below next_offset is done, and so are the ranges in acked. A group for
which an operator has requested a seek reads from there. Retries and dead letters do not count: they are copies."""


class SegmentRow(NamedTuple):
    """A segment. age_s: since it was closed, for an open one since it was opened. Sizes are with indexes."""

    id: int
    state: str
    dropping: bool
    opened_at: datetime
    age_s: float
    size_bytes: int


class Pin(NamedTuple):
    """Unread messages of a group or a mirror in a queue of a segment, at offsets from `first` to `last`."""

    reader: str
    """`group NAME` or `mirror NAME`."""
    topic: str
    number: QueueNumber
    unread: str
    first: Offset
    last: Offset
    messages: int


class CurrentSegments(NamedTuple):
    """The segment that takes messages, and the one closed last (0: none)."""

    open: int
    previous: int


async def open_and_previous(conn: Connection) -> CurrentSegments:
    """Return the segments in which outcomes are remembered."""
    cursor = await conn.execute(
        "select (select id from txmsg.segment where state = 'open'), "
        "(select coalesce(max(id), 0) from txmsg.segment where state = 'closed')"
    )
    (row,) = await cursor.fetchall()
    return CurrentSegments._make(row)


async def add_segment(conn: Connection) -> None:
    """Make the next segment unless it exists. Waits for no reader, and delays none."""
    await conn.execute("select txmsg.add_segment()")


async def look_after_memory(conn: Connection) -> int:
    """Restart queues in memory that a crash of PostgreSQL has emptied, and their groups. Returns their number."""
    cursor = await conn.execute("select txmsg.look_after_memory()")
    ((lost,),) = await cursor.fetchall()
    return int(lost)


async def rotate(conn: Connection, segment: int, *, lock_timeout_s: float) -> None:
    """Close this segment, if it is still open, and open the next.

    Waits for the batches under way, and all later ones wait behind it: so at most lock_timeout_s. LockNotAvailable.
    """
    async with conn.transaction():
        # Local: the connection returns to the pool, whose other users wait for locks as long as their callers allow.
        await _set_lock_timeout(conn, lock_timeout_s, local=True)
        await conn.execute("select txmsg.rotate(%s)", (segment,))


async def _set_lock_timeout(conn: Connection, seconds: float, *, local: bool = False) -> None:
    await conn.execute("select set_config('lock_timeout', %s, %s)", (f"{seconds * 1000:.0f}ms", local))


async def segments(conn: Connection) -> list[SegmentRow]:
    """Return all segments but the one made ahead, oldest first."""
    async with conn.cursor(row_factory=class_row(SegmentRow)) as cursor:
        await cursor.execute(
            """
            select s.id, s.state, s.dropping, s.opened_at,
                   extract(epoch from now() - coalesce(s.closed_at, s.opened_at))::float8 as age_s,
                   coalesce(pg_total_relation_size(to_regclass(format('txmsg.message_%s', s.id))), 0)
                       + coalesce(pg_total_relation_size(to_regclass(format('txmsg.memory_%s', s.id))), 0)
                       + coalesce(pg_total_relation_size(to_regclass(format('txmsg.rolled_back_%s', s.id))), 0)
                       + coalesce(pg_total_relation_size(to_regclass(format('txmsg.journal_%s', s.id))), 0)
                       as size_bytes
              from txmsg.segment s where s.state <> 'ahead' order by s.id
            """
        )
        return await cursor.fetchall()


async def pins(conn: Connection, segment: int, following: int) -> Sequence[Pin]:
    """Return the unread messages of a segment, by reader.

    following: the segment after it, in which its queues continue.
    """
    async with conn.cursor(row_factory=class_row(Pin)) as cursor:
        await cursor.execute(
            sql.SQL(
                """
                select p.reader, t.name as topic, q.number, t.unread,
                       lower(r.unread) as first, upper(r.unread) - 1 as last,
                       (select sum(upper(span) - lower(span))::bigint from unnest(r.unread) span) as messages
                  from ({positions}) p
                  join txmsg.segment_base ends on ends.segment = %(following)s and ends.queue = p.queue_id
                  left join txmsg.segment_base b on b.segment = %(segment)s and b.queue = p.queue_id
                  join txmsg.queue q on q.id = p.queue_id
                  join txmsg.topic t on t.id = q.topic_id
                 cross join lateral (
                       select int8multirange(int8range(greatest(p.next_offset, coalesce(b.base, 0)), ends.base))
                                  - p.acked as unread) r
                 where p.next_offset < ends.base and coalesce(b.base, 0) < ends.base and not isempty(r.unread)
                 order by 1, 2, 3
                """
            ).format(positions=sql.SQL(_POSITIONS)),
            {"segment": segment, "following": following},
        )
        return await cursor.fetchall()


async def try_upkeep_lock(conn: Connection) -> bool:
    """Return True if this session may drop segments: one session in the whole database does so, until it ends."""
    # A lock of the session, because DETACH CONCURRENTLY cannot run in a transaction. Tried, not waited for: the session
    # that holds it does the same work.
    cursor = await conn.execute("select pg_try_advisory_lock(7706, 0)")
    ((is_locked,),) = await cursor.fetchall()
    return bool(is_locked)


async def release_upkeep_lock(conn: Connection) -> None:
    """Let the next session drop segments now: the server ends this one a moment after it was closed."""
    await conn.execute("select pg_advisory_unlock(7706, 0)")


async def mark_dropping(conn: Connection, segment: int) -> bool:
    """Mark a segment for dropping, for good. False for the open one and the one before it, which remember outcomes."""
    cursor = await conn.execute(
        "update txmsg.segment set dropping = true where id = %s "
        "and id < (select max(id) from txmsg.segment where state = 'closed')",
        (segment,),
    )
    return cursor.rowcount == 1


async def detach(conn: Connection, kind: str, segment: int) -> None:
    """Detach a table of a segment, by its key in PARTITIONS, from its root, unless that is done. Not in a transaction.

    Waits a few seconds for the transactions that have used the root; nothing waits behind it. LockNotAvailable when
    they take longer: then it is half done (the root does not show the table any more) and a later call finishes it.
    """
    partition, root = f"{kind}_{segment}", PARTITIONS[kind]
    cursor = await conn.execute(
        "select inhdetachpending from pg_inherits "
        "where inhrelid = to_regclass('txmsg.' || %s) and inhparent = to_regclass('txmsg.' || %s)",
        (partition, root),
    )
    found = await cursor.fetchone()
    if found is None:
        return
    (is_half_done,) = found
    # Finishing locks the table while it waits for older snapshots, also those of readers of other tables: so not for
    # long.
    await _set_lock_timeout(conn, _LOCK_WAIT_S if is_half_done else _DETACH_WAIT_S)
    await conn.execute(
        # CONCURRENTLY locks the root in SHARE UPDATE EXCLUSIVE mode only, so batches and reads continue. A plain DETACH
        # takes ACCESS EXCLUSIVE, and everything would queue behind its wait for one long reader.
        sql.SQL("alter table {} detach partition {} {}").format(
            sql.Identifier("txmsg", root),
            sql.Identifier("txmsg", partition),
            sql.SQL("finalize" if is_half_done else "concurrently"),
        )
    )


async def drop_table(conn: Connection, kind: str, segment: int) -> None:
    """Drop a detached table of a segment, unless that is done. LockNotAvailable while it is read."""
    await _set_lock_timeout(conn, _LOCK_WAIT_S)
    # The root is not locked by this, as the table is detached. Readers that name the partition directly may still hold
    # it.
    await conn.execute(sql.SQL("drop table if exists {}").format(sql.Identifier("txmsg", f"{kind}_{segment}")))


async def forget_segment(conn: Connection, segment: int) -> None:
    """Delete the row of a segment whose tables are gone, with the starts of its queues."""
    await conn.execute("delete from txmsg.segment where id = %s and dropping", (segment,))
