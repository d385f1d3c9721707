"""Single half messages: claims for checks, parking, operators' queries. Implements checker.HalfStore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.rows import class_row, namedtuple_row

from txmsg.administration.halves import HalfMessage, HalfQuery
from txmsg.broker.store import audit
from txmsg.broker.store.access_rules import is_visible
from txmsg.broker.store.body_keys import opened
from txmsg.broker.store.connect import Pool, session
from txmsg.checker.policy import ParkReason
from txmsg.checker.ports import Askable, Claim, DueHalf
from txmsg.message import ReceivedMessage, TransactionId, us_of_datetime
from txmsg.wire.access.rules import ALL_NAMES, Names
from txmsg.wire.codec import unpack_headers
from txmsg.wire.headers import readable_headers


class _ClaimedRow(NamedTuple):
    """A first half that was due. If nothing is due, the one row has None in all columns except `now`."""

    transaction_id: UUID
    n: int
    group_name: str
    fence_id: UUID | None
    checks: int
    age_s: float
    overdue_s: float
    topic: str | None
    key: str | None
    tag: str | None
    headers: bytes | None
    body: bytes
    born_at: datetime
    stored_at: datetime
    was_due_at: datetime
    now: datetime


class HalfMessages:
    """The half messages of one Notify database. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def claim_due(self, askable: Sequence[Askable], *, limit: int, since: datetime | None) -> Claim:
        """Implement `HalfStore.claim_due`. Locks only the rows that it claims, and skips those that others hold."""
        async with session(self._pool) as connection:
            cursor = await connection.execute(_PRODUCERS)
            ids: list[int] = []
            intervals_s: list[float] = []
            for producer, group, fence_id in await cursor.fetchall():
                for client in askable:
                    if (client.group, client.fence_id) == (group, fence_id):
                        ids.append(producer)
                        intervals_s.append(client.interval_s)
            async with connection.cursor(row_factory=class_row(_ClaimedRow)) as claimed:
                await claimed.execute(_CLAIM, {"ids": ids, "intervals": intervals_s, "limit": limit, "since": since})
                rows = await opened(connection, await claimed.fetchall())
        halves = [
            DueHalf(
                transaction_id=TransactionId(row.transaction_id),
                group=row.group_name,
                fence_id=row.fence_id,
                checks=row.checks,
                age_s=row.age_s,
                overdue_s=row.overdue_s,
                message=ReceivedMessage(
                    topic=row.topic,
                    key=row.key,
                    tag=row.tag,
                    headers=unpack_headers(row.headers),
                    body=row.body,
                    id_bytes=row.transaction_id.bytes,
                    born_at_us=us_of_datetime(row.born_at),
                    stored_at_us=us_of_datetime(row.stored_at),
                ),
            )
            for row in rows
            if row.topic is not None
        ]
        # With a full page there may be more that are due: the next claim continues at the last one, else at now.
        through = rows[0].now if len(halves) < limit else max(row.was_due_at for row in rows)
        return Claim(halves=halves, through=through)

    async def park(self, transaction_ids: Sequence[TransactionId], reason: ParkReason) -> None:
        """Implement `HalfStore.park`."""
        async with session(self._pool) as connection:
            await connection.execute(_PARK, {"reason": reason.value, "ids": list(transaction_ids)})

    async def park_abandoned(
        self, *, overdue_s: float, groups: Sequence[str] | None, except_groups: Sequence[str], limit: int
    ) -> int:
        """Implement `HalfStore.park_abandoned`."""
        async with session(self._pool) as connection:
            cursor = await connection.execute(
                _PARK_ABANDONED,
                {
                    "reason": ParkReason.NO_CLIENT.value,
                    "overdue": overdue_s,
                    "groups": None if groups is None else list(groups),
                    "except": list(except_groups),
                    "limit": limit,
                },
            )
            ((parked,),) = await cursor.fetchall()
            return int(parked)

    async def resume(self, *, transaction_id: UUID | None = None, group: str = "") -> int:
        """Restart the checks of parked transactions at once: of one transaction, or of a group. Returns their number.

        Others stay unchanged. The checks come due now, so every broker finds them.
        """
        resumed = 0
        while True:
            # A transaction per portion: a group may have thousands, and a batch that decides one of them waits for
            # these locks.
            async with session(self._pool) as connection, connection.transaction():
                cursor = await connection.execute(
                    _RESUME, {"transaction_id": transaction_id, "group": group, "limit": _RESUME_BATCH}
                )
                ((count,),) = await cursor.fetchall()
                if count:
                    target = group or str(transaction_id)
                    await audit.record(connection, "half.resume", target, after={"transactions": count})
            if not count:
                return resumed
            resumed += count

    async def list(
        self,
        query: HalfQuery,
        *,
        after: tuple[datetime, UUID, int] | None = None,
        size_bytes_max: int,
        groups: Names = ALL_NAMES,
    ) -> tuple[Sequence[HalfMessage], bool]:
        """Return undecided and held-back messages, longest waiting first, and True if more follow.

        Without the number of clients that can answer. after: only those behind this position, of time stored,
        transaction and number in it. groups: those that a query for no group finds. As many as begin within
        size_bytes_max of bodies and headers.
        """
        given = {
            **asdict(query),
            **dict(zip(("after_at", "after_id", "after_n"), after or (None, None, None), strict=True)),
            "size_bytes_max": size_bytes_max,
            **groups._asdict(),
        }
        async with session(self._pool) as connection, connection.cursor(row_factory=namedtuple_row) as cursor:
            await cursor.execute(_LIST, given)
            rows: Sequence[Any] = (await cursor.fetchall())[: query.limit]
            more = bool(rows) and rows[-1].more
            return [_half(row) for row in await opened(connection, rows)], more

    async def held(self, transaction_ids: Sequence[UUID]) -> Mapping[UUID, str]:
        """Return the producer groups of those of these transactions that are undecided here."""
        async with session(self._pool) as connection:
            cursor = await connection.execute(
                "select h.transaction_id, p.group_name from txmsg.half_message h "
                "join txmsg.producer p on p.id = h.producer "
                "where h.transaction_id = any(%s) and h.n = 0 and not h.decided",
                (list(transaction_ids),),
            )
            return dict(await cursor.fetchall())

    async def count(self) -> tuple[int, int]:
        """Return the numbers of undecided transactions, and of those that are parked in doubt."""
        async with session(self._pool) as connection:
            cursor = await connection.execute(
                "select count(*), count(*) filter (where parked_reason is not null) from txmsg.half_message "
                "where n = 0 and not decided"
            )
            ((undecided, parked),) = await cursor.fetchall()
        return undecided, parked


