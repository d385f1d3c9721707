"""Statements that find single messages in any state and table. For operators: not on a hot path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from psycopg.rows import class_row, dict_row, namedtuple_row

from txmsg.administration.messages import (
    BrowseStart,
    Decider,
    EndedTransaction,
    FoundMessage,
    JournalEntry,
    LifeInGroup,
    LifeInMirror,
    MessageJournal,
)
from txmsg.broker.store.batch import DecidedBy
from txmsg.broker.store.body_keys import opened
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.failures import failure_of
from txmsg.broker.store.journal import entries_of
from txmsg.errors import UnknownTopic
from txmsg.message import Offset, QueueId
from txmsg.wire.headers import readable_headers

_ENTRIES_MAX = 10_000


_DECIDERS: Final[Mapping[int | None, Decider]] = {
    DecidedBy.SENDER: "sender",
    DecidedBy.CLIENT: "client",
    DecidedBy.CHECK: "check",
    DecidedBy.PERSON: "person",
}


class Located(NamedTuple):
    """A message, the id of its queue, and the time since which its topic has a journal; None: it has none."""

    message: FoundMessage
    queue_id: QueueId
    journal_since: datetime | None


class Messages:
    """The messages of one Notify database. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def of_key(
        self, key: str, *, topic: str | None, limit: int, with_bodies: bool, size_bytes_max: int
    ) -> tuple[Sequence[Located], bool]:
        """Return up to `limit` messages with this key, in any state, the newest segment first, and True if more exist.

        Only stored messages have an index for it: the other tables are read whole.
        """
        given = {"key": key, "topic": topic, "limit": limit, "with_bodies": with_bodies, "size": size_bytes_max}
        return await self._found(_OF_KEY, given, limit)

    async def of_id(
        self, transaction_id: UUID, n: int | None, *, limit: int, with_bodies: bool, size_bytes_max: int
    ) -> tuple[Sequence[Located], bool]:
        """Return the message, or up to `limit` of a transaction, in any state, and True if more exist."""
        given = {"id": transaction_id, "n": n, "limit": limit, "with_bodies": with_bodies, "size": size_bytes_max}
        return await self._found(_OF_ID, given, limit)

    async def from_place(
        self, topic: str, place: BrowseStart, *, limit: int, with_bodies: bool, size_bytes_max: int
    ) -> tuple[Sequence[Located], bool]:
        """Return up to `limit` stored messages of a topic, or one queue, from a position on, and True if more follow.

        The earliest first. Raises UnknownTopic if the topic has no such queue.
        """
        async with session(self._pool) as connection:
            cursor = await connection.execute(_STARTS, {"topic": topic, **asdict(place)})
            starts = await cursor.fetchall()
        if not starts:
            raise UnknownTopic(
                f"topic {topic!r} is unknown: check the spelling"
                if place.queue is None
                else f"topic {topic!r} has no queue {place.queue}, or is unknown: `txmsg topic show {topic}` lists its "
                "queues"
            )
        given = {
            "queues": [queue_id for queue_id, _ in starts],
            "begins": [begin for _, begin in starts],
            "limit": limit,
            "with_bodies": with_bodies,
            "size": size_bytes_max,
        }
        return await self._found(_FROM_PLACE, given, limit)

    async def _found(self, statement: str, given: Mapping[str, Any], limit: int) -> tuple[Sequence[Located], bool]:
        async with session(self._pool) as connection, connection.cursor(row_factory=namedtuple_row) as cursor:
            await cursor.execute(statement, {**given, "limit": limit + 1})
            # One row more than the limit is asked for, and `more` also counts rows that the bound on sizes has cut off.
            rows: Sequence[Any] = (await cursor.fetchall())[:limit]
            more = bool(rows) and rows[-1].more
            return [_located(row) for row in await opened(connection, rows)], more

    async def groups_of(self, queue_id: QueueId, queue_offset: Offset) -> Sequence[LifeInGroup]:
        """Return the state of a queue's message at this offset in each group that reads the queue."""
        async with session(self._pool) as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_GROUPS, {"queue_id": queue_id, "queue_offset": queue_offset})
            rows = await cursor.fetchall()
        return [LifeInGroup(**row | {"failures": [failure_of(each) for each in row["failures"]]}) for row in rows]

    async def mirrors_of(self, queue_id: QueueId, queue_offset: Offset) -> Sequence[LifeInMirror]:
        """Return for each mirror of the queue if it holds the message at this offset, as its tailer noted last."""
        async with session(self._pool) as connection, connection.cursor(row_factory=class_row(LifeInMirror)) as cursor:
            await cursor.execute(_MIRRORS, {"queue_id": queue_id, "queue_offset": queue_offset})
            return await cursor.fetchall()

    async def journal_of(
        self, transaction_id: UUID, n: int, *, queue_id: int | None, queue_offset: int | None, since: datetime | None
    ) -> Sequence[JournalEntry]:
        """Return the journal's entries on a message; see `entries_of`."""
        return await entries_of(
            self._pool,
            transaction_id,
            n,
            queue_id=queue_id,
            queue_offset=queue_offset,
            since=since,
            limit=_ENTRIES_MAX,
        )

    async def ended(self, transaction_id: UUID) -> EndedTransaction | None:
        """Return the end of a transaction without stored messages, as long as it is remembered. Without its journal."""
        async with session(self._pool) as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_ENDED, {"id": transaction_id})
            row = await cursor.fetchone()
        if row is None:
            return None
        journal = MessageJournal(since=row.pop("journal_since"))
        return EndedTransaction(**row | {"decided_by": _DECIDERS.get(row["decided_by"]), "journal": journal})


