"""Statements on dead letters for operators: pages of them, redriving, purging."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from psycopg.rows import class_row, kwargs_row

from txmsg.administration.dead_letters import (
    DeadLetter,
    DeadLetterBatch,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterQuery,
    DeadLettersDone,
    Selection,
)
from txmsg.broker.store import audit
from txmsg.broker.store.access_rules import is_visible
from txmsg.broker.store.body_keys import opened
from txmsg.broker.store.connect import Connection, Pool, session
from txmsg.broker.store.failures import failure_of
from txmsg.errors import ProtocolError, shown
from txmsg.message import Offset, QueueId, datetime_of_us, message_id, parse_id, us_of_datetime
from txmsg.wire.access.rules import ALL_NAMES, Names
from txmsg.wire.headers import readable_headers

_LIST_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_TOKEN: Final = re.compile(r"(\d{1,17})\.(\d{1,9})\.(\d{1,9})\.(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundDeadLetter:
    """A dead letter with its position in pages, and its encrypted parts. more: another one follows."""

    letter: DeadLetter
    group_id: int
    queue_id: QueueId
    transaction_id: UUID
    n: int
    headers: bytes | None
    body: bytes
    more: bool

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.letter.topic

    @property
    def whole(self) -> DeadLetter:
        """The dead letter with headers and body."""
        return replace(self.letter, headers=readable_headers(self.headers), body=self.body)

    @property
    def token(self) -> str:
        """The token of the page that continues after this dead letter."""
        assert self.letter.died_at is not None
        return f"{us_of_datetime(self.letter.died_at)}.{self.group_id}.{self.queue_id}.{self.letter.offset}"


def _found(
    *,
    group_id: int,
    queue_id: QueueId,
    transaction_id: UUID,
    n: int,
    headers: bytes | None,
    body: bytes,
    failures: Sequence[Mapping[str, Any]],
    more: bool,
    **columns: Any,
) -> _FoundDeadLetter:
    letter = DeadLetter(id=message_id(transaction_id, n), failures=[failure_of(each) for each in failures], **columns)
    return _FoundDeadLetter(
        letter=letter,
        group_id=group_id,
        queue_id=queue_id,
        transaction_id=transaction_id,
        n=n,
        headers=headers,
        body=body,
        more=more,
    )


def _place(token: str) -> dict[str, Any]:
    """Return the start of a page as parameters of the statement. Raises ProtocolError for a token not of ours."""
    if not token:
        return dict.fromkeys(("after_died_at", "after_group_id", "after_queue_id", "after_queue_offset"))
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise ProtocolError(f"{shown(token)} is not a page of dead letters: give the last value of `next`")
    died_at_us, group_id, queue_id, offset = map(int, found.groups())
    return {
        "after_died_at": datetime_of_us(died_at_us),
        "after_group_id": group_id,
        "after_queue_id": queue_id,
        "after_queue_offset": offset,
    }


def _parameters(which: DeadLetterFilter) -> dict[str, Any]:
    """Return the parameters of the statements below. None: any. Raises InvalidMessage for an invalid id."""
    said = {name: value or None for name, value in asdict(which).items() if name != "id"}
    transaction_id, n = parse_id(which.id) if which.id else (None, None)
    return said | {"transaction_id": transaction_id, "n": n}


def _in_words(which: DeadLetterFilter) -> dict[str, object]:
    """Return the conditions of a filter, for the audit log."""
    return {name: value for name, value in _parameters(which).items() if value is not None}


class _RedrivenRow(NamedTuple):
    """A dead letter that is a retry now."""

    group_id: int
    queue_id: QueueId
    ordering_key: str | None
    queue_offset: Offset


class DeadLetters:
    """The dead letters of one Notify database. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self, query: DeadLetterQuery, *, groups: Names = ALL_NAMES) -> DeadLetterPage:
        """Return a page of dead letters, as many as begin within 16 MiB of bodies and headers.

        groups: only dead letters of these groups.
        """
        values = _parameters(query.which) | _place(query.after) | groups._asdict()
        values |= {"limit": query.limit + 1, "whole": query.whole, "size_bytes_max": _LIST_SIZE_BYTES_MAX}
        async with session(self._pool) as connection:
            async with connection.cursor(row_factory=kwargs_row(_found)) as cursor:
                await cursor.execute(_LIST, values)
                found = await opened(connection, (await cursor.fetchall())[: query.limit])
        end = found[-1].token if found and found[-1].more else None
        return DeadLetterPage(letters=[each.whole for each in found], next=end)

    async def count(self, which: DeadLetterFilter) -> Selection:
        """Return the number of dead letters, and the filter limited to those that have died until now.

        By the database's clock: so later batches with this filter redrive or purge what was counted.
        """
        async with session(self._pool) as connection:
            cursor = await connection.execute(_COUNT, _parameters(which))
            ((count, at),) = await cursor.fetchall()
        return Selection(which=replace(which, until=min(which.until or at, at)), count=count)

    async def redrive(self, batch: DeadLetterBatch) -> DeadLettersDone:
        """Turn dead letters into retries, queue by queue in the order of offsets.

        They are due at once, with no attempt yet and the next generation of their queue, so that the inbox takes them
        as new (decision 34). Of an ordering key only the first is due; the broker that delivers lets the next follow
        when that is done.
        """
        async with session(self._pool) as connection, connection.transaction():
            async with connection.cursor(row_factory=class_row(_RedrivenRow)) as cursor:
                await cursor.execute(_REDRIVE, _parameters(batch.which) | {"limit": batch.limit})
                redriven = await cursor.fetchall()
            # Retries of ordering keys are inserted as not due: an earlier message of the key may be in the table, and
            # its broker may be removing it at this moment.
            ordered = [retry for retry in redriven if retry.ordering_key is not None]
            if ordered:
                places = {
                    "groups": [retry.group_id for retry in ordered],
                    "queue_ids": [retry.queue_id for retry in ordered],
                    "keys": [retry.ordering_key for retry in ordered],
                    "offsets": [retry.queue_offset for retry in ordered],
                }
                await connection.execute(_LOCK_HEADS, places)
                # A statement of its own: it must see which heads went while that one waited.
                await connection.execute(_REDRIVEN_HEADS_ARE_DUE, places)
            if redriven:
                after = _in_words(batch.which) | {"dead_letters": len(redriven)}
                await audit.record(connection, "dead_letter.redrive", batch.which.group, after=after)
        return DeadLettersDone(count=len(redriven))

    async def purge(self, batch: DeadLetterBatch) -> DeadLettersDone:
        """Delete dead letters for good. The next messages of keys that were blocked are due at once."""
        async with session(self._pool) as connection, connection.transaction():
            cursor = await connection.execute(_PURGE, _parameters(batch.which) | {"limit": batch.limit})
            gone = await cursor.fetchall()
            blocked = sorted({(group, queue_id, key) for group, queue_id, _, key, blocks_key in gone if blocks_key})
            await count_as_done(connection, [(group, queue_id, offset) for group, queue_id, offset, *_ in gone])
            # A statement of its own: it must see that the dead letters are gone.
            if blocked:
                groups, queue_ids, keys = (list(column) for column in zip(*blocked, strict=True))
                await connection.execute(RELEASE, {"groups": groups, "queue_ids": queue_ids, "keys": keys})
            if gone:
                before = _in_words(batch.which) | {"dead_letters": len(gone)}
                await audit.record(connection, "dead_letter.purge", batch.which.group, before=before)
        return DeadLettersDone(count=len(gone))


