"""Plans reads of a log, on the driver: finds its queues, the begin and end of a read, and lost messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from txmsg.errors import MisuseError, OffsetsMissing
from txmsg.metaq.interface import LogAccess, LogQueue, QueueRange
from txmsg.metaq.store.state import LogIdentity
from txmsg.spark.generations import require_continued
from txmsg.spark.options import Place, ReadOptions
from txmsg.spark.position import StreamPosition
from txmsg.spark.tasks import QueuePart, limited
from txmsg.wire.start import Start


class Planner:
    """The plans of one read's batches."""

    def __init__(self, log: LogAccess, options: ReadOptions) -> None:
        self._log = log
        self._options = options

    # ---- a stream

    def initial(self) -> StreamPosition:
        """Return the position at which a new stream begins. Topics that are created later begin at their
        first message.
        """
        queues = self._queues(all_named=False)
        self._require_known(self._options.start, queues)
        begins = self._places(queues, self._options.start, self._log.ranges(queues))
        return StreamPosition(self._log.identity(), begins, is_initial=True)

    def starts(self) -> dict[LogQueue, Start]:
        """Return the requested start in each existing queue. Raises MisuseError for unknown queues."""
        queues, place = self._queues(all_named=False), self._options.start
        self._require_known(place, queues)
        return {queue: place if isinstance(place, Start) else place.get(queue, Start.earliest()) for queue in queues}

    def latest(
        self, start: StreamPosition, *, count_max: int | None, target: Mapping[LogQueue, int] | None
    ) -> StreamPosition:
        """Return the end of a batch that begins at `start`: equal to `start` if there are no new messages.

        The first batch of a stream has an end of its own even if it is empty: so the checkpoint records the stream's
        begin, and messages that arrive while it is down are not skipped by the next "latest".

        count_max: the number of messages, about; missing offsets do not count. target: the queues to read, with the
        maximum end of each. The first batch under a later generation has an end of its own, too, which names it. Raises
        MisuseError for another log, OffsetOutOfRange when messages are gone.
        """
        identity = self.require_same_log(start)
        queues = [queue for queue in self._queues(all_named=False) if target is None or queue in target]
        begins: dict[LogQueue, int] = {}
        ends: dict[LogQueue, int] = {}
        for queue, kept in self._log.ranges(queues).items():
            end = kept.end if target is None else min(kept.end, target[queue])
            known = start.offsets.get(queue)
            begins[queue] = self._begin_offset(queue, known, kept)
            if known is not None or end > begins[queue]:
                ends[queue] = max(end, begins[queue])
        if count_max is not None:
            ends = limited(begins, ends, count_max, self._gap_at)
        ends = {queue: end for queue, end in ends.items() if queue in start.offsets or end > begins[queue]}
        if self._log.identity() != identity:  # a copy was promoted meanwhile, and these are ends of both
            return self.latest(start, count_max=count_max, target=target)
        # Spark runs a batch for each position that differs from `start`. The first one, and the first of a new
        # generation, must differ even without messages, so that the checkpoint records where it began.
        is_noted = not start.is_initial and identity == start.identity
        if is_noted and all(start.offsets.get(queue) == end for queue, end in ends.items()):
            return start
        fresh = {queue: begins[queue] for queue in ends if start.is_initial or queue not in start.offsets}
        unread = {queue: at for queue, at in start.offsets.items() if queue not in ends}
        if start.is_initial:
            fresh |= unread
        return StreamPosition(identity, {**unread, **ends}, fresh)

    def _gap_at(self, queue: LogQueue, offset: int) -> tuple[int, int] | None:
        for fetched in self._log.fetch({queue: offset}, size_bytes_max=1):
            if isinstance(fetched.error, OffsetsMissing):
                return fetched.error.begin, fetched.error.end
        return None

    def require_same_log(self, start: StreamPosition) -> LogIdentity:
        """Return the log's identity. Raises MisuseError for a position in another log, or in a later generation of the
        same one that does not have all messages before the position.
        """
        found, noted = self._log.identity(), start.identity
        if found.log_id != noted.log_id or found.generation < noted.generation:
            raise MisuseError(
                f"the checkpoint is of generation {noted.generation} of log {noted.log_id:x}, and "
                f"{self._options.where} is generation {found.generation} of log {found.log_id:x}, where offsets may "
                "name other messages: correct path or server, or start with another checkpointLocation"
            )
        require_continued(self._log, self._options, noted, found, start.offsets)
        return found

    def _begin_offset(self, queue: LogQueue, known: int | None, kept: QueueRange) -> int:
        """Return the offset at which the next batch of a queue begins. Reports lost messages before it."""
        if known is None:
            if kept.begin:
                self._options.report_loss(queue, 0, kept.begin, "the queue is new to this stream, and begins later")
            return kept.begin
        if known < kept.begin:
            self._options.report_loss(queue, known, kept.begin, "retention has deleted them")
            return kept.begin
        if known > kept.end:
            self._options.report_loss(queue, kept.end, known, "they were read, and the log has lost them since")
            return kept.end
        return known

    def ends(self) -> dict[LogQueue, int]:
        """Return the current end of each queue."""
        return {queue: kept.end for queue, kept in self._log.ranges(self._queues(all_named=False)).items()}

    # ---- a batch

    def parts(self) -> list[QueuePart]:
        """Return the parts of a batch read. Raises UnknownTopic, OffsetOutOfRange."""
        options = self._options
        queues = self._queues(all_named=True)
        for place in (options.start, options.end):
            self._require_known(place, queues)
        ranges = self._log.ranges(queues)
        begins = self._places(queues, options.start, ranges)
        ends = self._places(queues, options.end, ranges)
        return [QueuePart(queue, begins[queue], ends[queue]) for queue in queues]

    # ---- both

    def _queues(self, *, all_named: bool) -> list[LogQueue]:
        known = self._log.topics()
        wanted = self._options.topics_of(known, all_named=all_named)
        return [LogQueue(topic, queue) for topic in wanted for queue in sorted(known[topic])]

    def _places(
        self, queues: Collection[LogQueue], place: Place, ranges: Mapping[LogQueue, QueueRange]
    ) -> dict[LogQueue, int]:
        if isinstance(place, Start) and place.kind == "time":
            return self._log.offsets_at(queues, place.value)
        if isinstance(place, Start):
            return {queue: self._place(queue, place, ranges[queue]) for queue in queues}
        default = Start.latest() if place is self._options.end else Start.earliest()
        return {queue: self._place(queue, place.get(queue, default), ranges[queue]) for queue in queues}

    def _require_known(self, place: Place, queues: Collection[LogQueue]) -> None:
        """Raise MisuseError for an offset of a queue that the read does not have, whatever filters leave."""
        if not isinstance(place, Mapping):
            return
        for topic, queue in sorted(place.keys() - set(queues)):
            raise MisuseError(
                f"an offset is given for topic {topic} queue {queue}, which the read does not have: name the topic "
                "in the option topics, or leave the queue out"
            )

    def _place(self, queue: LogQueue, start: Start, kept: QueueRange) -> int:
        if start.kind != "offset":
            return kept.begin if start.kind == "earliest" else kept.end
        at = start.value
        if at > kept.end:
            self._options.report_loss(queue, kept.end, at, f"the queue ends at {kept.end}")
        if at < kept.begin:
            self._options.report_loss(queue, at, kept.begin, f"the queue begins at {kept.begin}")
        return min(max(at, kept.begin), kept.end)
