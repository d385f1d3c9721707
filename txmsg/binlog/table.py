"""Statements on the table of messages as the tailer reads it: queues and their ends, single messages, rows in bulk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

from psycopg import sql

from txmsg.binlog.database import Session
from txmsg.binlog.rows import COLUMNS, TableRow, copied_row
from txmsg.binlog.sink import MessageFingerprint, content_crc
from txmsg.message import QueueId, QueueNumber

_COPY_OFFSETS_MAX = 20_000
_COPY_HEADER_BYTES = 19
"""A signature, flags and an empty extension; then come the rows."""


class MirroredQueue(NamedTuple):
    """A queue that is mirrored. begin, end: the first offset that is kept, and the one after the last."""

    id: QueueId
    topic: str
    number: QueueNumber
    begin: int
    end: int


def queues(session: Session, include: Sequence[str], exclude: Sequence[str]) -> list[MirroredQueue]:
    """Return the queues of all matching topics, with their ends as far as they are visible now."""
    return [MirroredQueue._make(row) for row in session.execute(_QUEUES, (list(include), list(exclude))).fetchall()]


_QUEUES = """
    select q.id, t.name, q.number, coalesce(first.base, 0),
           coalesce((select m.queue_offset + 1 from txmsg.message m
                      where m.segment = o.id and m.queue = q.id order by m.queue_offset desc limit 1),
                    last.base, 0)
      from txmsg.mirrored_queues(%s, %s) q
      join txmsg.topic t on t.id = q.topic_id
      join txmsg.segment o on o.state = 'open'
     cross join (select min(s.id) as id from txmsg.segment s where s.state <> 'ahead' and not s.dropping) f
      left join txmsg.segment_base first on first.segment = f.id and first.queue = q.id
      left join txmsg.segment_base last on last.segment = o.id and last.queue = q.id
     order by t.name, q.number
"""


def first_kept(session: Session, queue_id: int) -> int:
    """Return the first offset of a queue whose segment is kept."""
    ((offset,),) = session.execute("select txmsg.first_kept(%s)", (queue_id,)).fetchall()
    return int(offset)


def is_there(session: Session, queue_id: int) -> bool:
    """Return True if the queue exists; it is deleted with its topic."""
    return session.execute("select from txmsg.queue where id = %s", (queue_id,)).fetchone() is not None


def await_commits(session: Session, queue_id: int) -> None:
    """Wait until running writes to a queue are visible or aborted: writers hold the queue's lock until then.

    A row that waits for its standby has left by replication, and is not visible yet. Raises LockNotAvailable after 30
    s.
    """
    # Writers of the queue hold 7702 exclusively until their commit is visible. Shared here, so that sessions which only
    # wait do not block each other; in autocommit it is released at once.
    session.execute("select pg_advisory_xact_lock_shared(7702, %s %% 1024)", (queue_id,))


def is_quiet(session: Session, queue_id: int) -> bool:
    """Return True if no write to a queue is running, so that all replicated rows are visible. Does not wait."""
    lock = "select pg_try_advisory_xact_lock_shared(7702, %s %% 1024)"
    ((is_locked,),) = session.execute(lock, (queue_id,)).fetchall()
    return bool(is_locked)


def marks_at(session: Session, offsets: Mapping[QueueId, int]) -> dict[QueueId, MessageFingerprint]:
    """Return the fingerprints of the table's messages at these offsets, by queue id; missing ones are left out."""
    found: dict[QueueId, MessageFingerprint] = {}
    with session.cursor(binary=True) as cursor:
        for queue_id, offset, transaction_id, n, *content in cursor.stream(
            _MARKS, (list(offsets), list(offsets.values()))
        ):
            key, tag, headers, body, ordering_key = (value or b"" for value in content)
            row = TableRow(transaction_id.bytes, n, key, tag, headers, body, 0, 0, ordering_key)
            found[queue_id] = MessageFingerprint(offset, row.transaction_id, n, content_crc(row))
    return found


_AT = """
      from unnest(%s::int[], %s::bigint[]) w(queue, queue_offset)
     cross join lateral (
           select s.id from txmsg.segment s
             left join txmsg.segment_base b on b.segment = s.id and b.queue = w.queue
            where s.state <> 'ahead' and not s.dropping and coalesce(b.base, 0) <= w.queue_offset
            order by s.id desc limit 1) s
     cross join lateral (
           select m.* from txmsg.message m
            where m.segment = s.id and m.queue = w.queue and m.queue_offset = w.queue_offset) m
"""
_MARKS = f"""
    select w.queue, m.queue_offset, m.transaction_id, m.n, convert_to(m.key, 'UTF8'), convert_to(m.tag, 'UTF8'),
           m.headers, m.body, convert_to(m.ordering_key, 'UTF8') {_AT}"""


def oldest_age_s(session: Session, offsets: Mapping[QueueId, int]) -> float:
    """Return seconds since the first stored of these messages was stored; 0 if there is none. offsets: by queue id."""
    ((age_s,),) = session.execute(
        f"select coalesce(extract(epoch from now() - min(m.stored_at)), 0)::float8 {_AT}",
        (list(offsets), list(offsets.values())),
    ).fetchall()
    return float(age_s)


class SegmentSpan(NamedTuple):
    """A segment that is kept, and the offset at which a queue starts in it."""

    id: int
    base: int


_SPANS = """
    select s.id, coalesce(b.base, 0)
      from txmsg.segment s left join txmsg.segment_base b on b.segment = s.id and b.queue = %s
     where s.state <> 'ahead' and not s.dropping order by s.id
"""


def rows(session: Session, queue_id: int, begin: int, end: int) -> Generator[tuple[int, TableRow], None, None]:
    """Yield offsets and rows of a queue from `begin` up to, and without, `end`, in order. Missing ones are left out.

    Reads up to 20,000 rows per statement, so that no transaction is open for long; rows between two that are not
    neighbours may have been dropped meanwhile.
    """
    while begin < end:
        segments = [SegmentSpan._make(row) for row in session.execute(_SPANS, (queue_id,)).fetchall()]
        bases = [segment.base for segment in segments]
        # A queue that is younger than a segment has no base in it, which says 0; so the last one that fits is meant.
        place = bisect_right(bases, begin) - 1
        stop = min(end, begin + _COPY_OFFSETS_MAX)
        if place + 1 < len(segments):
            stop = min(stop, bases[place + 1])
        if place >= 0:
            yield from _copy(session, segments[place].id, queue_id, begin, stop)
        begin = max(stop, bases[0])


def _copy(session: Session, segment: int, queue_id: int, begin: int, end: int) -> Iterator[tuple[int, TableRow]]:
    statement = sql.SQL(
        "copy (select {} from txmsg.message where segment = {} and queue = {} and queue_offset >= {} "
        "and queue_offset < {} order by queue_offset) to stdout (format binary)"
    ).format(sql.SQL(", ").join(map(sql.Identifier, COLUMNS)), *map(sql.Literal, (segment, queue_id, begin, end)))
    with session.cursor() as cursor, cursor.copy(statement) as copy:
        first = True
        for data in copy:
            row = bytes(data)
            if first:
                row, first = row[_COPY_HEADER_BYTES:], False
            if row and row != b"\xff\xff":  # the end
                _, offset, content = copied_row(row)
                yield offset, content
