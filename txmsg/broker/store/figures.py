"""What a scrape asks the database: one statement each for groups, topics and undecided transactions.

Each answers with a bounded number of rows, however many groups and topics there are. The caller owns the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from psycopg import sql

from txmsg.broker.store.connect import Connection
from txmsg.broker.store.delivery import QUEUE_END, partition, plain_cursor, scalar_cursor


class GroupFigures(NamedTuple):
    """A group in a topic; or, where both are None, all pairs together that have no row of their own."""

    group: str | None
    topic: str | None
    processed: int
    waiting: int
    retrying: int
    dead: int


class HalfFigures(NamedTuple):
    """Undecided transactions in one state."""

    state: str
    transactions: int
    oldest_s: float


@lru_cache(maxsize=16)
def _groups_in(segment: int) -> sql.Composed:
    return sql.SQL(
        """
        with ends as materialized (
            select q.id, q.topic_id, {end} as queue_end from txmsg.queue q
        ), pairs as (
            select c.group_id, e.topic_id, sum(c.next_offset + a.count) as processed,
                   sum(greatest(0, e.queue_end - c.next_offset - a.count)) as waiting
              from txmsg.effective_cursor c
              join ends e on e.id = c.queue_id
             cross join lateral (select coalesce(sum(upper(r) - lower(r)), 0) as count from unnest(c.acked) r) a
             group by c.group_id, e.topic_id
        ), retries as (
            select r.group_id, q.topic_id, count(*) as count
              from txmsg.retry r join txmsg.queue q on q.id = r.queue_id group by 1, 2
        ), dead as (
            select d.group_id, q.topic_id, count(*) as count
              from txmsg.dead_letter d join txmsg.queue q on q.id = d.queue_id group by 1, 2
        ), placed as (
            select p.*, coalesce(r.count, 0) as retrying, coalesce(d.count, 0) as dead,
                   row_number() over (order by p.group_id, p.topic_id) <= %(named)s as is_named
              from pairs p
              left join retries r on r.group_id = p.group_id and r.topic_id = p.topic_id
              left join dead d on d.group_id = p.group_id and d.topic_id = p.topic_id
        )
        select case when p.is_named then g.name end, case when p.is_named then t.name end,
               sum(p.processed)::bigint, sum(p.waiting)::bigint, sum(p.retrying)::bigint, sum(p.dead)::bigint
          from placed p
          join txmsg.consumer_group g on g.id = p.group_id
          join txmsg.topic t on t.id = p.topic_id
         group by 1, 2
        """
    ).format(end=QUEUE_END.format(partition=partition(segment), segment=sql.Literal(segment)))


async def group_figures(conn: Connection, segment: int, *, named_max: int) -> list[GroupFigures]:
    """Each group in each topic, by the cursors as written; those beyond named_max together. `segment` is open."""
    cursor = await plain_cursor(conn).execute(_groups_in(segment), {"named": named_max}, prepare=False)
    return [GroupFigures._make(row) for row in await cursor.fetchall()]


# The first message that a group is not done with in a queue: its segment by where the queue starts in each, so that one
# partition is looked into, and not all.
_OLDEST = """
    with behind as materialized (
        select g.name as group_name, t.name as topic, q.id as queue, c.next_offset
          from txmsg.consumer_group g
          join txmsg.effective_cursor c on c.group_id = g.id
          join txmsg.queue q on q.id = c.queue_id
          join txmsg.topic t on t.id = q.topic_id
         where (g.name, t.name) in (select * from unnest(%(groups)s::text[], %(topics)s::text[]))
    )
    select b.group_name, b.topic, greatest(0, extract(epoch from now() - min(m.stored_at)))::float8
      from behind b
     cross join lateral (
           select s.id from txmsg.segment s
             left join txmsg.segment_base sb on sb.segment = s.id and sb.queue = b.queue
            where s.state <> 'ahead' and not s.dropping and coalesce(sb.base, 0) <= b.next_offset
            order by s.id desc limit 1) s
     cross join lateral (
           select m.stored_at from txmsg.message m
            where m.segment in (s.id, -s.id) and m.queue = b.queue and m.queue_offset = b.next_offset) m
     group by b.group_name, b.topic
"""


async def oldest_unread_s(conn: Connection, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """How long ago the first message was stored that a group is not done with in a topic, for pairs that are behind."""
    groups, topics = [group for group, _ in pairs], [topic for _, topic in pairs]
    cursor = await plain_cursor(conn).execute(_OLDEST, {"groups": groups, "topics": topics}, prepare=False)
    return {(group, topic): age_s for group, topic, age_s in await cursor.fetchall()}


@lru_cache(maxsize=16)
def _topics_in(segment: int) -> sql.Composed:
    return sql.SQL(
        """
        with ends as (
            select q.topic_id, sum({end}) as messages from txmsg.queue q group by q.topic_id
        ), placed as (
            select e.*, row_number() over (order by e.topic_id) <= %(named)s as is_named from ends e
        )
        select case when p.is_named then t.name end, sum(p.messages)::bigint
          from placed p join txmsg.topic t on t.id = p.topic_id group by 1
        """
    ).format(end=QUEUE_END.format(partition=partition(segment), segment=sql.Literal(segment)))


async def topic_figures(conn: Connection, segment: int, *, named_max: int) -> list[tuple[str | None, int]]:
    """How many messages have entered each topic; all beyond named_max together under None. `segment` is open."""
    cursor = await plain_cursor(conn).execute(_topics_in(segment), {"named": named_max}, prepare=False)
    return await cursor.fetchall()


async def half_figures(conn: Connection) -> list[HalfFigures]:
    """Undecided transactions by state, for each that there is."""
    cursor = await plain_cursor(conn).execute(
        """
        select case when parked_reason is not null then 'parked' when checks > 0 then 'in_doubt' else 'new' end,
               count(*), greatest(0, extract(epoch from now() - min(stored_at)))::float8
          from txmsg.half_message where n = 0 and not decided group by 1
        """
    )
    return [HalfFigures._make(row) for row in await cursor.fetchall()]


async def dead_brokers(conn: Connection) -> int:
    """How many brokers have died and are not replaced: by one at their address, or by one that has joined since."""
    cursor = await scalar_cursor(conn).execute(
        """
        with alive as (
            select address, started_at from txmsg.broker where state <> 'dead' and expires_at >= now()
        ), dead as (
            select address, expires_at from txmsg.broker where state = 'dead' or expires_at < now()
        ), missing as (
            select address, max(expires_at) as died_at from dead
             where address not in (select address from alive) group by address
        ), joined as (
            select from alive where address not in (select address from dead)
                                and started_at > (select min(died_at) from missing)
        )
        select greatest(0, (select count(*) from missing) - (select count(*) from joined))
        """
    )
    found = await cursor.fetchone()
    assert isinstance(found, int)
    return found


DATA_DIRECTORY: Final = """
select replace(setting, '/proc/self/', '/proc/' || pg_backend_pid() || '/') as path from pg_settings
 where name = 'data_directory'
"""
"""As other processes name it: an embedded server runs in its directory, and calls it /proc/self/cwd."""


async def data_directory(conn: Connection) -> str | None:
    """Where the server keeps its data. None: it is not on this machine, or the role may not know."""
    if not (conn.info.host.startswith("/") or conn.info.hostaddr in {"127.0.0.1", "::1"}):
        return None
    cursor = await scalar_cursor(conn).execute(DATA_DIRECTORY)
    found: str | None = await cursor.fetchone()
    return found
