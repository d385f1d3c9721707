"""Statements of delivery, except those on failures. One function, one statement; the caller owns the transaction.

Ids and offsets are passed as arrays and compared by any(), never through a join with unnest on a large table: with
statistics that say "empty" such a join reads the whole table. Statements on a partition name it and are planned each
time (prepare=False): a plan made while the partition was small would be kept while it grows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from struct import Struct
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from psycopg import AsyncCursor, adapters, sql
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq import Format
from psycopg.rows import AsyncRowFactory, scalar_row, tuple_row

from txmsg.broker.store.connect import Connection
from txmsg.broker.store.prepared import PreparedConnection
from txmsg.broker.store.rows import Generations, StoredRow
from txmsg.message import Offset, QueueId

T = TypeVar("T")

# The driver's own C loaders for int8 and bytea, used for timestamps and uuids: microseconds since 2000 and 16 bytes
# as they come over the wire. Making datetime and UUID objects would take longer than all the rest of a read.
_INT8 = adapters.get_loader(adapters.types["int8"].oid, Format.BINARY)
_BYTEA = adapters.get_loader(adapters.types["bytea"].oid, Format.BINARY)
assert _INT8 is not None
assert _BYTEA is not None
_RAW_LOADERS = ((adapters.types["timestamptz"].oid, _INT8), (adapters.types["uuid"].oid, _BYTEA))

MESSAGE_COLUMNS = sql.SQL(", ").join(
    sql.Identifier("queue_offset" if name == "offset" else name.removesuffix("_2000_us")) for name in StoredRow._fields
)
"""The columns of a `StoredRow`, in its order."""


def plain_cursor(conn: Connection) -> AsyncCursor[tuple[Any, ...]]:
    return conn.cursor(binary=True, row_factory=tuple_row)


def scalar_cursor(conn: Connection) -> AsyncCursor[Any]:
    """Return a cursor whose rows are the values of a single column."""
    return conn.cursor(binary=True, row_factory=scalar_row)


def raw_cursor(conn: Connection, row_factory: AsyncRowFactory[T]) -> AsyncCursor[T]:
    """Return a cursor that reads times as microseconds since 2000, and ids as 16 bytes."""
    cursor = conn.cursor(binary=True, row_factory=row_factory)
    for oid, loader in _RAW_LOADERS:
        cursor.adapters.register_loader(oid, loader)
    return cursor


class _RawContext:
    """The context in which the driver loads results of statements that run without a cursor, as `raw_cursor` does."""

    adapters = AdaptersMap(adapters)
    connection = None


for _oid, _loader in _RAW_LOADERS:
    _RawContext.adapters.register_loader(_oid, _loader)
_INT8_OIDS = (adapters.types["int8"].oid,) * 4
_INT8_OF = Struct(">q").pack
# One int8 loader and one tuple constructor for each row: this is the hot path of delivery (decision 10).
_MAKE_ROW: Callable[[Sequence[Any]], StoredRow] = partial(
    tuple.__new__, StoredRow
)  # _make would take a frame of Python per row


# ---- cursors


class CursorRow(NamedTuple):
    """The position of a group in a queue."""

    queue_id: QueueId
    next_offset: Offset
    acked: list[tuple[int, int]]
    generations: Generations
    held_s: float
    """Seconds for which consumers may still hold ordered messages that another broker, or an earlier epoch, gave
    them."""
    held_by: Collection[str]
    """Client ids of these consumers; empty if unknown."""


async def cursor_epochs(conn: Connection, group: int, queue_ids: Sequence[QueueId]) -> dict[QueueId, int]:
    """Return the epochs under which a group's cursors were claimed last. Locks their rows in queue order."""
    cursor = await plain_cursor(conn).execute(
        "select queue_id, epoch from txmsg.cursor where group_id = %s and queue_id = any(%s) "
        "order by queue_id for update",
        (group, list(queue_ids)),
    )
    return {queue_id: epoch for queue_id, epoch in await cursor.fetchall()}