def _half(row: Any) -> HalfMessage:
    values = row._asdict()
    del values["more"]
    return HalfMessage(**values | {"headers": readable_headers(row.headers)})


_PRODUCERS = "select id, group_name, fence_id from txmsg.producer"

# SKIP LOCKED shares due halves among brokers without waits. The claim is next_check_at itself, moved on in the same
# statement: a broker that dies after it holds nothing, and the halves come due again. When nothing is due, one row
# comes that is null except for now().
_CLAIM = """
with due as materialized (
    select h.transaction_id, h.next_check_at
      from txmsg.half_message h
     where h.next_check_at <= now()
       and (%(since)s::timestamptz is null or h.next_check_at >= %(since)s::timestamptz)
       and h.producer = any(%(ids)s::int[])
     order by h.next_check_at
     limit %(limit)s
       for update skip locked
), claimed as (
    update txmsg.half_message h
       set checks = h.checks + 1,
           next_check_at = now() + make_interval(
               secs => (%(intervals)s::float8[])[array_position(%(ids)s::int[], h.producer)])
      from due
     where h.transaction_id = due.transaction_id and h.n = 0
    returning h.*, due.next_check_at as was_due_at
)
select c.transaction_id, c.n, p.group_name, p.fence_id, c.checks,
       extract(epoch from now() - c.stored_at)::float8 as age_s,
       extract(epoch from now() - c.was_due_at)::float8 as overdue_s,
       t.name as topic, c.key, c.tag, c.headers, c.body, c.born_at, c.stored_at, c.was_due_at, now() as now
  from (select 1) as one
  left join claimed c on true
  left join txmsg.producer p on p.id = c.producer
  left join txmsg.queue q on q.id = c.queue
  left join txmsg.topic t on t.id = q.topic_id
"""

# After `changed`: the halves that an operator or a check loop has changed, noted where their topics have a journal.
_JOURNALED = """
journaled as (
    insert into txmsg.journal (segment, at, event, transaction_id, n, group_name, actor, detail)
    select s.id, now(), {event}, c.transaction_id, 0, p.group_name, {actor}, c.parked_reason
      from changed c
      join txmsg.queue q on q.id = c.queue
      join txmsg.topic t on t.id = q.topic_id and t.journal_since is not null
      join txmsg.producer p on p.id = c.producer
      join txmsg.segment s on s.state = 'open'
)
select count(*) from changed
"""