def _located(row: Any) -> Located:
    values = row._asdict()
    for name in ("number", "queue_id", "queue_offset", "journal_since", "more"):
        del values[name]
    # Not renamed in the statement: its `order by queue` would sort by the number, and the limit cuts off by the id.
    values |= {"queue": row.number, "offset": row.queue_offset}
    values |= {"headers": readable_headers(row.headers), "decided_by": _DECIDERS.get(row.decided_by)}
    return Located(FoundMessage(**values), row.queue_id, row.journal_since)


_STORED = """
    select 'stored' as state, m.transaction_id, m.n, m.queue, m.queue_offset, abs(m.segment) as segment, m.decided_by,
           m.key, m.tag, m.ordering_key, m.headers, m.body, m.born_at, m.half_stored_at, m.stored_at,
           null::timestamptz as deliver_at, null::int as producer, null::int as checks,
           null::timestamptz as next_check_at, null::text as parked_reason"""

_SHOWN = """
, sized as (
    select f.*, sum(octet_length(case when %(with_bodies)s then f.body else '' end)) over (
                    w rows between unbounded preceding and 1 preceding) as before,
           row_number() over w < count(*) over () as more
      from found f window w as (order by {order})
)
select s.state, s.transaction_id, s.n, t.name as topic, q.number, q.id as queue_id, s.queue_offset, s.segment,
       s.decided_by, s.key, s.tag, s.ordering_key, case when %(with_bodies)s then s.headers end as headers,
       case when %(with_bodies)s then s.body else '' end as body, octet_length(s.body) as body_size_bytes, s.born_at,
       s.half_stored_at, s.stored_at, s.deliver_at, p.group_name as producer_group, s.checks, s.next_check_at,
       s.parked_reason, t.journal_since, s.more,
       (select count(*) from txmsg.consumer_group g join txmsg.retry r
            on (r.group_id, r.queue_id, r.queue_offset) = (g.id, s.queue, s.queue_offset)) as groups_retrying,
       (select count(*) from txmsg.consumer_group g join txmsg.dead_letter l
            on (l.group_id, l.queue_id, l.queue_offset) = (g.id, s.queue, s.queue_offset)) as groups_dead
  from sized s
  join txmsg.queue q on q.id = s.queue
  join txmsg.topic t on t.id = q.topic_id
  left join txmsg.producer p on p.id = s.producer
 where s.before is null or s.before < %(size)s
 order by {order}
"""
# `before` sums the bodies in front of a row: the first one is always shown, whatever its size, so pages advance.
_NEWEST_FIRST = _SHOWN.format(order="stored_at desc nulls last, transaction_id, n")

# What is not in a segment: half messages and delayed ones; retries and dead letters whose segment was dropped. Each of
# the last ones is shown once, however many groups have it.
_ELSEWHERE = """
    select case when h.decided then 'decided' else 'half' end as state, h.transaction_id, h.n, h.queue,
           null::bigint as queue_offset, null::int as segment, h.decided_by, h.key, h.tag, h.ordering_key, h.headers,
           h.body, h.born_at, h.stored_at as half_stored_at, null::timestamptz as stored_at, h.deliver_at, h.producer,
           f.checks, f.next_check_at, f.parked_reason
      from txmsg.half_message h
      left join txmsg.half_message f on f.transaction_id = h.transaction_id and f.n = 0  -- it carries the checks of all
     where {h}
    union all
    select 'scheduled', d.transaction_id, d.n, d.queue, null, null, d.decided_by, d.key, d.tag, null, d.headers, d.body,
           d.born_at, d.half_stored_at, d.stored_at, d.deliver_at, null, null, null, null
      from txmsg.scheduled d
     where {d}
    union all
    select * from (
        select distinct on (c.queue_id, c.queue_offset) 'dropped', c.transaction_id, c.n, c.queue_id, c.queue_offset,
               null::int, null::int, c.key, c.tag, c.ordering_key, c.headers, c.body, c.born_at, null::timestamptz,
               c.stored_at, null::timestamptz, null::int, null::int, null::timestamptz, null
          from (select r.queue_id, r.queue_offset, r.transaction_id, r.n, r.key, r.tag, r.ordering_key, r.headers,
                       r.body, r.born_at, r.stored_at
                  from txmsg.retry r where {r}
                union all
                select l.queue_id, l.queue_offset, l.transaction_id, l.n, l.key, l.tag, l.ordering_key, l.headers,
                       l.body, l.born_at, l.stored_at
                  from txmsg.dead_letter l where {l}) c
         where c.queue_offset < txmsg.first_kept(c.queue_id)
         order by c.queue_id, c.queue_offset) c"""

