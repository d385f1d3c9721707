"""Statements by which operators list the retries of a group, make them due, and skip them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import kwargs_row

from txmsg.administration.groups import (
    PendingRetry,
    RetriesDue,
    RetriesSkipped,
    RetryNow,
    RetryPage,
    RetryQuery,
    RetrySkip,
)
from txmsg.broker.store import audit
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.consumer_groups import group_row
from txmsg.broker.store.dead_letters import RELEASE, count_as_done
from txmsg.broker.store.failures import failure_of
from txmsg.errors import ProtocolError, UnknownGroup, shown
from txmsg.message import Offset, QueueId, datetime_of_us, parse_id, us_of_datetime

_BATCH: Final = 1000
_TOKEN: Final = re.compile(r"(-|\d{1,17})\.(\d{1,9})\.(\d{1,18})")


class _RetryPlace(NamedTuple):
    """The position of a retry among those of its group, the first due first. due_at None: it waits for its key."""

    due_at: datetime | None
    queue_id: QueueId
    queue_offset: Offset

    @property
    def token(self) -> str:
        """The token of the page that continues behind this retry."""
        due = "-" if self.due_at is None else us_of_datetime(self.due_at)
        return f"{due}.{self.queue_id}.{self.queue_offset}"


def _place(token: str) -> _RetryPlace:
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise ProtocolError(f"{shown(token)} is not a page of retries: give the last value of `next`")
    due_at = None if found[1] == "-" else datetime_of_us(int(found[1]))
    return _RetryPlace(due_at, QueueId(int(found[2])), Offset(int(found[3])))


class RetryAdministration:
    """The retries of one Notify database, for operators. Every method is its own transaction. Raises UnknownGroup."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self, query: RetryQuery) -> RetryPage:
        """Return a page of a group's retries, the first due first; those that wait for their ordering key come last."""
        place = _place(query.after) if query.after else None
        # Retries that wait for their key are stored with the time infinity, which Python's datetime does not have.
        due_at = None if place is None else place.due_at or "infinity"
        async with session(self._pool) as conn:
            values = {
                "group": await _group_id(conn, query.group),
                "due_at": due_at,
                "queue_id": place and place.queue_id,
                "queue_offset": place and place.queue_offset,
                "limit": query.limit + 1,
            }
            async with conn.cursor(row_factory=kwargs_row(_retry)) as cursor:
                await cursor.execute(_LIST, values)
                found = await cursor.fetchall()
        end = found[query.limit - 1][0].token if len(found) > query.limit else None
        return RetryPage(retries=[retry for _, retry in found[: query.limit]], next=end)

    async def now(self, which: RetryNow) -> RetriesDue:
        """Make a batch of retries due at once: those of a message, of a transaction, or of the whole group.

        Those that wait for an earlier message of their ordering key are left alone. Batches advance through the queues:
        retries that fail again meanwhile are behind them, so the batches come to an end.
        """
        transaction_id, n = parse_id(which.id) if which.id else (None, None)
        place = _place(which.after) if which.after else None
        async with session(self._pool) as conn, conn.transaction():
            values = {
                "group": await _group_id(conn, which.group),
                "id": transaction_id,
                "n": n,
                "queue_id": place and place.queue_id,
                "queue_offset": place and place.queue_offset,
                "limit": _BATCH,
            }
            cursor = await conn.execute(_NOW, values)
            due = await cursor.fetchall()
            if due:
                after = _which(transaction_id, n) | {"retries": len(due)}
                await audit.record(conn, "retry.hasten", which.group, after=after)
        end = _RetryPlace(None, *max(due)).token if len(due) == _BATCH else None
        return RetriesDue(retries=len(due), next=end)

    async def skip(self, which: RetrySkip) -> RetriesSkipped:
        """Delete the retries of a message or a transaction. The next messages of their keys become due."""
        transaction_id, n = parse_id(which.id)
        async with session(self._pool) as conn, conn.transaction():
            group_id = await _group_id(conn, which.group)
            cursor = await conn.execute(_SKIP, {"group": group_id, "id": transaction_id, "n": n})
            gone = await cursor.fetchall()
            keys = sorted({(queue_id, key) for queue_id, _, key in gone if key is not None})
            await count_as_done(conn, [(group_id, queue_id, offset) for queue_id, offset, _ in gone])
            # A statement of its own: it must see that the retries are gone.
            if keys:
                queue_ids, names = (list(column) for column in zip(*keys, strict=True))
                await conn.execute(RELEASE, {"groups": [group_id] * len(keys), "queue_ids": queue_ids, "keys": names})
            if gone:
                before = _which(transaction_id, n) | {"retries": len(gone)}
                await audit.record(conn, "retry.skip", which.group, before=before)
        return RetriesSkipped(skipped=len(gone))


def _retry(
    *, queue_id: QueueId, failures: Sequence[Mapping[str, Any]], **columns: Any
) -> tuple[_RetryPlace, PendingRetry]:
    retry = PendingRetry(failures=[failure_of(each) for each in failures], **columns)
    return _RetryPlace(retry.due_at, queue_id, Offset(retry.offset)), retry


def _which(transaction_id: UUID | None, n: int | None) -> dict[str, object]:
    return {} if transaction_id is None else {"transaction_id": transaction_id, "n": n}


async def _group_id(conn: AsyncConnection, name: str) -> int:
    group = await group_row(conn, name)
    if group is None:
        raise UnknownGroup(f"consumer group {name!r} is unknown: `txmsg group list` shows existing ones")
    return group.id


# Python has no infinite time.
_LIST = """
select r.queue_id, r.transaction_id::text || '.' || r.n as id, t.name as topic, q.number as queue,
       r.queue_offset as "offset", r.key, r.tag, r.ordering_key, r.stored_at, r.attempt as attempts,
       case when isfinite(r.due_at) then r.due_at end as due_at, r.last_error, r.failures, r.generation,
       octet_length(r.body) as body_size_bytes
  from (select r.* from txmsg.retry r
         where r.group_id = %(group)s
           and (%(due_at)s::timestamptz is null
                or (r.due_at, r.queue_id, r.queue_offset)
                   > (%(due_at)s::timestamptz, %(queue_id)s::int, %(queue_offset)s::bigint))
         order by r.due_at, r.queue_id, r.queue_offset limit %(limit)s) r
  join txmsg.queue q on q.id = r.queue_id
  join txmsg.topic t on t.id = q.topic_id
 order by r.due_at, r.queue_id, r.queue_offset
"""

# In the order of places and not of times: a retry that fails again gets a new time, and pages by time would find it
# again without end. The rows are locked in the order in which brokers write them.
_NOW = """
with waiting as materialized (
    select r.queue_id, r.queue_offset from txmsg.retry r
     where r.group_id = %(group)s and r.due_at > now() and r.due_at < 'infinity'
       and (%(queue_id)s::int is null
            or (r.queue_id, r.queue_offset) > (%(queue_id)s::int, %(queue_offset)s::bigint))
       and (%(id)s::uuid is null or r.transaction_id = %(id)s::uuid and (%(n)s::int is null or r.n = %(n)s::int))
     order by r.queue_id, r.queue_offset limit %(limit)s
       for update
)
update txmsg.retry r set due_at = now() from waiting w
 where r.group_id = %(group)s and (r.queue_id, r.queue_offset) = (w.queue_id, w.queue_offset)
returning r.queue_id, r.queue_offset
"""

_SKIP = """
delete from txmsg.retry r
 where r.group_id = %(group)s and r.transaction_id = %(id)s and (%(n)s::int is null or r.n = %(n)s::int)
returning r.queue_id, r.queue_offset, r.ordering_key
"""