# A transaction may have been committed and held back by its ordering key since it was claimed: it stays, as its check
# state is over. By case, not `not h.decided`: that would imply the condition of half_message_undecided, which the
# planner would then read as a whole (see the head of batch.sql).
_PARK = f"""
with changed as (
    update txmsg.half_message h set next_check_at = null, parked_reason = %(reason)s
     where h.transaction_id = any(%(ids)s) and h.n = 0 and case when h.decided then false else true end
    returning h.transaction_id, h.queue, h.producer, h.parked_reason
), {_JOURNALED.format(event="'parked'", actor="null")}"""

_PARK_ABANDONED = f"""
with abandoned as materialized (
    select h.transaction_id
      from txmsg.half_message h join txmsg.producer p on p.id = h.producer
     where h.next_check_at < now() - make_interval(secs => %(overdue)s)
       and (%(groups)s::text[] is null and p.group_name <> all (%(except)s::text[])
            or p.group_name = any(%(groups)s::text[]))
     order by h.next_check_at
     limit %(limit)s
       for update of h skip locked
), changed as (
    update txmsg.half_message h set next_check_at = null, parked_reason = %(reason)s
      from abandoned where h.transaction_id = abandoned.transaction_id and h.n = 0
    returning h.transaction_id, h.queue, h.producer, h.parked_reason
), {_JOURNALED.format(event="'parked'", actor="null")}"""

_RESUME_BATCH = 1000

# Locks in the order of the ids, as a batch does that decides some of them meanwhile, and waits for it.
_RESUME = f"""
with parked as materialized (
    select h.transaction_id
      from txmsg.half_message h join txmsg.producer p on p.id = h.producer
     where h.parked_reason is not null
       and (%(transaction_id)s::uuid is null or h.transaction_id = %(transaction_id)s::uuid)
       and (%(group)s = '' or p.group_name = %(group)s)
     order by h.transaction_id
     limit %(limit)s
       for update of h
), changed as (
    update txmsg.half_message h set next_check_at = now(), checks = 0, parked_reason = null
      from parked where h.transaction_id = parked.transaction_id and h.n = 0
    returning h.transaction_id, h.queue, h.producer, h.parked_reason
), {_JOURNALED.format(event="'resumed'", actor="'operator'")}"""

# `through` minus the row's own size is the size of those in front: the first one is always listed, so that each page
# advances.
_LIST = f"""
with found as materialized (
    select h.transaction_id, h.n, t.name as topic, coalesce(p.group_name, '') as group_name, p.fence_id, h.key, h.tag,
           h.headers, h.queue, h.ordering_key, h.order_seq, h.decided, h.deliver_at,
           case when %(with_bodies)s then h.body else '' end as body, h.born_at,
           h.stored_at, h.next_check_at, h.checks, h.parked_reason
      from txmsg.half_message h
      left join txmsg.producer p on p.id = h.producer  -- a plain message that waits for its key has none
      join txmsg.queue q on q.id = h.queue
      join txmsg.topic t on t.id = q.topic_id
     where (%(group)s = '' or p.group_name = %(group)s)
       and {is_visible("coalesce(p.group_name, '')")}
       and (not %(parked_only)s or h.parked_reason is not null)
       and (%(transaction_id)s::uuid is null or h.transaction_id = %(transaction_id)s::uuid)
       and (%(after_at)s::timestamptz is null
            or (h.stored_at, h.transaction_id, h.n) > (%(after_at)s::timestamptz, %(after_id)s::uuid, %(after_n)s::int))
     order by h.stored_at, h.transaction_id, h.n
     limit %(limit)s + 1
), sized as (
    select f.*, sum(octet_length(f.body) + coalesce(octet_length(f.headers), 0)) over w as through,
           row_number() over w < count(*) over () as more
      from found f window w as (order by f.stored_at, f.transaction_id, f.n)
)
select s.transaction_id, s.n, s.topic, s.group_name as "group", s.fence_id, s.key, s.tag, s.headers, s.body, s.born_at,
       s.stored_at, s.next_check_at, s.checks, s.parked_reason, s.more, s.ordering_key, s.decided as committed,
       s.deliver_at,
       (select h.transaction_id from txmsg.half_message h
         where s.decided and h.queue = s.queue and h.ordering_key = s.ordering_key and not h.decided
           and h.order_seq < s.order_seq order by h.order_seq limit 1) as held_back_by
  from sized s
 where s.through - octet_length(s.body) - coalesce(octet_length(s.headers), 0) <= %(size_bytes_max)s
 order by s.stored_at, s.transaction_id, s.n
"""