async def count_as_done(connection: Connection, gone: Collection[tuple[int, QueueId, Offset]]) -> None:
    """Mark messages (group id, queue id, offset) as done in their cursors: their retries or dead letters are gone.

    A broker that died after it had inserted these rows has not written so, and without the rows the next broker would
    not know.
    """
    if gone:
        groups, queue_ids, offsets = (list(column) for column in zip(*gone, strict=True))
        await connection.execute(_DONE, {"groups": groups, "queue_ids": queue_ids, "offsets": offsets})


_DONE = """
with gone as (
    select g.group_id, g.queue_id, range_agg(int8range(g.queue_offset, g.queue_offset + 1)) as offsets
      from unnest(%(groups)s::int[], %(queue_ids)s::int[], %(offsets)s::bigint[]) g(group_id, queue_id, queue_offset)
     group by g.group_id, g.queue_id
), held as materialized (  -- in the order in which brokers write cursors
    select c.group_id, c.queue_id, g.offsets
      from txmsg.cursor c join gone g on (g.group_id, g.queue_id) = (c.group_id, c.queue_id)
     where c.next_offset < upper(g.offsets) and not c.acked @> g.offsets
     order by c.group_id, c.queue_id for update of c
)
update txmsg.cursor c set acked = c.acked + h.offsets * int8multirange(int8range(c.next_offset, null))
  from held h
 where (c.group_id, c.queue_id) = (h.group_id, h.queue_id)
"""