async def claim_cursors(
    conn: Connection,
    incarnation: UUID | None,
    group: int,
    queues: Sequence[tuple[QueueId, int]],
    *,
    forward_s: float | None = None,
) -> list[CursorRow]:
    """Claim a group's cursors in (queue id, lease epoch), and return them. Older epochs cannot write them any more.

    A queue new to the group starts at the earliest message that is kept; one for which an operator has requested a seek
    continues there. A cursor with a younger epoch is left out. incarnation: of the database; OTHER_INCARNATION if it is
    not current. forward_s: the time of the database's clock, in s since 1970, after it was set forward. The time until
    which consumers may hold messages was noted by that clock: if it was noted before the step, they may hold them for
    its full length, from now on. That is stored, else each broker that gets the queue would wait from the beginning.
    Locks the cursor rows in queue order.
    """
    cursor = await plain_cursor(conn).execute(
        """
        insert into txmsg.cursor as c (group_id, queue_id, next_offset, epoch)
        select %(group)s, q.id, txmsg.first_kept(q.id), q.epoch
          from unnest(%(queue_ids)s::int[], %(epochs)s::bigint[]) q(id, epoch)
         where txmsg.require_incarnation(%(incarnation)s)
         order by q.id
        on conflict (group_id, queue_id) do update
           set epoch = excluded.epoch, next_offset = coalesce(c.seek_to, c.next_offset), seek_to = null,
               acked = case when c.seek_to is null then c.acked else '{}' end,
               held_until = case
                   when c.held_until > now() + make_interval(secs => c.held_s)
                     or c.held_until - make_interval(secs => c.held_s) < to_timestamp(%(forward_s)s)
                        and now() < to_timestamp(%(forward_s)s) + make_interval(secs => c.held_s)
                   then now() + make_interval(secs => c.held_s) else c.held_until end
         where c.epoch <= excluded.epoch
        returning c.queue_id, c.next_offset, c.acked, c.again_from, c.again_generations,
                  greatest(extract(epoch from c.held_until - now()), 0)::float8, coalesce(c.held_by, '[]')
        """,
        {
            "incarnation": incarnation,
            "group": group,
            "queue_ids": [queue_id for queue_id, _ in queues],
            "epochs": [epoch for _, epoch in queues],
            "forward_s": forward_s,
        },
    )
    return [
        CursorRow(
            *(queue_id, next_offset, [(r.lower, r.upper) for r in acked], Generations(again_from, again)),
            *(held_s, held_by),
        )
        for queue_id, next_offset, acked, again_from, again, held_s, held_by in await cursor.fetchall()
    ]


async def sought_queues(conn: Connection, group: int) -> list[QueueId]:
    """Return the queues of a group with a seek that an operator has requested and no broker has carried out yet."""
    cursor = await plain_cursor(conn).execute(
        "select queue_id from txmsg.cursor where group_id = %s and seek_to is not null", (group,)
    )
    return [queue_id for (queue_id,) in await cursor.fetchall()]


async def failed_offsets(
    conn: Connection, group: int, queue_ids: Sequence[QueueId], since: Sequence[int]
) -> list[tuple[QueueId, Offset]]:
    """Return (queue id, offset) of the group's retries and dead letters from `since` on, one offset per queue id."""
    # A lateral join per queue, not any(): each queue has its own `since`, and each half of the union is a range of a
    # primary key.
    cursor = await plain_cursor(conn).execute(
        """
        select f.queue_id, f.queue_offset
          from unnest(%(queue_ids)s::int[], %(since)s::bigint[]) q(id, since)
         cross join lateral (
               select r.queue_id, r.queue_offset from txmsg.retry r
                where r.group_id = %(group)s and r.queue_id = q.id and r.queue_offset >= q.since
               union
               select d.queue_id, d.queue_offset from txmsg.dead_letter d
                where d.group_id = %(group)s and d.queue_id = q.id and d.queue_offset >= q.since) f
        """,
        {"group": group, "queue_ids": list(queue_ids), "since": list(since)},
    )
    return [(queue_id, offset) for queue_id, offset in await cursor.fetchall()]


class CursorWrite(NamedTuple):
    """The position of a group in a queue, as the holder of the queue's lease knows it."""

    group_id: int
    queue_id: QueueId
    epoch: int
    next_offset: int
    acked: Sequence[tuple[int, int]]


