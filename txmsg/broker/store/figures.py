"""The statements of a scrape: one each for groups, topics and undecided transactions.

Each answers with a bounded number of rows, however many groups and topics exist. The caller owns the connection.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from psycopg import sql

from txmsg.broker.store.connect import Connection
from txmsg.broker.store.delivery import QUEUE_END, partition, plain_cursor, scalar_cursor

_COME_BACK_S: Final = 300.0


class GroupFigures(NamedTuple):
    """A group in a topic; or, where both names are None, all pairs together that are neither first nor urgent."""

    group: str | None
    topic: str | None
    pairs: int
    processed: int
    waiting: int
    retrying: int
    dead: int
    oldest_s: float | None
    """Age of the first message that is not done; None: nothing waits, or it is unknown."""
    is_first: bool
    """True for those created first: for counters, whose series must not appear and disappear."""
    is_urgent: bool
    """True for those that wait longest, or have most dead letters or retries."""


class HalfFigures(NamedTuple):
    """Undecided transactions in one state."""

    state: str
    transactions: int
    oldest_s: float


# Groups that have read equally far share one lookup of their next message. Its segment is found by the queue's starts
# in a subquery, so that one partition is read instead of all. named_max pairs have names because they are oldest, and
# as many because they are urgent; all others are summed into one row, so that a scrape has a bounded number of series.
@lru_cache(maxsize=16)
def _groups_in(segment: int) -> sql.Composed:
    return sql.SQL(
        """
        with ends as materialized (
            select q.id, q.topic_id, {end} as queue_end from txmsg.queue q
        ), cursors as materialized (
            select c.group_id, e.topic_id, c.queue_id, c.next_offset, c.next_offset + a.count as processed,
                   greatest(0, e.queue_end - c.next_offset - a.count) as waiting
              from txmsg.effective_cursor c
              join ends e on e.id = c.queue_id
             cross join lateral (select coalesce(sum(upper(r) - lower(r)), 0) as count from unnest(c.acked) r) a
        ), positions as materialized (
            select distinct queue_id, next_offset from cursors where waiting > 0
        ), unread as materialized (
            select p.queue_id, p.next_offset, (
                   select m.stored_at from txmsg.message m
                    where m.segment in (s.id, -s.id) and m.queue = p.queue_id and m.queue_offset = p.next_offset
                   ) as stored_at
              from positions p
             cross join lateral (
                   select s.id from txmsg.segment s
                     left join txmsg.segment_base sb on sb.segment = s.id and sb.queue = p.queue_id
                    where s.state <> 'ahead' and not s.dropping and coalesce(sb.base, 0) <= p.next_offset
                    order by s.id desc limit 1) s
        ), pairs as (
            select c.group_id, c.topic_id, sum(c.processed) as processed, sum(c.waiting) as waiting,
                   greatest(0, extract(epoch from now() - min(u.stored_at)))::float8 as oldest_s
              from cursors c
              left join unread u on c.waiting > 0 and u.queue_id = c.queue_id and u.next_offset = c.next_offset
             group by c.group_id, c.topic_id
        ), retries as (
            select r.group_id, q.topic_id, count(*) as count
              from txmsg.retry r join txmsg.queue q on q.id = r.queue_id group by 1, 2
        ), dead as (
            select d.group_id, q.topic_id, count(*) as count
              from txmsg.dead_letter d join txmsg.queue q on q.id = d.queue_id group by 1, 2
        ), counted as (
            select p.*, coalesce(r.count, 0) as retrying, coalesce(d.count, 0) as dead
              from pairs p
              left join retries r on r.group_id = p.group_id and r.topic_id = p.topic_id
              left join dead d on d.group_id = p.group_id and d.topic_id = p.topic_id
        ), ranked as (
            select c.*, row_number() over (order by group_id, topic_id) as place, least(
                   case when waiting > 0 then
                       row_number() over (order by waiting > 0 desc, oldest_s desc nulls last, waiting desc) end,
                   case when retrying > 0 then row_number() over (order by retrying desc, group_id, topic_id) end,
                   case when dead > 0 then row_number() over (order by dead desc, group_id, topic_id) end) as urgency
              from counted c
        ), placed as (
            select r.*, place <= %(named)s as is_first,
                   row_number() over (order by urgency nulls last, place) <= %(named)s as is_urgent
              from ranked r
        )
        select case when p.is_first or p.is_urgent then g.name end, case when p.is_first or p.is_urgent then t.name end,
               count(*), sum(p.processed)::bigint, sum(p.waiting)::bigint, sum(p.retrying)::bigint, sum(p.dead)::bigint,
               max(p.oldest_s), p.is_first, p.is_urgent
          from placed p
          join txmsg.consumer_group g on g.id = p.group_id
          join txmsg.topic t on t.id = p.topic_id
         group by 1, 2, p.is_first, p.is_urgent
        """
    ).format(end=QUEUE_END.format(partition=partition(segment), segment=sql.Literal(segment)))


async def group_figures(conn: Connection, segment: int, *, named_max: int) -> list[GroupFigures]:
    """Return the figures of each group in each topic, by the cursors as written. segment: the open one.

    named_max of them are first, and as many urgent; the rest comes as one sum.
    """
    cursor = await plain_cursor(conn).execute(_groups_in(segment), {"named": named_max}, prepare=False)
    return [GroupFigures._make(row) for row in await cursor.fetchall()]


@lru_cache(maxsize=16)
def _topics_in(segment: int) -> sql.Composed:
    return sql.SQL(
        """
        with ends as (
            select q.topic_id, sum({end}) as messages from txmsg.queue q group by q.topic_id
        ), placed as (
            select e.*, row_number() over (order by e.topic_id) <= %(named)s as is_named from ends e
        )
        select case when p.is_named then t.name end, count(*), sum(p.messages)::bigint
          from placed p join txmsg.topic t on t.id = p.topic_id group by 1
        """
    ).format(end=QUEUE_END.format(partition=partition(segment), segment=sql.Literal(segment)))


async def topic_figures(conn: Connection, segment: int, *, named_max: int) -> list[tuple[str | None, int, int]]:
    """Return the messages that have entered each topic, as (name, number of topics, number of messages).

    Topics beyond named_max are summed under None. segment: the open one.
    """
    cursor = await plain_cursor(conn).execute(_topics_in(segment), {"named": named_max}, prepare=False)
    return await cursor.fetchall()


async def group_count(conn: Connection) -> int:
    """Return the number of consumer groups, including those that have read nothing yet."""
    cursor = await scalar_cursor(conn).execute("select count(*) from txmsg.consumer_group")
    found = await cursor.fetchone()
    assert isinstance(found, int)
    return found


async def half_figures(conn: Connection) -> list[HalfFigures]:
    """Return the undecided transactions by state, for each state that has any."""
    cursor = await plain_cursor(conn).execute(
        """
        select case when parked_reason is not null then 'parked' when checks > 0 then 'in_doubt' else 'new' end,
               count(*), greatest(0, extract(epoch from now() - min(stored_at)))::float8
          from txmsg.half_message where n = 0 and not decided group by 1
        """
    )
    return [HalfFigures._make(row) for row in await cursor.fetchall()]


async def overdue_check_s(conn: Connection) -> float:
    """Return the seconds for which the oldest due check of an undecided transaction has been due; 0: none is due."""
    cursor = await scalar_cursor(conn).execute(
        """
        select coalesce(greatest(0, extract(epoch from now() - min(next_check_at))), 0)::float8
          from txmsg.half_message where next_check_at is not null
        """
    )
    found = await cursor.fetchone()
    assert isinstance(found, float)
    return found


async def slot_kept_bytes(conn: Connection) -> int:
    """Return the maximum over replication slots of the write-ahead log kept, in bytes.

    The maximum and not the sum: they keep the same files.
    """
    cursor = await scalar_cursor(conn).execute(
        """
        select greatest(0, coalesce(max(pg_current_wal_lsn() - restart_lsn), 0))::int8 from pg_replication_slots
        """
    )
    found = await cursor.fetchone()
    assert isinstance(found, int)
    return found


async def dead_brokers(conn: Connection, *, come_back_s: float = _COME_BACK_S) -> int:
    """Return the number of dead brokers that are not replaced, at their address or by a broker that has joined since.

    A broker that expired before the database's server started counts only after come_back_s: after a restart or a
    restore the table has brokers of an earlier time, which are about to join again.
    """
    # By address: a broker that was restarted under a new id, as a container is, has replaced itself.
    cursor = await scalar_cursor(conn).execute(
        """
        with alive as (
            select address, started_at from txmsg.broker where state <> 'dead' and expires_at >= now()
        ), dead as (
            select address, expires_at from txmsg.broker
             where (state = 'dead' or expires_at < now())
               and (expires_at >= pg_postmaster_start_time()
                    or now() > pg_postmaster_start_time() + make_interval(secs => %s))
        ), missing as (
            select address, max(expires_at) as died_at from dead
             where address not in (select address from alive) group by address
        ), joined as (
            select from alive where address not in (select address from dead)
                                and started_at > (select min(died_at) from missing)
        )
        select greatest(0, (select count(*) from missing) - (select count(*) from joined))
        """,
        (come_back_s,),
    )
    found = await cursor.fetchone()
    assert isinstance(found, int)
    return found


DATA_DIRECTORY: Final = """
select replace(setting, '/proc/self/', '/proc/' || pg_backend_pid() || '/') as path from pg_settings
 where name = 'data_directory'
"""
"""The data directory as other processes name it: an embedded server runs in it, and calls it /proc/self/cwd."""


async def data_directory(conn: Connection) -> str | None:
    """Return the server's data directory. None: it is on another machine, or the role may not see it."""
    # The path is used to measure the free space of its disk, which is possible on the same machine only.
    if not (conn.info.host.startswith("/") or conn.info.hostaddr in {"127.0.0.1", "::1"}):
        return None
    cursor = await scalar_cursor(conn).execute(DATA_DIRECTORY)
    found: str | None = await cursor.fetchone()
    return found
