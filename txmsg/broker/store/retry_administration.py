"""Every statement with which an operator looks at the retries of a group, hastens and skips them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row

from txmsg.broker.store import audit
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.consumer_groups import group_row
from txmsg.broker.store.dead_letters import RELEASE, count_as_done
from txmsg.errors import UnknownGroup
from txmsg.message import Offset, QueueId, QueueNumber

_BATCH: Final = 1000


class RetryPlace(NamedTuple):
    """Where a retry stands among those of its group, the first due first. due_at None: it waits for its key."""

    due_at: datetime | None
    queue_id: QueueId
    queue_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryShown:
    """A retry as an operator is shown it. due_at None: when an earlier message of its ordering key is done."""

    queue_id: QueueId
    queue_offset: Offset
    topic: str
    number: QueueNumber
    transaction_id: UUID
    n: int
    key: str | None
    tag: str | None
    ordering_key: str | None
    stored_at: datetime
    attempt: int
    due_at: datetime | None
    last_error: str | None
    failures: Sequence[Mapping[str, Any]]
    generation: int
    size_bytes: int

    @property
    def place(self) -> RetryPlace:
        """Where a page that ends here is continued."""
        return RetryPlace(self.due_at, self.queue_id, self.queue_offset)


class RetryAdministration:
    """The retries of one Notify database, for operators. Every method is its own transaction. Raises UnknownGroup."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self, group: str, *, after: RetryPlace | None, limit: int) -> Sequence[RetryShown]:
        """Up to `limit` retries of a group, the first due first; those that wait for their ordering key at the end."""
        place = None if after is None else ("infinity" if after.due_at is None else after.due_at, *after[1:])
        due_at, queue_id, queue_offset = (None, None, None) if place is None else place
        async with session(self._pool) as conn:
            values = {
                "group": await _group_id(conn, group),
                "due_at": due_at,
                "queue_id": queue_id,
                "queue_offset": queue_offset,
                "limit": limit,
            }
            async with conn.cursor(row_factory=class_row(RetryShown)) as cursor:
                await cursor.execute(_LIST, values)
                return await cursor.fetchall()

    async def now(
        self, group: str, transaction_id: UUID | None, n: int | None, *, after: RetryPlace | None
    ) -> tuple[int, RetryPlace | None]:
        """Makes a batch of retries due at once, of a message, of a transaction, or of all. How many, and its end.

        Those that wait for an earlier message of their ordering key are left alone. Batches go through the queues: what
        fails again meanwhile is behind them, so they come to an end, which None says.
        """
        async with session(self._pool) as conn, conn.transaction():
            values = {
                "group": await _group_id(conn, group),
                "id": transaction_id,
                "n": n,
                "queue_id": None if after is None else after.queue_id,
                "queue_offset": None if after is None else after.queue_offset,
                "limit": _BATCH,
            }
            cursor = await conn.execute(_NOW, values)
            due = await cursor.fetchall()
            end = RetryPlace(None, *max(due)) if len(due) == _BATCH else None
            if due:
                await audit.record(conn, "retry.hasten", group, after=_which(transaction_id, n) | {"retries": len(due)})
            return len(due), end

    async def skip(self, group: str, transaction_id: UUID, n: int | None) -> int:
        """Deletes the retries of a message or a transaction; how many. The next messages of their keys are due."""
        async with session(self._pool) as conn, conn.transaction():
            group_id = await _group_id(conn, group)
            cursor = await conn.execute(_SKIP, {"group": group_id, "id": transaction_id, "n": n})
            gone = await cursor.fetchall()
            keys = sorted({(queue_id, key) for queue_id, _, key in gone if key is not None})
            await count_as_done(conn, [(group_id, queue_id, offset) for queue_id, offset, _ in gone])
            # A statement of its own: it must see that the retries are gone.
            if keys:
                queue_ids, names = (list(column) for column in zip(*keys, strict=True))
                await conn.execute(RELEASE, {"groups": [group_id] * len(keys), "queue_ids": queue_ids, "keys": names})
            if gone:
                await audit.record(conn, "retry.skip", group, before=_which(transaction_id, n) | {"retries": len(gone)})
            return len(gone)


def _which(transaction_id: UUID | None, n: int | None) -> dict[str, object]:
    return {} if transaction_id is None else {"transaction_id": transaction_id, "n": n}


async def _group_id(conn: AsyncConnection, name: str) -> int:
    group = await group_row(conn, name)
    if group is None:
        raise UnknownGroup(f"consumer group {name!r} is unknown: `txmsg group list` shows existing ones")
    return group.id


# Python has no infinite time.
_LIST = """
select r.queue_id, r.queue_offset, t.name as topic, q.number, r.transaction_id, r.n, r.key, r.tag, r.ordering_key,
       r.stored_at, r.attempt, case when isfinite(r.due_at) then r.due_at end as due_at, r.last_error, r.failures,
       r.generation, octet_length(r.body) as size_bytes
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