_HAS_KEY = """{table}.key = %(key)s
       and (%(topic)s::text is null or {table}.{queue} in (
            select q.id from txmsg.queue q join txmsg.topic t on t.id = q.topic_id where t.name = %(topic)s))"""
_HAS_ID = "{table}.transaction_id = %(id)s and (%(n)s::int is null or {table}.n = %(n)s)"


def _elsewhere(condition: str) -> str:
    queues = {"h": "queue", "d": "queue", "r": "queue_id", "l": "queue_id"}
    return _ELSEWHERE.format(**{table: condition.format(table=table, queue=name) for table, name in queues.items()})


# Segment by segment, so that one that is found full of the key ends it: each lateral step is one index descent.
_OF_KEY = f"""
with found as materialized (
    {_elsewhere(_HAS_KEY)}
    union all
    select m.* from (select s.id from txmsg.segment s where s.state <> 'ahead' and not s.dropping order by s.id desc) s
     cross join lateral ({_STORED}
          from unnest(array[s.id, -s.id]) p(id) join txmsg.message m on m.segment = p.id  -- -id: those in memory
         where {_HAS_KEY.format(table="m", queue="queue")}
         limit %(limit)s) m
     limit %(limit)s
){_NEWEST_FIRST}"""

_OF_ID = f"""
with found as materialized (
    select m.* from (select s.id from txmsg.segment s where s.state <> 'ahead' and not s.dropping) s
     cross join lateral ({_STORED}
          from unnest(array[s.id, -s.id]) p(id) join txmsg.message m on m.segment = p.id
         where {_HAS_ID.format(table="m")}) m
    union all
    {_elsewhere(_HAS_ID)}
     limit %(limit)s
){_NEWEST_FIRST}"""

_STARTS = """
select q.id, coalesce(%(offset)s::bigint, txmsg.offset_at(q.id, %(at)s::timestamptz)) as begin
  from txmsg.topic t join txmsg.queue q on q.topic_id = t.id
 where t.name = %(topic)s and (%(queue)s::bigint is null or q.number = %(queue)s)
"""

# The first ones of each queue, by one range of the primary key in each segment. Where nothing is as late, no row.
_FROM_PLACE = f"""
with found as materialized (
    select m.* from unnest(%(queues)s::int[], %(begins)s::bigint[]) b(queue, begin)
     cross join lateral (
           select m.* from (select s.id from txmsg.segment s where s.state <> 'ahead' and not s.dropping) s
            cross join lateral ({_STORED}
                 from unnest(array[s.id, -s.id]) p(id) join txmsg.message m on m.segment = p.id
                where m.queue = b.queue and m.queue_offset >= b.begin
                order by m.queue_offset limit %(limit)s) m
            order by m.queue_offset limit %(limit)s) m
     order by m.stored_at, m.queue, m.queue_offset limit %(limit)s
){_SHOWN.format(order="stored_at, queue, queue_offset")}"""

_GROUPS = """
select g.name as "group",
       case when r.group_id is not null then 'retrying' when d.group_id is not null then 'dead'
            when c.next_offset > %(queue_offset)s or c.acked @> %(queue_offset)s::bigint then 'done'
            else 'waiting' end as state,
       coalesce(r.attempt, d.attempts, 0) as attempts,
       case when isfinite(r.due_at) then r.due_at end as next_attempt_at, d.died_at,
       coalesce(r.generation, d.generation, 0) as generation, coalesce(r.failures, d.failures, '[]') as failures
  from txmsg.effective_cursor c
  join txmsg.consumer_group g on g.id = c.group_id
  left join txmsg.retry r on (r.group_id, r.queue_id, r.queue_offset) = (c.group_id, c.queue_id, %(queue_offset)s)
  left join txmsg.dead_letter d on (d.group_id, d.queue_id, d.queue_offset) = (c.group_id, c.queue_id, %(queue_offset)s)
 where c.queue_id = %(queue_id)s
 order by g.name
"""

_MIRRORS = """
select m.name as mirror, m.log, coalesce(p.next_offset > %(queue_offset)s, false) as is_mirrored
  from txmsg.mirror m
 cross join lateral txmsg.mirrored_queues(m.include, m.exclude) q
  left join txmsg.mirror_queue p on p.mirror = m.name and p.queue = q.id
 where q.id = %(queue_id)s
 order by m.name
"""

_ENDED = """
select r.at, r.committed as taken_back, t.name as topic, r.half_stored_at, p.group_name as producer_group, r.decided_by,
       t.journal_since
  from txmsg.segment s
 cross join lateral (
       select r.* from txmsg.rolled_back r where r.segment = s.id and r.transaction_id = %(id)s) r
  left join txmsg.queue q on q.id = r.queue
  left join txmsg.topic t on t.id = q.topic_id
  left join txmsg.producer p on p.id = r.producer
"""
