"""Mirrors as the Notify database knows them, for alerts and operators. Their tailers write: `txmsg.binlog`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from psycopg.rows import class_row

from txmsg.broker.store.connect import Connection, Pool, session
from txmsg.broker.store.delivery import open_segment, plain_cursor, queue_ends
from txmsg.message import Offset, QueueNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRow:
    """A mirror, its replication slot, and how far it is behind."""

    name: str
    include: Sequence[str]
    exclude: Sequence[str]
    log: str
    """Empty: its tailer has not run yet."""
    seen_at: datetime | None
    """When its tailer wrote last."""
    is_tailing: bool
    behind_s: float
    """How long ago the oldest message was stored that is not mirrored."""
    stopped_queues: int
    slot_state: str | None
    """wal_status of its slot; None: it has none."""
    kept_bytes: int
    behind_bytes: int
    safe_bytes: int | None


class MirrorQueueRow(NamedTuple):
    """How far a queue is mirrored. stopped: why it is no longer mirrored; None: it is mirrored. end: of the table."""

    mirror: str
    topic: str
    number: QueueNumber
    next_offset: Offset
    stopped: str | None
    end: Offset


class Mirrors:
    """The mirrors of one Notify database."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def all(self) -> tuple[Sequence[MirrorRow], Sequence[MirrorQueueRow]]:
        """The mirrors by name, and their queues with the ends of these."""
        async with session(self._pool) as conn, conn.transaction():
            found = await mirrors(conn)
            queues = await (await plain_cursor(conn).execute(_QUEUES)).fetchall()
            ends = await queue_ends(conn, await open_segment(conn), list({queue_id for queue_id, *_ in queues}))
        return found, [
            MirrorQueueRow(mirror, topic, number, next_offset, stopped, Offset(max(ends[queue_id], next_offset)))
            for queue_id, mirror, topic, number, next_offset, stopped in queues
        ]


async def mirrors(conn: Connection) -> Sequence[MirrorRow]:
    """The mirrors by name."""
    async with conn.cursor(row_factory=class_row(MirrorRow)) as cursor:
        await cursor.execute(_MIRRORS)
        return await cursor.fetchall()


# The oldest message that is not mirrored: its segment by where its queue starts in each, so that one partition is
# looked into.
_MIRRORS = """
    with positions as materialized (
        select m.name, q.id as queue, coalesce(p.next_offset, 0) as next_offset, p.stopped
          from txmsg.mirror m
         cross join lateral txmsg.mirrored_queues(m.include, m.exclude) q
          left join txmsg.mirror_queue p on p.mirror = m.name and p.queue = q.id
    ), ages as (
        select p.name, greatest(0, extract(epoch from now() - min(o.stored_at)))::float8 as behind_s,
               count(*) filter (where p.stopped is not null) as stopped
          from positions p
          left join lateral (
               select s.id from txmsg.segment s
                 left join txmsg.segment_base b on b.segment = s.id and b.queue = p.queue
                where s.state <> 'ahead' and not s.dropping and coalesce(b.base, 0) <= p.next_offset
                order by s.id desc limit 1) s on true
          left join lateral (
               select m.stored_at from txmsg.message m
                where m.segment = s.id and m.queue = p.queue and m.queue_offset = p.next_offset) o on true
         group by p.name)
    select m.name, m.include, m.exclude, coalesce(m.log, '') as log, m.seen_at,
           coalesce(r.active, false) as is_tailing, coalesce(a.behind_s, 0) as behind_s,
           coalesce(a.stopped, 0) as stopped_queues,
           case when r.slot_name is not null then coalesce(r.wal_status, 'lost') end as slot_state,
           greatest(0, coalesce(pg_current_wal_lsn() - r.restart_lsn, 0))::int8 as kept_bytes,
           greatest(0, coalesce(pg_current_wal_lsn() - r.confirmed_flush_lsn, 0))::int8 as behind_bytes,
           r.safe_wal_size as safe_bytes
      from txmsg.mirror m
      left join ages a on a.name = m.name
      left join pg_database d on d.datname = current_database()
      left join pg_replication_slots r on r.slot_name = 'txmsg_' || m.name || '_' || d.oid
     order by m.name
"""

# A queue that was never mirrored, or not since retention dropped what it had, begins at what is kept.
_QUEUES = """
    select q.id, m.name, t.name, q.number,
           greatest(coalesce(p.next_offset, 0), txmsg.first_kept(q.id)), p.stopped
      from txmsg.mirror m
     cross join lateral txmsg.mirrored_queues(m.include, m.exclude) q
      join txmsg.topic t on t.id = q.topic_id
      left join txmsg.mirror_queue p on p.mirror = m.name and p.queue = q.id
     order by m.name, t.name, q.number
"""
