"""Statements on the journal of topics, except those of batches (journal.sql). See txmsg/broker/journal.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from txmsg.administration.messages import JournalEntry
from txmsg.broker.store.connect import Pool, session
from txmsg.message import TransactionId

RUN_MAX = 1024
"""Maximum number of consecutive offsets in one entry."""


class JournalRow(NamedTuple):
    """An entry to write. at: by the broker's monotonic clock, from which the database computes a time of its own."""

    at: float
    event: str
    queue_id: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    transaction_id: TransactionId | None = None
    group: str | None = None
    actor: str | None = None
    attempt: int | None = None
    detail: str | None = None
    delay_s: float | None = None
    entries: int | None = None


async def journaled(pool: Pool) -> Sequence[tuple[str, int]]:
    """Return the topics that have a journal, each with the ids of its queues."""
    async with session(pool) as connection:
        cursor = await connection.execute(
            "select t.name, q.id from txmsg.topic t join txmsg.queue q on q.topic_id = t.id "
            "where t.journal_since is not null"
        )
        return await cursor.fetchall()


async def write(pool: Pool, incarnation: UUID | None, entries: Sequence[JournalRow], now: Callable[[], float]) -> None:
    """Write entries, in this order, into the open segment. now: the clock of `JournalRow.at`.

    incarnation: of the database, which the queue ids belong to. Raises BrokerUnavailable if it is not current.
    """
    times, *columns = (list(column) for column in zip(*entries, strict=True))
    async with session(pool) as connection:
        sent_at = now()  # only now: a connection may have been waited for
        await connection.execute(_WRITE, [[sent_at - at for at in times], *columns, incarnation])


async def entries_of(
    pool: Pool,
    transaction_id: UUID,
    n: int,
    *,
    queue_id: int | None,
    queue_offset: int | None,
    since: datetime | None,
    limit: int,
) -> Sequence[JournalEntry]:
    """Return the journal's entries on a message and on its transaction's checks, in order.

    queue_id, queue_offset: its place, if it is in its queue. since: from this time on also the entries on lost
    messages, of any message.
    """
    given = {
        "id": transaction_id,
        "n": n,
        "queue": queue_id,
        "offset": queue_offset,
        "since": since,
        "limit": limit,
    }
    async with session(pool) as connection, connection.cursor(row_factory=class_row(JournalEntry)) as cursor:
        await cursor.execute(_OF_MESSAGE, given)
        return await cursor.fetchall()


# Entries come with their ages: the broker's monotonic clock means nothing to the database, and its wall clock may
# differ.
_WRITE = """
insert into txmsg.journal (segment, at, event, queue, first_offset, last_offset, transaction_id, n, group_name, actor,
                           attempt, detail, until, entries)
select s.id, now() - make_interval(secs => e.age_s), e.event, e.queue, e.first_offset, e.last_offset, e.transaction_id,
       case when e.transaction_id is not null then 0 end, e.group_name, e.actor, e.attempt, e.detail,
       now() + make_interval(secs => e.delay_s - e.age_s), e.entries
  from unnest(%s::float8[], %s::text[], %s::int[], %s::bigint[], %s::bigint[], %s::uuid[], %s::text[], %s::text[],
              %s::int[], %s::text[], %s::float8[], %s::bigint[]) with ordinality
       as e(age_s, event, queue, first_offset, last_offset, transaction_id, group_name, actor, attempt, detail, delay_s,
            entries, place)
  join txmsg.segment s on s.state = 'open'
 where txmsg.require_incarnation(%s)
 order by e.place
"""

# Checks are of the transaction, on its first message.
_OF_MESSAGE = f"""
select j.seq, j.at, j.event, j.group_name as "group", j.actor as by, j.attempt, j.detail, j.until,
       j.entries as count
  from (
    select j.* from txmsg.journal j
     where j.transaction_id = %(id)s
       and (j.n = %(n)s or j.event in ('check', 'parked', 'resumed'))
    union all
    select j.* from txmsg.journal j
     where j.queue = %(queue)s and j.first_offset between %(offset)s::bigint - {RUN_MAX - 1} and %(offset)s
       and j.last_offset >= %(offset)s
    union all
    select j.* from txmsg.journal j where j.event = 'lost' and j.at >= %(since)s) j
 order by j.at, j.seq
 limit %(limit)s
"""