async def write_cursors(
    conn: Connection, incarnation: UUID | None, broker_id: str, cursors: Sequence[CursorWrite]
) -> set[tuple[int, QueueId]]:
    """Write a broker's cursors. Returns (group id, queue id) of those that were written.

    One whose queue is leased under another epoch, or not at all, is not written; nor is one that was claimed under
    another epoch, which is what holds when the lease is taken at this very moment. incarnation: of the database;
    OTHER_INCARNATION if it is not current.
    """
    # Both conditions are needed. The lease alone would let a cursor through that the next broker has claimed since this
    # statement's snapshot; the epoch of the cursor alone one whose lease was given away and whose cursor was not
    # claimed yet.
    cursor = await plain_cursor(conn).execute(
        """
        update txmsg.cursor c
           set next_offset = f.next_offset, acked = f.acked::int8multirange, updated_at = now()
          from unnest(%(groups)s::int[], %(queue_ids)s::int[], %(epochs)s::bigint[], %(next_offsets)s::bigint[],
                      %(acked)s::text[]) f(group_id, queue_id, epoch, next_offset, acked)
         where c.group_id = f.group_id and c.queue_id = f.queue_id and c.epoch = f.epoch
           and exists (select from txmsg.queue_lease l
                        where l.queue_id = f.queue_id and l.epoch = f.epoch and l.broker_id = %(broker_id)s)
           and txmsg.require_incarnation(%(incarnation)s)
        returning c.group_id, c.queue_id
        """,
        {
            "incarnation": incarnation,
            "broker_id": broker_id,
            "groups": [write.group_id for write in cursors],
            "queue_ids": [write.queue_id for write in cursors],
            "epochs": [write.epoch for write in cursors],
            "next_offsets": [write.next_offset for write in cursors],
            # As text and cast by the statement: psycopg would make an object for each range.
            "acked": ["{" + ",".join(f"[{start},{end})" for start, end in write.acked) + "}" for write in cursors],
        },
    )
    return {(group, queue_id) for group, queue_id in await cursor.fetchall()}


async def note_held(  # noqa: PLR0917
    conn: Connection,
    incarnation: UUID | None,
    broker_id: str,
    cursors: Sequence[tuple[int, QueueId, int]],
    held_s: float | None,
    held_by: Sequence[Collection[str]] = (),
) -> set[tuple[int, QueueId]]:
    """Note for (group id, queue id, epoch) how long from now consumers may hold ordered messages. None: none any more.

    held_by: for each of them the client ids of these consumers. Returns (group id, queue id) of those that were noted:
    the leases of the others are over. incarnation: of the database; OTHER_INCARNATION if it is not current.
    """
    cursor = await plain_cursor(conn).execute(
        """
        update txmsg.cursor c set held_until = now() + make_interval(secs => %(held_s)s), held_s = %(held_s)s,
               held_by = f.held_by::jsonb
          from unnest(%(groups)s::int[], %(queue_ids)s::int[], %(epochs)s::bigint[], %(held_by)s::text[])
                      f(group_id, queue_id, epoch, held_by)
         where c.group_id = f.group_id and c.queue_id = f.queue_id and c.epoch = f.epoch
           and exists (select from txmsg.queue_lease l
                        where l.queue_id = f.queue_id and l.epoch = f.epoch and l.broker_id = %(broker_id)s)
           and txmsg.require_incarnation(%(incarnation)s)
        returning c.group_id, c.queue_id
        """,
        {
            "incarnation": incarnation,
            "broker_id": broker_id,
            "groups": [group for group, _, _ in cursors],
            "queue_ids": [queue_id for _, queue_id, _ in cursors],
            "epochs": [epoch for _, _, epoch in cursors],
            "held_s": held_s,
            # JSON in text[], because PostgreSQL's arrays of arrays are rectangular and these lists differ in length.
            "held_by": [json.dumps(sorted(clients)) for clients in held_by],
        },
    )
    return {(group, queue_id) for group, queue_id in await cursor.fetchall()}


# ---- reading queues


class SegmentStart(NamedTuple):
    """A segment that is or was in use, and the offset at which a queue starts in it.

    segment: -N for a queue in memory, whose messages are stored apart from the others of segment N.
    """

    segment: int
    base: int


