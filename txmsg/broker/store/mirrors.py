"""Mirrors as the Notify database knows them, for alerts and operators. Their tailers (`txmsg.binlog`) write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from psycopg.rows import class_row

from txmsg.administration.cluster import MirrorProgress, MirrorQueue, MirrorState
from txmsg.broker.store.connect import Connection, Pool, session
from txmsg.broker.store.delivery import open_segment, plain_cursor, queue_ends

# A page shows those that need attention first: stopped ones, then those furthest behind.
_QUEUES_BEHIND_MAX: Final = 100


class Mirrors:
    """The mirrors of one Notify database."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def all(self) -> Sequence[MirrorProgress]:
        """Return the mirrors by name, with their queues."""
        async with session(self._pool) as conn, conn.transaction():
            found = await mirrors(conn)
            rows = await (await plain_cursor(conn).execute(_QUEUES)).fetchall()
            ends = await queue_ends(conn, await open_segment(conn), list({queue_id for queue_id, *_ in rows}))
        queues: dict[str, list[MirrorQueue]] = {mirror.name: [] for mirror in found}
        for queue_id, mirror, topic, number, next_offset, stopped in rows:
            # The ends were read after the positions, but a tailer may have moved on between the two statements.
            end = max(ends[queue_id], next_offset)
            queues[mirror].append(
                MirrorQueue(topic=topic, queue=number, next_offset=next_offset, end=end, stopped=stopped)
            )
        return [_with_queues(mirror, queues[mirror.name]) for mirror in found]


def _with_queues(mirror: MirrorState, queues: Sequence[MirrorQueue]) -> MirrorProgress:
    unfinished = sorted(
        (queue for queue in queues if queue.stopped or queue.next_offset < queue.end),
        key=lambda queue: (queue.stopped is None, queue.next_offset - queue.end),
    )
    state: dict[str, Any] = {each.name: getattr(mirror, each.name) for each in fields(mirror)}
    return MirrorProgress(
        **state,
        behind_messages=sum(queue.end - queue.next_offset for queue in queues),
        queues=len(queues),
        behind=unfinished[:_QUEUES_BEHIND_MAX],
    )


async def mirrors(conn: Connection) -> Sequence[MirrorState]:
    """Return the mirrors by name, without their queues."""
    async with conn.cursor(row_factory=class_row(MirrorState)) as cursor:
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
    select m.name, m.include, m.exclude, m.log, m.seen_at,
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
