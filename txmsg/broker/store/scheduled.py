"""Delayed messages: moves due ones into their queues, and recalls those that are not due."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from datetime import datetime
from typing import Protocol, TypeVar
from uuid import UUID

import psycopg

from txmsg.broker.scheduler import Released
from txmsg.broker.store.batch import STALE_SEGMENT
from txmsg.broker.store.connect import Pool, session

T = TypeVar("T")


class OpenSegment(Protocol):
    """The open segment and the one before it, as far as this broker knows."""

    open: int
    previous: int

    async def refresh(self) -> None:
        """Read both again."""
        ...


class Scheduled:
    """The delayed messages of one Notify database. Every method is its own transaction. Implements DueMessages."""

    def __init__(self, pool: Pool, segment: OpenSegment) -> None:
        self._pool = pool
        self._segment = segment

    async def release_due(self, *, since: datetime | None, rows_max: int, size_bytes_max: int) -> Released:
        """Implement `DueMessages.release_due`. Takes the locks of a batch; skips rows that another broker moves."""

        async def once() -> Released:
            async with session(self._pool) as connection:
                cursor = await connection.execute(
                    "call txmsg.release_due(%s, %s, %s, %s, null, null, null, null, null)",
                    (self._segment.open, since, rows_max, size_bytes_max),
                )
                ((queues, ends, released, more, through),) = await cursor.fetchall()
            return Released(
                ends=dict(zip(queues or (), ends or (), strict=True)), count=released, more=more, through=through
            )

        # Outside of a transaction block, as the procedure commits before it answers (decision 5).
        return await self._in_open_segment(once)

    async def recall(self, ids: Sequence[UUID], ns: Sequence[int]) -> Sequence[str]:
        """Recall messages that are not due yet. Idempotent.

        Returns for each: recalled, entered, undecided or unknown.
        """

        async def once() -> Sequence[str]:
            async with session(self._pool) as connection:
                cursor = await connection.execute(
                    "call txmsg.recall(%s, %s, %s, %s::smallint[], null)",
                    (self._segment.open, self._segment.previous, list(ids), list(ns)),
                )
                ((kinds,),) = await cursor.fetchall()
            return kinds or ()

        return await self._in_open_segment(once)

    async def topics_of(self, ids: Sequence[UUID]) -> Mapping[UUID, Set[str]]:
        """Return the topics of messages of these transactions, recalled ones too, as far back as `recall` searches."""
        async with session(self._pool) as connection:
            cursor = await connection.execute(
                _TOPICS_OF, {"ids": list(ids), "segments": [self._segment.open, self._segment.previous]}
            )
            found: dict[UUID, set[str]] = {}
            for transaction_id, topic in await cursor.fetchall():
                found.setdefault(transaction_id, set()).add(topic)
            return found

    async def left_behind(self, limit: int) -> Sequence[UUID]:
        """Implement `DueMessages.left_behind`."""
        async with session(self._pool) as connection:
            cursor = await connection.execute(_LEFT_BEHIND, (limit,))
            return [transaction_id for (transaction_id,) in await cursor.fetchall()]

    async def _in_open_segment(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except psycopg.errors.DatabaseError as exc:
            if exc.sqlstate != STALE_SEGMENT:
                raise
        # Once: a segment is open for much longer than a call takes, so a second failure is an error.
        await self._segment.refresh()
        return await call()


_TOPICS_OF = """
select found.transaction_id, t.name from (
    select s.transaction_id, s.queue from txmsg.scheduled s where s.transaction_id = any(%(ids)s)
    union select h.transaction_id, h.queue from txmsg.half_message h where h.transaction_id = any(%(ids)s)
    union select m.transaction_id, m.queue from txmsg.message m
     where m.segment = any(%(segments)s || array(select -s from unnest(%(segments)s) s))
       and m.transaction_id = any(%(ids)s)
    union select r.transaction_id, r.queue from txmsg.rolled_back r
     where r.segment = any(%(segments)s) and r.transaction_id = any(%(ids)s)
) found join txmsg.queue q on q.id = found.queue join txmsg.topic t on t.id = q.topic_id
"""

# From key to key, reading only the first row of each: a key may hold back millions.
_LEFT_BEHIND = """
with recursive head as (
    (select h.queue, h.ordering_key, h.order_seq, h.transaction_id
       from txmsg.half_message h where h.decided order by h.queue, h.ordering_key, h.order_seq limit 1)
    union all
    select following.* from head cross join lateral (
        select h.queue, h.ordering_key, h.order_seq, h.transaction_id from txmsg.half_message h
         where h.decided and (h.queue, h.ordering_key) > (head.queue, head.ordering_key)
         order by h.queue, h.ordering_key, h.order_seq limit 1) following
)
select head.transaction_id from head
 where not exists (select from txmsg.half_message h
                    where h.queue = head.queue and h.ordering_key = head.ordering_key and not h.decided
                      and h.order_seq < head.order_seq)
 limit %s
"""
