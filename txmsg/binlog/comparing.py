"""Compares what a log has of queues with the table, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from txmsg.binlog import table
from txmsg.binlog.database import Session
from txmsg.binlog.resume import GoOn, Verdict, first_difference, verdict
from txmsg.binlog.sink import REFUSALS, Mark, Sink, content_crc
from txmsg.binlog.table import TableQueue
from txmsg.errors import MirrorDiverged

__all__ = ["Compared", "Divergence", "Refused", "compare", "divergence"]


class Compared(NamedTuple):
    """A queue, what the log has of it (first offset, and the one after the last), and how that stands to the table."""

    queue: TableQueue
    in_log: tuple[int, int]
    go_on: GoOn

    @property
    def is_diverged(self) -> bool:
        """Whether a person has to decide."""
        return self.go_on.verdict in (Verdict.BEHIND, Verdict.DIFFERS)


class Refused(NamedTuple):
    """A queue that the log says nothing of, and why."""

    queue: TableQueue
    error: Exception


class Divergence(NamedTuple):
    """Where log and table begin to differ. log_end, table_end: the offsets after their last messages."""

    topic: str
    queue: int
    offset: int
    log_end: int
    table_end: int

    def error(self, log: str) -> MirrorDiverged:
        """What to tell an operator; `log` is its name."""
        return MirrorDiverged(
            f"topic {self.topic} queue {self.queue}: from offset {self.offset} on, the log {log} (to "
            f"{self.log_end - 1}) and the table (to {self.table_end - 1}) hold different messages, as after a "
            "restored backup, a promoted standby, or a topic that was deleted and recreated; nothing of the queue is "
            "written. If the table is right, stop the tailer, and run `txmsg tailer fork`",
            self.topic,
            self.queue,
            self.offset,
        )


def compare(session: Session, sink: Sink, queues: Sequence[TableQueue]) -> Iterator[Compared | Refused]:
    """Compares each queue at the log's end: by the message, for numbers alone mislead. In their order."""
    in_log: dict[int, tuple[int, int]] = {}
    log_marks: dict[int, Mark] = {}
    refusals: dict[int, Exception] = {}
    for each in queues:
        try:
            in_log[each.id] = sink.range(each.topic, each.number)
            if (mark := _last_mark(sink, each, in_log[each.id])) is not None:
                log_marks[each.id] = mark
        except REFUSALS as exc:
            refusals[each.id] = exc
    table_marks = table.marks_at(session, {queue: mark.offset for queue, mark in log_marks.items()})
    for each in queues:
        if each.id in refusals:
            yield Refused(each, refusals[each.id])
            continue
        mark = log_marks.get(each.id)
        go_on = verdict(in_log[each.id], (each.begin, each.end), mark, table_marks.get(each.id))
        compared = Compared(each, in_log[each.id], go_on)
        yield _looked_again(session, compared, mark) if compared.is_diverged else compared


def _last_mark(sink: Sink, each: TableQueue, in_log: tuple[int, int]) -> Mark | None:
    begin, end = in_log
    return None if begin == end else next(sink.marks(each.topic, each.number, end - 1, end), None)


def _looked_again(session: Session, compared: Compared, mark: Mark | None) -> Compared:
    """After the commits under way: what waits for a standby has come by replication, and is not visible yet."""
    each = compared.queue
    table.await_commits(session, each.id)
    found = table.queues(session, [each.topic], [])
    each = next((other for other in found if other.id == each.id), each._replace(end=0))
    there = {} if mark is None else table.marks_at(session, {each.id: mark.offset})
    return Compared(each, compared.in_log, verdict(compared.in_log, (each.begin, each.end), mark, there.get(each.id)))


def divergence(session: Session, sink: Sink, compared: Compared) -> Divergence:
    """Where a queue that has diverged begins to differ: all that both have of it is compared."""
    queue, (log_begin, log_end) = compared.queue, compared.in_log
    begin = max(log_begin, queue.begin)
    if queue.end <= begin:  # they have nothing in common
        return Divergence(queue.topic, queue.number, queue.begin, log_end, queue.end)
    in_table = (
        Mark(offset, row[0], row[1], content_crc(row))
        for offset, row in table.rows(session, queue.id, begin, min(log_end, queue.end))
    )
    offset = first_difference(sink.marks(queue.topic, queue.number, begin, log_end), in_table, log_end)
    return Divergence(queue.topic, queue.number, offset, log_end, queue.end)