_WHICH = """
       (%(group)s::text is null
            or d.group_id = (select id from txmsg.consumer_group where name = %(group)s))
   and (%(topic)s::text is null or d.queue_id in (
            select q.id from txmsg.queue q join txmsg.topic t on t.id = q.topic_id where t.name = %(topic)s))
   and (%(since)s::timestamptz is null or d.died_at >= %(since)s)
   and (%(until)s::timestamptz is null or d.died_at < %(until)s)
   and (%(error)s::text is null or strpos(lower(d.last_error), lower(%(error)s)) > 0)
   and (%(transaction_id)s::uuid is null or d.transaction_id = %(transaction_id)s)
   and (%(n)s::int is null or d.n = %(n)s)
   and (%(key)s::text is null or d.key = %(key)s)
"""

# `before` is the size of the rows in front of a row: the first one is always listed, so that each page advances.
_LIST = f"""
with found as materialized (
    select d.group_id, d.queue_id, d.queue_offset, d.transaction_id, d.n, d.key, d.tag, d.ordering_key,
           case when %(whole)s then d.headers end as headers,
           case when %(whole)s then d.body else '' end as body, octet_length(d.body) as body_size_bytes,
           d.born_at, d.stored_at, d.died_at, d.attempts, d.last_error,
           case when %(whole)s then d.failures else '[]' end as failures, d.generation, d.blocks_key
      from txmsg.dead_letter d
     where {_WHICH}
       and d.group_id = any (array(select id from txmsg.consumer_group where {is_visible("name")}))
       and (%(after_died_at)s::timestamptz is null
            or (d.died_at, d.group_id, d.queue_id, d.queue_offset)
               > (%(after_died_at)s, %(after_group_id)s::int, %(after_queue_id)s::int, %(after_queue_offset)s::bigint))
     order by d.died_at, d.group_id, d.queue_id, d.queue_offset
     limit %(limit)s
), sized as (
    select f.*, sum(octet_length(f.body) + coalesce(octet_length(f.headers), 0))
                    over (w rows between unbounded preceding and 1 preceding) as before,
           row_number() over w < count(*) over () as more
      from found f window w as (order by f.died_at, f.group_id, f.queue_id, f.queue_offset)
)
select s.group_id, s.queue_id, s.queue_offset as "offset", g.name as "group", t.name as topic, q.number as queue,
       s.transaction_id, s.n, s.key, s.tag, s.ordering_key, s.headers, s.body, s.body_size_bytes, s.born_at,
       s.stored_at, s.died_at, s.attempts, s.last_error, s.failures, s.generation, s.blocks_key, s.more
  from sized s
  join txmsg.consumer_group g on g.id = s.group_id
  join txmsg.queue q on q.id = s.queue_id
  join txmsg.topic t on t.id = q.topic_id
 where s.before is null or s.before < %(size_bytes_max)s
 order by s.died_at, s.group_id, s.queue_id, s.queue_offset
"""

_COUNT = f"select count(*), now() from txmsg.dead_letter d where {_WHICH}"

# Two operators who redrive at once share the work: each skips what the other has in hand. As many rows as begin within
# the size: a transaction of a thousand large bodies would take longer than anybody waits.
_CHOSEN = f"""
with locked as materialized (
    select d.group_id, d.queue_id, d.queue_offset,
           octet_length(d.body) + coalesce(octet_length(d.headers), 0) as size_bytes
      from txmsg.dead_letter d
     where {_WHICH}
     order by d.group_id, d.queue_id, d.queue_offset
     limit %(limit)s
       for update skip locked
), chosen as (
    select l.*, sum(l.size_bytes) over (order by l.group_id, l.queue_id, l.queue_offset
                                        rows between unbounded preceding and 1 preceding) as before
      from locked l
)"""

_CHOSEN_ARE_GONE = """
    delete from txmsg.dead_letter d using chosen c
     where (d.group_id, d.queue_id, d.queue_offset) = (c.group_id, c.queue_id, c.queue_offset)
       and (c.before is null or c.before < 16 * 1024 * 1024)"""

# What an operator has done with dead letters, where their topics have a journal.
_JOURNALED = """
journaled as (
    insert into txmsg.journal (segment, at, event, queue, first_offset, last_offset, group_name, actor)
    select s.id, now(), {event}, g.queue_id, g.queue_offset, g.queue_offset, c.name, 'operator'
      from gone g
      join txmsg.queue q on q.id = g.queue_id
      join txmsg.topic t on t.id = q.topic_id and t.journal_since is not null
      join txmsg.consumer_group c on c.id = g.group_id
      join txmsg.segment s on s.state = 'open'
)"""