async def open_segment(conn: Connection) -> int:
    """Return the id of the open segment, which takes messages."""
    cursor = await scalar_cursor(conn).execute("select id from txmsg.segment where state = 'open'")
    segment: int | None = await cursor.fetchone()
    assert segment is not None, "there is always one open segment: migration 0001 opens the first"
    return segment


async def segments_of_queue(conn: Connection, queue_id: QueueId) -> list[SegmentStart]:
    """Return the kept segments, oldest first, with the queue's start in each; without those being dropped."""
    cursor = await plain_cursor(conn).execute(
        """
        select case when t.durability = 'memory' then -s.id else s.id end, coalesce(b.base, 0)
          from txmsg.queue q join txmsg.topic t on t.id = q.topic_id
         cross join txmsg.segment s left join txmsg.segment_base b on b.segment = s.id and b.queue = %(queue_id)s
         where q.id = %(queue_id)s and s.state <> 'ahead' and not s.dropping order by s.id
        """,
        {"queue_id": queue_id},
    )
    return [SegmentStart(segment, base) for segment, base in await cursor.fetchall()]


def partition(segment: int) -> sql.Identifier:
    """Return the table of a segment; for one in memory the root table.

    A segment has a table for memory topics only if there are such topics; the root finds it, or nothing.
    """
    return sql.Identifier("txmsg", f"message_{segment}" if segment > 0 else "message")


QUEUE_END = sql.SQL(
    """
    coalesce(
        (select m.queue_offset + 1 from {partition} m
          where m.segment = {segment} and m.queue = q.id order by m.queue_offset desc limit 1),
        (select m.queue_offset + 1 from txmsg.message m
          where m.segment = -{segment} and m.queue = q.id order by m.queue_offset desc limit 1),
        (select b.base from txmsg.segment_base b where b.segment = {segment} and b.queue = q.id), 0)
    """
)
"""SQL for the offset after the last message of queue q.id; `segment` is the open one, `partition` its table."""


@lru_cache(maxsize=256)
def _queue_ends_in(segment: int) -> sql.Composed:
    end = QUEUE_END.format(partition=partition(segment), segment=sql.Literal(segment))
    return sql.SQL("select q.id, {end} from unnest(%s::int[]) q(id)").format(end=end)


async def queue_ends(conn: Connection, segment: int, queue_ids: Sequence[QueueId]) -> dict[int, int]:
    """Return the offset after the last message of each queue, by one index descent each.

    segment: the open one.
    """
    cursor = await plain_cursor(conn).execute(_queue_ends_in(segment), (list(queue_ids),), prepare=False)
    return {queue_id: end for queue_id, end in await cursor.fetchall()}


# The bound on bytes is applied in the database, by a running sum, so that what exceeds it is never sent.
@lru_cache(maxsize=256)
def _read_messages_in(segment: int) -> bytes:
    statement = sql.SQL(
        """
        select {columns} from (
            select m.*, sum(octet_length(m.body) + coalesce(octet_length(m.headers), 0))
                        over (order by m.queue_offset rows between unbounded preceding and 1 preceding) as before
              from {partition} m
             where m.segment = {segment} and m.queue = $1 and m.queue_offset >= $2 and m.queue_offset < $3) m
         where m.before is null or m.before < $4 order by m.queue_offset
        """
    ).format(
        columns=MESSAGE_COLUMNS,
        partition=partition(segment),
        segment=sql.Literal(segment),
    )
    return statement.as_bytes(None)


async def read_messages(
    conn: Connection, segment: int, queue_id: QueueId, start: int, *, count: int, size_bytes: int
) -> list[StoredRow]:
    """Return up to `count` messages of a queue from offset `start`, in order, while they begin within size_bytes.

    Sizes are bodies and headers; the first message is always returned. Offsets are dense, so a range of offsets is a
    count. UndefinedTable: the segment is dropped.
    """
    assert isinstance(conn, PreparedConnection)  # not a cursor, which needs more system calls to read the socket
    values = [_INT8_OF(value) for value in (queue_id, start, start + count, size_bytes)]
    result = await conn.fetch(_read_messages_in(segment), _INT8_OIDS, values)
    loader = Transformer(_RawContext())
    loader.set_pgresult(result)
    return loader.load_rows(0, result.ntuples, _MAKE_ROW)
