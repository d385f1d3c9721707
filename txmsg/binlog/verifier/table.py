"""Reads the messages of a Notify database by plain SQL. Imports nothing of the broker or the tailer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import sql

from txmsg.binlog.verifier.mirror import Row
from txmsg.errors import StorageError
from txmsg.runtime.postgres import connect

_CONNECT_TIMEOUT_S: Final = 30

_QUEUES: Final = """
select t.name, q.number, q.id from txmsg.topic t join txmsg.queue q on q.topic_id = t.id
 where t.durability <> 'memory' order by t.name, q.number"""
_SEGMENTS: Final = "select id from txmsg.segment where state <> 'ahead' and not dropping order by id"
# Offsets begin where the oldest segment begins; a queue that is younger than it begins at 0.
_BEGINS: Final = """
select q.id, coalesce((select b.base from txmsg.segment_base b where b.segment = %s and b.queue = q.id), 0)
  from unnest(%s::int[]) q(id)"""
_LASTS: Final = """
select q.id, (select m.queue_offset from txmsg.message m where m.segment = %s and m.queue = q.id
               order by m.queue_offset desc limit 1)
  from unnest(%s::int[]) q(id)"""
# Segment by segment, so that the primary key gives the order.
_ROWS: Final = sql.SQL("""
copy (select queue_offset, uuid_send(transaction_id), n, coalesce(convert_to(key, 'UTF8'), ''),
             coalesce(convert_to(tag, 'UTF8'), ''), coalesce(convert_to(ordering_key, 'UTF8'), ''),
             coalesce(headers, ''), body, (extract(epoch from born_at) * 1000000)::bigint,
             (extract(epoch from stored_at) * 1000000)::bigint
        from txmsg.message
       where segment = {segment} and queue = {queue} and queue_offset >= {begin} and queue_offset < {end}
       order by queue_offset) to stdout (format binary)""")
_TYPES: Final = ("int8", "bytea", "int2", "bytea", "bytea", "bytea", "bytea", "bytea", "int8", "int8")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as exc:
        told = "; ".join(filter(None, map(str.strip, str(exc).splitlines())))
        raise StorageError(f"the Notify database cannot be read: {told}; check the URL, and the role's rights") from exc


@dataclass(frozen=True, slots=True)
class TableQueue:
    """A queue as the database names it."""

    topic: str
    number: int
    id: int


class MessageTable:
    """The table `message`. One connection; a transaction stays open only while one segment of a queue is read."""

    def __init__(self, storage: str) -> None:
        with _translated():
            self._connection = connect(storage, connect_timeout=_CONNECT_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        with _translated():
            self._connection.close()
            if isinstance(value, psycopg.Error):
                raise value

    def queues(self) -> list[TableQueue]:
        """Return all queues except those of topics in memory, which are not mirrored."""
        return [TableQueue(*row) for row in self._connection.execute(_QUEUES)]

    def patterns(self, mirror: str) -> tuple[list[str], list[str]]:
        """Return the patterns of topics that a mirror holds, and of those that it leaves out; all topics for an unknown
        mirror.
        """
        found = self._connection.execute(
            "select include, exclude from txmsg.mirror where name = %s", (mirror,)
        ).fetchone()
        return found or (["*"], [])

    def begins(self, queues: Sequence[TableQueue]) -> dict[TableQueue, int]:
        """Return the first offset of each queue, or the one that its first message will have."""
        oldest = self._segments()[0]
        begins: dict[int, int] = dict(
            self._connection.execute(_BEGINS, (oldest, [queue.id for queue in queues])).fetchall()
        )
        return {queue: begins[queue.id] for queue in queues}

    def ends(self, queues: Sequence[TableQueue]) -> dict[TableQueue, int]:
        """Return the offset after the last one of each queue."""
        segments = self._segments()
        newest = segments[-1]
        ends: dict[int, int] = dict(
            self._connection.execute(_BEGINS, (newest, [queue.id for queue in queues])).fetchall()
        )
        for segment in (newest, *segments[:-1][-1:]):  # a rotation may come between the statements
            lasts = self._connection.execute(_LASTS, (segment, [queue.id for queue in queues])).fetchall()
            ends |= {id: max(ends[id], last + 1) for id, last in lasts if last is not None}
        return {queue: ends[queue.id] for queue in queues}

    def rows(self, queue: TableQueue, begin: int, end: int) -> Iterator[Row]:
        """Yield the messages from `begin` to before `end`, in their order."""
        for segment in self._segments():
            statement = _ROWS.format(segment=segment, queue=queue.id, begin=begin, end=end)
            with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.set_types(_TYPES)
                yield from copy.rows()

    def _segments(self) -> list[int]:
        return [id for (id,) in self._connection.execute(_SEGMENTS)]
