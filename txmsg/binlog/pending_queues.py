"""The queues that one run of a mirror works on, with the rows that are taken and not appended yet.

Offsets that replication did not bring are read from the table. An error of one queue stops that queue (`stop`)
and no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from txmsg.binlog import table
from txmsg.binlog.database import Session
from txmsg.binlog.progress import TailerProgress
from txmsg.binlog.rows import RowBatch, TableRow
from txmsg.binlog.sink import REFUSALS, MirrorSink
from txmsg.binlog.stops import StoppedQueues
from txmsg.binlog.table import MirroredQueue
from txmsg.errors import MirrorDiverged
from txmsg.message import QueueId, QueueNumber
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)


@dataclass(slots=True)
class PendingQueue:
    """A queue that is mirrored. rows: from offset `base` on, not appended yet; `next_offset` is the one after them."""

    id: QueueId
    topic: str
    number: QueueNumber
    base: int
    next_offset: int
    repeats_end: int
    """The end of offsets that replication may repeat because they were read from the table; later offsets come once."""
    rows: list[TableRow] = field(default_factory=list)


class PendingQueues:
    """Queues by their ids. Used by one thread."""

    def __init__(
        self,
        session: Session,
        sink: MirrorSink,
        stops: StoppedQueues,
        progress: TailerProgress,
        on_progress: Callable[[TailerProgress], None],
    ) -> None:
        self.queues: dict[int, PendingQueue] = {}
        self.filled: list[PendingQueue] = []
        """Queues with rows that wait to be appended."""
        self.dirty: set[int] = set()
        """Ids of queues that were appended to since `positions` was noted."""
        self._session = session
        self._sink = sink
        self._stops = stops
        self._progress = progress
        self._on_progress = on_progress
        self._refilled_bytes = 0

    def begin_queue(self, queue: MirroredQueue, next_offset: int) -> None:
        """Start to mirror a queue from this offset on."""
        self.queues[queue.id] = PendingQueue(queue.id, queue.topic, queue.number, *(next_offset,) * 3)

    def stop(self, queue: MirroredQueue | PendingQueue, error: Exception) -> None:
        """Stop mirroring a queue. Rows that were taken and are not in the log are dropped."""
        self.queues.pop(queue.id, None)
        self.filled = [filled for filled in self.filled if filled.id != queue.id]
        self.dirty.discard(queue.id)
        self._stops.add(queue.id, queue.topic, queue.number, error)

    def among(self, found: Sequence[MirroredQueue]) -> list[tuple[MirroredQueue, PendingQueue]]:
        """Return those of the table's queues that are mirrored by this run."""
        return [(in_table, queue) for in_table in found if (queue := self.queues.get(in_table.id)) is not None]

    def positions(self) -> dict[int, int]:
        """Return the next offsets of queues that were appended to."""
        return {queue_id: self.queues[queue_id].base for queue_id in self.dirty}

    def mark_hole(self, topic: str, number: int, begin: int, end: int) -> None:
        """Record in the log that the table has dropped these offsets; the queue continues at `end`."""
        self._sink.mark_hole(topic, number, begin, end)
        self._progress.missing += end - begin
        _log.error(
            "mirror.hole",
            "topic %(topic)s queue %(queue)d: offsets %(first_offset)d to %(last_offset)d (%(messages)d messages) "
            "were dropped from the table before they were mirrored: the log has a hole there",
            topic=topic,
            queue=number,
            first_offset=begin,
            last_offset=end - 1,
            messages=end - begin,
        )

    # ---- what is read from the table

    def refill(self, queue: PendingQueue, end: int, *, size_bytes_max: int) -> None:
        """Read a queue's rows from the table, up to `end`. Stops the queue if that is impossible.

        Rows are appended whenever size_bytes_max of them wait.
        """
        try:
            self._take_from_table(queue, end, size_bytes_max)
        except (MirrorDiverged, *REFUSALS) as exc:
            self.stop(queue, exc)

    def _take_from_table(self, queue: PendingQueue, end: int, size_bytes_max: int) -> None:
        if queue.next_offset < end:
            _log.info(
                "mirror.reading_table",
                "topic %(topic)s queue %(queue)d: offsets %(first_offset)d to %(last_offset)d are read from the table",
                topic=queue.topic,
                queue=queue.number,
                first_offset=queue.next_offset,
                last_offset=end - 1,
            )
        waited = False
        while queue.next_offset < end and queue.id in self.queues:
            before = queue.next_offset
            with closing(table.rows(self._session, queue.id, before, end)) as rows:
                for offset, row in rows:
                    if offset != queue.next_offset or queue.id not in self.queues:
                        break
                    self._take_refilled(queue, row, size_bytes_max)
            if queue.next_offset == before and not self._is_gone(queue, end):
                if not table.is_there(self._session, queue.id):
                    _log.warning(
                        "mirror.queue_deleted",
                        "topic %(topic)s queue %(queue)d was deleted: its mirroring has ended",
                        topic=queue.topic,
                        queue=queue.number,
                    )
                    return
                if waited:
                    raise MirrorDiverged(
                        f"topic {queue.topic} queue {queue.number}: the table has no message at offset "
                        f"{queue.next_offset}, but one at {end - 1}: messages were deleted by hand; restore them and "
                        "start the tailer again, or drop the topic",
                        *(queue.topic, queue.number, queue.next_offset),
                    )
                # The row may have been replicated while its commit still waits for a standby. Its writer holds the
                # queue's lock until then, so after the wait the row is visible, or was deleted by hand.
                table.await_commits(self._session, queue.id)
                waited = True
        queue.repeats_end = queue.next_offset

    def _take_refilled(self, queue: PendingQueue, row: TableRow, size_bytes_max: int) -> None:
        if not queue.rows:
            self.filled.append(queue)
        queue.rows.append(row)
        queue.next_offset += 1
        self._progress.refilled += 1
        self._refilled_bytes += len(row.headers) + len(row.body) + 100
        if self._refilled_bytes >= size_bytes_max:
            self.append()

    def _is_gone(self, queue: PendingQueue, end: int) -> bool:
        """Return True if retention has dropped the next offsets. The hole is then recorded, and the queue
        is behind it.
        """
        kept = min(table.first_kept(self._session, queue.id), end)
        if kept <= queue.next_offset:
            return False
        # The rows before the hole first: in the log the hole begins where the queue ends.
        self.append()
        self.mark_hole(queue.topic, queue.number, queue.next_offset, kept)
        queue.base = queue.next_offset = kept
        return True

    # ---- appending

    def append(self) -> None:
        """Append all rows that wait; on disk on return. Stops queues whose rows the log refuses.

        Raises StorageError; rows that are not in the log then still wait.
        """
        filled = self.filled
        if not filled:
            return
        try:
            self._append(filled)
        except REFUSALS:  # nothing was appended, and one of them is why
            for queue in filled:
                try:
                    self._append([queue])
                except REFUSALS as exc:
                    self.stop(queue, exc)
        self.filled = []
        self._refilled_bytes = 0
        self._on_progress(self._progress)

    def _append(self, filled: Sequence[PendingQueue]) -> None:
        begun_at = time.monotonic()
        self._sink.append([RowBatch(queue.topic, queue.number, queue.base, queue.rows) for queue in filled])
        self._progress.appends.observe(time.monotonic() - begun_at)
        for queue in filled:
            self._progress.messages += len(queue.rows)
            queue.rows = []
            queue.base = queue.next_offset
            self.dirty.add(queue.id)