_REDRIVE = f"""
{_CHOSEN}, gone as ({_CHOSEN_ARE_GONE}
    returning d.*
), {_JOURNALED.format(event="'redriven'")}, top as (
    select g.group_id, g.queue_id, max(g.generation) as generation from gone g group by g.group_id, g.queue_id
), held as materialized (  -- in the order in which brokers write cursors
    select c.group_id, c.queue_id from txmsg.cursor c
     where (c.group_id, c.queue_id) in (select t.group_id, t.queue_id from top t)
     order by c.group_id, c.queue_id for update
), next as (
    update txmsg.cursor c set generation = greatest(c.generation, t.generation) + 1
      from held h join top t on (t.group_id, t.queue_id) = (h.group_id, h.queue_id)
     where (c.group_id, c.queue_id) = (h.group_id, h.queue_id)
    returning c.group_id, c.queue_id, c.generation
)
insert into txmsg.retry (group_id, queue_id, queue_offset, attempt, due_at, transaction_id, n, key, tag, headers, body,
                         born_at, stored_at, last_error, ordering_key, failures, generation)
select g.group_id, g.queue_id, g.queue_offset, 0,
       case when g.ordering_key is null then now() else 'infinity' end,
       g.transaction_id, g.n, g.key, g.tag, g.headers, g.body, g.born_at, g.stored_at, g.last_error, g.ordering_key,
       g.failures, coalesce(n.generation, g.generation + 1)
  from gone g left join next n on (n.group_id, n.queue_id) = (g.group_id, g.queue_id)
on conflict (group_id, queue_id, queue_offset) do update  -- it is tried again as it is
   set generation = greatest(retry.generation, excluded.generation)
returning group_id, queue_id, ordering_key, queue_offset
"""

# A broker that removes a head lets the next of its key follow. At this moment a broker may have removed one that is
# still seen here, without having seen what is redriven: this waits for it.
_LOCK_HEADS = """
select from txmsg.retry r
 where (r.group_id, r.queue_id, r.queue_offset) in (
       select k.group_id, k.queue_id, h.queue_offset
         from unnest(%(groups)s::int[], %(queue_ids)s::int[], %(keys)s::text[]) k(group_id, queue_id, ordering_key)
        cross join lateral (
              select f.queue_offset from txmsg.retry f
               where f.group_id = k.group_id and f.queue_id = k.queue_id and f.ordering_key = k.ordering_key
               order by f.queue_offset limit 1) h)
 order by r.group_id, r.queue_id, r.queue_offset
   for update
"""

_REDRIVEN_HEADS_ARE_DUE = """
update txmsg.retry r set due_at = now()
  from unnest(%(groups)s::int[], %(queue_ids)s::int[], %(keys)s::text[], %(offsets)s::bigint[])
       k(group_id, queue_id, ordering_key, queue_offset)
 where r.group_id = k.group_id and r.queue_id = k.queue_id and r.queue_offset = k.queue_offset
   and r.due_at = 'infinity'
   and not exists (select from txmsg.retry f
                    where f.group_id = k.group_id and f.queue_id = k.queue_id and f.ordering_key = k.ordering_key
                      and f.queue_offset < k.queue_offset)
"""

_PURGE = f"""
{_CHOSEN}, gone as ({_CHOSEN_ARE_GONE}
    returning d.*
), {_JOURNALED.format(event="'purged'")}
select g.group_id, g.queue_id, g.queue_offset, g.ordering_key, g.blocks_key from gone g
"""

RELEASE = """
update txmsg.retry r set due_at = now()
  from unnest(%(groups)s::int[], %(queue_ids)s::int[], %(keys)s::text[]) k(group_id, queue_id, ordering_key)
 where r.group_id = k.group_id and r.queue_id = k.queue_id and r.ordering_key = k.ordering_key
   and r.due_at = 'infinity'
   and r.queue_offset = (select min(f.queue_offset) from txmsg.retry f
                          where f.group_id = k.group_id and f.queue_id = k.queue_id
                            and f.ordering_key = k.ordering_key)
   and not exists (select from txmsg.dead_letter d
                    where d.group_id = k.group_id and d.queue_id = k.queue_id and d.ordering_key = k.ordering_key
                      and d.blocks_key)
"""
"""Makes the next message of each ordering key due unless something blocks it: a retry or dead letter was removed."""
