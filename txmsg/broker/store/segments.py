"""Every statement on segments: made, opened, looked at, dropped. The caller owns the connection.

A segment is dropped by steps that cannot be one transaction. Each looks at what is there, so that the whole may be
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
"""What segment N consists of, such as memory_N, and the table that each is a partition of."""

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
"""Who still has to read what: all below next_offset is done, and so are the ranges in acked; a group that an operator
has sent elsewhere reads from there, whenever its consumers come. Retries and dead letters do not count: they are
copies."""


class SegmentRow(NamedTuple):
    """A segment. age_s: since it was closed, for an open one since it was opened. Sizes are with indexes."""

    id: int
    state: str
    dropping: bool
    opened_at: datetime
    age_s: float
    size_bytes: int


class Pin(NamedTuple):
    """What a group, or a mirror, has not read of a queue in a segment: messages in offsets from `first` to `last`."""

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
    """The segments in which outcomes are remembered."""
    cursor = await conn.execute(
        "select (select id from txmsg.segment where state = 'open'), "
        "(select coalesce(max(id), 0) from txmsg.segment where state = 'closed')"
    )
    (row,) = await cursor.fetchall()
    return CurrentSegments._make(row)


async def add_segment(conn: Connection) -> None:
    """Makes the next segment unless it is there. Waits for no reader, and lets none wait."""
    await conn.execute("select txmsg.add_segment()")


async def look_after_memory(conn: Connection) -> int:
    """Queues in memory that a crash of PostgreSQL has emptied start over, their groups with them. How many did."""
    cursor = await conn.execute("select txmsg.look_after_memory()")
    ((lost,),) = await cursor.fetchall()
    return int(lost)


async def rotate(conn: Connection, segment: int, *, lock_timeout_s: float) -> None:
    """Closes this segment, if it is still open, and opens the next.

    Waits for the batches under way, and all later ones wait behind it: so not for long. LockNotAvailable.
    """
    async with conn.transaction():
        await _set_lock_timeout(conn, lock_timeout_s, local=True)
        await conn.execute("select txmsg.rotate(%s)", (segment,))


async def _set_lock_timeout(conn: Connection, seconds: float, *, local: bool = False) -> None:
    await conn.execute("select set_config('lock_timeout', %s, %s)", (f"{seconds * 1000:.0f}ms", local))


async def segments(conn: Connection) -> list[SegmentRow]:
    """All segments but the one made ahead, oldest first."""
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
    """What is unread in a segment, by whom; `following` is the segment after it, where its queues go on."""
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
    """Whether this session may drop segments: one in the whole database does so, until it ends."""
    cursor = await conn.execute("select pg_try_advisory_lock(7706, 0)")
    ((is_locked,),) = await cursor.fetchall()
    return bool(is_locked)


async def release_upkeep_lock(conn: Connection) -> None:
    """Lets the next session drop segments now: the server ends this one a moment after it was closed."""
    await conn.execute("select pg_advisory_unlock(7706, 0)")


async def mark_dropping(conn: Connection, segment: int) -> bool:
    """Gives a segment up, for good. False for the open one and the one before it, which remember outcomes."""
    cursor = await conn.execute(
        "update txmsg.segment set dropping = true where id = %s "
        "and id < (select max(id) from txmsg.segment where state = 'closed')",
        (segment,),
    )
    return cursor.rowcount == 1


async def detach(conn: Connection, kind: str, segment: int) -> None:
    """Takes a table of a segment, by its key in PARTITIONS, out of its root, unless that is done. Not in a transaction.

    Waits a few seconds for the transactions that have used the root; nothing waits behind it. LockNotAvailable when
    they take longer: then it is half done (the root shows the table no more) and finished by a later call.
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
    # Finishing locks the table while it waits for older snapshots, those of readers elsewhere too: so not for long.
    await _set_lock_timeout(conn, _LOCK_WAIT_S if is_half_done else _DETACH_WAIT_S)
    await conn.execute(
        sql.SQL("alter table {} detach partition {} {}").format(
            sql.Identifier("txmsg", root),
            sql.Identifier("txmsg", partition),
            sql.SQL("finalize" if is_half_done else "concurrently"),
        )
    )


async def drop_table(conn: Connection, kind: str, segment: int) -> None:
    """Drops a detached table of a segment, unless that is done. LockNotAvailable while it is read."""
    await _set_lock_timeout(conn, _LOCK_WAIT_S)
    await conn.execute(sql.SQL("drop table if exists {}").format(sql.Identifier("txmsg", f"{kind}_{segment}")))


async def forget_segment(conn: Connection, segment: int) -> None:
    """Deletes the row of a segment whose tables are gone, and where its queues started."""
    await conn.execute("delete from txmsg.segment where id = %s and dropping", (segment,))
