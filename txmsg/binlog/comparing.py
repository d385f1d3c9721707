"""Compares what a log has of queues with the table, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from txmsg.binlog import table
from txmsg.binlog.database import Session
from txmsg.binlog.mirrors import MirrorRow, TailerMirror
from txmsg.binlog.resume import QueueComparison, ResumePoint, first_difference, verdict
from txmsg.binlog.sink import MessageFingerprint, MirrorSink, OffsetRange, QueueTail, content_crc
from txmsg.binlog.table import MirroredQueue
from txmsg.errors import MirrorDiverged, NotLeader
from txmsg.message import QueueNumber


class Compared(NamedTuple):
    """A queue, what the log has of it, and how that compares with the table."""

    queue: MirroredQueue
    in_log: OffsetRange
    go_on: ResumePoint

    @property
    def is_diverged(self) -> bool:
        """True if an operator has to decide how to continue the queue."""
        return self.go_on.verdict in (QueueComparison.BEHIND, QueueComparison.DIFFERS)


class RefusedQueue(NamedTuple):
    """A queue that the log refuses to describe, and why."""

    queue: MirroredQueue
    error: Exception


class Divergence(NamedTuple):
    """The place where a queue's log and table begin to differ. log_end, table_end: the offsets after their last
    messages.
    """

    topic: str
    number: QueueNumber
    offset: int
    log_end: int
    table_end: int

    def error(self, log: str) -> MirrorDiverged:
        """Return the error to show an operator. log: the log's name."""
        return MirrorDiverged(
            f"topic {self.topic} queue {self.number}: from offset {self.offset} on, the log {log} (to "
            f"{self.log_end - 1}) and the table (to {self.table_end - 1}) hold different messages, as after a "
            "restored backup, a promoted standby, or a topic that was deleted and recreated; nothing of the queue is "
            "written. If the table is right, stop the tailer, and run `txmsg tailer fork`",
            self.topic,
            self.number,
            self.offset,
        )


def require_latest(sink: MirrorSink, mirror: MirrorRow | None) -> None:
    """Raise NotLeader if the log continues elsewhere, under a later generation than its own."""
    if mirror is None or mirror.log_id != sink.log_id or (mirror.generation or 0) <= sink.generation:
        return
    raise NotLeader(
        f"the log {sink.name} has generation {sink.generation}, and mirror {mirror.name} has written to generation "
        f"{mirror.generation} of it at {mirror.log}, as after a copy was promoted: give --metaq the address of that "
        "one. If it is gone, and this one is to go on, run `txmsg tailer drop`, and start the tailer again"
    )


def compare(
    session: Session, sink: MirrorSink, mirrors: TailerMirror, queues: Sequence[MirroredQueue]
) -> Iterator[Compared | RefusedQueue]:
    """Compare each queue with the table at the log's end, in the given order: by message, since offsets alone can
    agree.
    """
    tails = dict(zip(queues, sink.tails([(queue.topic, queue.number) for queue in queues]), strict=True))
    if any(isinstance(tail, QueueTail) and tail.range is None for tail in tails.values()):
        tails = _as_noted(tails, mirrors, sink.log_id)
    marks = {
        queue.id: tail.last for queue, tail in tails.items() if isinstance(tail, QueueTail) and tail.last is not None
    }
    table_marks = table.marks_at(session, {queue_id: mark.offset for queue_id, mark in marks.items()})
    for queue, tail in tails.items():
        if isinstance(tail, Exception):
            yield RefusedQueue(queue, tail)
            continue
        assert tail.range is not None  # see _as_noted
        in_table = OffsetRange(queue.begin, queue.end)
        go_on = verdict(tail.range, in_table, tail.last, table_marks.get(queue.id))
        compared = Compared(queue, tail.range, go_on)
        # A single look does not prove a divergence: a row may be replicated, and in the log, while its commit still
        # waits for a standby and the table does not show it (decision 0019).
        yield _looked_again(session, compared, tail.last) if compared.is_diverged else compared


def _as_noted(
    tails: Mapping[MirroredQueue, QueueTail | Exception], mirrors: TailerMirror, log_id: int
) -> dict[MirroredQueue, QueueTail | Exception]:
    """Fill in ends that the log no longer knows with the positions that the mirror noted, if they are of this log."""
    mirror = mirrors.read_row()
    noted = mirrors.positions() if mirror is not None and mirror.log_id == log_id else {}

    def settled(queue: MirroredQueue, tail: QueueTail | Exception) -> QueueTail | Exception:
        if isinstance(tail, Exception) or tail.range is not None:
            return tail
        end = noted[queue.id].next_offset if queue.id in noted else 0
        return QueueTail(OffsetRange(end, end), None)

    return {queue: settled(queue, tail) for queue, tail in tails.items()}


def _looked_again(session: Session, compared: Compared, mark: MessageFingerprint | None) -> Compared:
    """Compare once more, after running commits: a row that waits for a standby was replicated before it is visible."""
    queue = compared.queue
    table.await_commits(session, queue.id)
    found = table.queues(session, [queue.topic], [])
    queue = next((other for other in found if other.id == queue.id), queue._replace(end=0))
    there = {} if mark is None else table.marks_at(session, {queue.id: mark.offset})
    in_table = OffsetRange(queue.begin, queue.end)
    return Compared(queue, compared.in_log, verdict(compared.in_log, in_table, mark, there.get(queue.id)))


def divergence(session: Session, sink: MirrorSink, compared: Compared) -> Divergence:
    """Return the offset at which a diverged queue begins to differ. Compares all messages that both have."""
    queue, (log_begin, log_end) = compared.queue, compared.in_log
    begin = max(log_begin, queue.begin)
    if queue.end <= begin:  # they have nothing in common
        return Divergence(queue.topic, queue.number, queue.begin, log_end, queue.end)
    in_table = (
        MessageFingerprint(offset, row.transaction_id, row.n, content_crc(row))
        for offset, row in table.rows(session, queue.id, begin, min(log_end, queue.end))
    )
    offset = first_difference(sink.marks(queue.topic, queue.number, begin, log_end), in_table, log_end)
    return Divergence(queue.topic, queue.number, offset, log_end, queue.end)
