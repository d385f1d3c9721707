"""Compares what a log has of queues with the table, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from txmsg.binlog import table
from txmsg.binlog.database import Session
from txmsg.binlog.resume import GoOn, Verdict, first_difference, verdict
from txmsg.binlog.sink import REFUSALS, Mark, OffsetRange, Sink, content_crc
from txmsg.binlog.table import TableQueue
from txmsg.errors import MirrorDiverged
from txmsg.message import QueueId, QueueNumber


class Compared(NamedTuple):
    """A queue, what the log has of it, and how that compares with the table."""

    queue: TableQueue
    in_log: OffsetRange
    go_on: GoOn

    @property
    def is_diverged(self) -> bool:
        """Whether an operator has to decide."""
        return self.go_on.verdict in (Verdict.BEHIND, Verdict.DIFFERS)


class Refused(NamedTuple):
    """A queue that the log says nothing of, and why."""

    queue: TableQueue
    error: Exception


class Divergence(NamedTuple):
    """Where log and table begin to differ. log_end, table_end: the offsets after their last messages."""

    topic: str
    number: QueueNumber
    offset: int
    log_end: int
    table_end: int

    def error(self, log: str) -> MirrorDiverged:
        """What to tell an operator; `log` is its name."""
        return MirrorDiverged(
            f"topic {self.topic} queue {self.number}: from offset {self.offset} on, the log {log} (to "
            f"{self.log_end - 1}) and the table (to {self.table_end - 1}) hold different messages, as after a "
            "restored backup, a promoted standby, or a topic that was deleted and recreated; nothing of the queue is "
            "written. If the table is right, stop the tailer, and run `txmsg tailer fork`",
            self.topic,
            self.number,
            self.offset,
        )


def compare(session: Session, sink: Sink, queues: Sequence[TableQueue]) -> Iterator[Compared | Refused]:
    """Compares each queue at the log's end: by the message, for numbers alone mislead. In their order."""
    in_log: dict[QueueId, OffsetRange] = {}
    log_marks: dict[QueueId, Mark] = {}
    refusals: dict[QueueId, Exception] = {}
    for queue in queues:
        try:
            in_log[queue.id] = sink.range(queue.topic, queue.number)
            if (mark := _last_mark(sink, queue, in_log[queue.id])) is not None:
                log_marks[queue.id] = mark
        except REFUSALS as exc:
            refusals[queue.id] = exc
    table_marks = table.marks_at(session, {queue_id: mark.offset for queue_id, mark in log_marks.items()})
    for queue in queues:
        if queue.id in refusals:
            yield Refused(queue, refusals[queue.id])
            continue
        mark = log_marks.get(queue.id)
        go_on = verdict(in_log[queue.id], OffsetRange(queue.begin, queue.end), mark, table_marks.get(queue.id))
        compared = Compared(queue, in_log[queue.id], go_on)
        yield _looked_again(session, compared, mark) if compared.is_diverged else compared


def _last_mark(sink: Sink, queue: TableQueue, in_log: OffsetRange) -> Mark | None:
    if in_log.begin == in_log.end:
        return None
    return next(sink.marks(queue.topic, queue.number, in_log.end - 1, in_log.end), None)


def _looked_again(session: Session, compared: Compared, mark: Mark | None) -> Compared:
    """After the commits under way: what waits for a standby has come by replication, and is not visible yet."""
    queue = compared.queue
    table.await_commits(session, queue.id)
    found = table.queues(session, [queue.topic], [])
    queue = next((other for other in found if other.id == queue.id), queue._replace(end=0))
    there = {} if mark is None else table.marks_at(session, {queue.id: mark.offset})
    in_table = OffsetRange(queue.begin, queue.end)
    return Compared(queue, compared.in_log, verdict(compared.in_log, in_table, mark, there.get(queue.id)))


def divergence(session: Session, sink: Sink, compared: Compared) -> Divergence:
    """Where a queue that has diverged begins to differ: all that both have of it is compared."""
    queue, (log_begin, log_end) = compared.queue, compared.in_log
    begin = max(log_begin, queue.begin)
    if queue.end <= begin:  # they have nothing in common
        return Divergence(queue.topic, queue.number, queue.begin, log_end, queue.end)
    in_table = (
        Mark(offset, row.transaction_id, row.n, content_crc(row))
        for offset, row in table.rows(session, queue.id, begin, min(log_end, queue.end))
    )
    offset = first_difference(sink.marks(queue.topic, queue.number, begin, log_end), in_table, log_end)
    return Divergence(queue.topic, queue.number, offset, log_end, queue.end)
