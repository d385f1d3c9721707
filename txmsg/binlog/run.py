"""One run of a mirror, from comparing log and table to closing its connections. Does not retry: see tailer.py.

Rows from replication and rows from the table meet in a `PendingQueue`: an offset below the next one is in the log
already, the next one is taken, and for one above it the tailer first reads the rows between from the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import psycopg

from txmsg.binlog import table
from txmsg.binlog.comparing import Compared, RefusedQueue, compare, divergence, require_latest
from txmsg.binlog.config import TailerConfig
from txmsg.binlog.database import Session
from txmsg.binlog.mirrors import TailerMirror
from txmsg.binlog.pending_queues import PendingQueue, PendingQueues
from txmsg.binlog.pgoutput import Begin, Commit, LogicalMessage, Origin, Relation, Type, decode
from txmsg.binlog.progress import TailerProgress
from txmsg.binlog.reading import ReplicationReader
from txmsg.binlog.replication import ReplicationStream
from txmsg.binlog.resume import QueueComparison
from txmsg.binlog.rows import check_relation, inserted_row
from txmsg.binlog.sink import REFUSALS, MirrorSink
from txmsg.binlog.slot import MirrorSlot, end_holder, wal_end, wal_flushed
from txmsg.binlog.stops import StoppedQueues
from txmsg.binlog.table import MirroredQueue
from txmsg.errors import MirrorDiverged
from txmsg.message import EPOCH_2000_US
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_BODY = 25  # of a replication message w: kind, two places in the log, a time
_INSERT = ord("I")
_HOLDER_WAIT_S = 5.0
_SLOT_S = 2.0
"""Seconds between two reads of the slot's state, for metrics."""


class MirrorRun:
    """Mirrors until a connection fails or it is closed. Used by one thread."""

    def __init__(
        self,
        config: TailerConfig,
        session: Session,
        sink: MirrorSink,
        progress: TailerProgress,
        *,
        on_progress: Callable[[TailerProgress], None] = lambda _: None,
    ) -> None:
        self.config = config
        """May be replaced between two steps; live settings of the new one then hold."""
        self._session = session
        self._sink = sink
        self.progress = progress
        self._mirrors = TailerMirror(session, config.mirror)
        self._slots = MirrorSlot(session, config.mirror)
        self._unwanted: set[int] = set()
        self._stops = StoppedQueues(self._mirrors, progress)
        self._under_way = PendingQueues(session, sink, self._stops, progress, on_progress)
        self._reading: ReplicationReader | None = None
        self._relations: dict[int, Relation] = {}
        self._message_relation = -1
        self._in_transaction = False
        self._committed_at_us = 0
        self._taken_end = 0
        """The position before which every change is taken: appended, or among the rows that wait."""
        self._begun_at_end = 0
        """The end of the write-ahead log when this run began; until it is taken, more changes may be on their way."""
        self._noted_at = self._looked_at = time.monotonic()
        self._slot_at = float("-inf")
        self._look: tuple[int, dict[int, int]] | None = None
        self._foreign: set[str] = set()
        self._include: Sequence[str] = ()
        self._exclude: Sequence[str] = ()

    # ---- starting

    def start(self) -> None:
        """Create what is missing, compare log and table, and start to read. Raises StorageError, NotLeader."""
        known = self._mirrors.read_row()
        require_latest(self._sink, known)
        config = self.config
        own = self._sink.own_topics
        # Before the queues are read: from here on retention keeps what is not mirrored, so no message found below can
        # be dropped before it is appended.
        self._include, self._exclude = self._mirrors.settle(config.topics, config.exclude, own=own)
        if known is not None and known.log_id == self._sink.log_id:
            self._write_positions({})  # before anything is appended: from here on to no log of an earlier generation
        for topic in self._mirrors.fitting(self._include, own):
            _log.warning(
                "mirror.topic_reserved",
                "topic %(topic)s is named as a log names its own: it is not mirrored",
                topic=topic,
            )
        for topic in self._mirrors.left_out(self._include, self._exclude):
            _log.warning(
                "mirror.topic_in_memory",
                "topic %(topic)s is in memory, and not in PostgreSQL's log: it is not mirrored",
                topic=topic,
            )
        # The publication first: the server decodes each change by the publications of its moment, so an older slot
        # meets changes that it cannot decode. Before 18 it then fails at each attempt (see slot.py).
        self._slots.make_publication()
        self._slots.check_publication()
        is_new = self._slots.make_slot()
        positions = self._mirrors.positions()
        found = table.queues(self._session, self._include, self._exclude)
        self._open(found)
        self._note_goal(found)
        for in_table in found:
            queue, noted = self._under_way.queues.get(in_table.id), positions.get(in_table.id)
            if queue is None:
                continue
            # What a slot has seen since it was made comes from it, unless the log has lost what it once had, or the
            # queue was passed over.
            if is_new or noted is None or noted.stopped is not None or noted.next_offset > queue.base:
                self._refill(queue, in_table.end)
        self._under_way.append()
        self._write_positions({queue.id: queue.next_offset for queue in self._under_way.queues.values()})
        # The flushed position, because the server sends no further: the written one may stay ahead of it on an idle
        # database, and a lag would be reported that does not exist.
        self._begun_at_end = wal_flushed(self._session)
        self._reading = ReplicationReader(self._started_stream())
        self._looked_at = time.monotonic() - self.config.compare_s

    def _started_stream(self) -> ReplicationStream:
        deadline = time.monotonic() + _HOLDER_WAIT_S
        while True:
            try:
                return ReplicationStream(
                    self.config.storage,
                    slot=self._slots.slot,
                    publication=self._slots.publication,
                )
            # The mirror's lock is ours, so the process that still reads the slot belongs to a tailer that hangs or has
            # lost its connection. It has _HOLDER_WAIT_S to end by itself (decision 0019).
            except psycopg.errors.ObjectInUse:
                slot = self._slots.read_slot()
                if slot is not None and slot.active_pid is not None and time.monotonic() > deadline:
                    _log.warning(
                        "mirror.slot_taken",
                        "process %(pid)d of the server still reads slot %(slot)s: ended",
                        pid=slot.active_pid,
                        slot=slot.name,
                    )
                    end_holder(self._session, slot.active_pid)
                time.sleep(0.05)
                if time.monotonic() > deadline + _HOLDER_WAIT_S:
                    raise

    def _open(self, found: Sequence[MirroredQueue]) -> None:
        """Find the offsets at which these queues continue in the log. Stops queues that cannot continue."""
        for compared in self._fitting(found):
            queue, next_offset = compared.queue, compared.go_on.next_offset
            try:
                if compared.go_on.verdict is QueueComparison.HOLE:
                    self._under_way.mark_hole(queue.topic, queue.number, compared.in_log.end, next_offset)
            except REFUSALS as exc:
                self._under_way.stop(queue, exc)
            else:
                self._under_way.begin_queue(queue, next_offset)

    def _fitting(self, found: Sequence[MirroredQueue]) -> list[Compared]:
        """Compare these queues with the log. Stops at those that do not fit."""
        fitting = []
        for compared in list(compare(self._session, self._sink, self._mirrors, found)):
            try:
                if isinstance(compared, RefusedQueue):
                    raise compared.error
                if compared.is_diverged:
                    raise divergence(self._session, self._sink, compared).error(self._sink.name)
                fitting.append(compared)
            except (MirrorDiverged, *REFUSALS) as exc:
                self._under_way.stop(compared.queue, exc)
        return fitting

    def _try_again(self) -> None:
        """Continue queues that stopped for want of a right, from the table, if the right was granted meanwhile."""
        due = self._stops.to_try()
        if not due:
            return
        found = [queue for queue in table.queues(self._session, self._include, self._exclude) if queue.id in due]
        self._open(found)
        for in_table, queue in self._under_way.among(found):
            self._refill(queue, in_table.end)
        self._under_way.append()
        for _, queue in self._under_way.among(found):
            self._under_way.dirty.add(queue.id)
            self._stops.remove(queue.id, queue.topic, queue.number)

    # ---- going on

    def step(self, wait: Callable[[int, float], None]) -> None:
        """Append the changes that have arrived. wait: returns when this file can be read, or after so many seconds.

        Raises psycopg.OperationalError when the connection is gone, and the errors of `PendingQueues.append`.
        """
        reading = self._reading
        assert reading is not None
        try:
            messages, sent_end = reading.take_messages()
        except psycopg.errors.UndefinedObject as exc:
            reading.close()
            self._slots.drop_undecodable(exc)
            raise
        if messages and self.progress.behind_since is None:
            self.progress.behind_since = time.monotonic()  # also while the log does not take them
        self._sort_messages(messages)
        self._under_way.append()
        # A keepalive in the middle of a transaction may name a position beyond rows that have not come yet. Confirmed
        # too early, they would be lost by a crash of this process.
        if not self._in_transaction:
            self._taken_end = max(self._taken_end, sent_end)
        # Only after `append`, which returns when the rows are on disk: the server may forget them from here on. A crash
        # between the two repeats rows; these are below the log's end then, and are skipped (decision 0019).
        reading.confirm(self._taken_end)
        self._try_again()
        self._note_lag(reading, is_all=not messages)
        self._note_positions()
        self._note_slot()
        self._compare()
        if not messages:
            wait(reading.fileno(), self.config.position_s)

    def _sort_messages(self, messages: list[bytes]) -> None:
        queues = self._under_way.queues
        for data in messages:
            if data[_BODY] != _INSERT:
                self._take_other(data[_BODY:])
                continue
            relation = int.from_bytes(data[_BODY + 1 : _BODY + 5], "big")
            if relation != self._message_relation:
                self._skip_foreign(relation)
                continue
            queue_id, offset, row = inserted_row(data)
            queue = queues.get(queue_id)
            if queue is None and (
                queue_id in self._unwanted or queue_id in self._stops or (queue := self._met(queue_id)) is None
            ):
                continue
            if offset != queue.next_offset and not self._leads_up_to(queue, offset):
                continue
            if not queue.rows:
                self._under_way.filled.append(queue)
            queue.rows.append(row)
            queue.next_offset += 1

    def _leads_up_to(self, queue: PendingQueue, offset: int) -> bool:
        """Return True if this offset is the next one, after missing rows before it were read from the table."""
        if offset < queue.next_offset:
            if offset >= queue.repeats_end:  # it came before: the table was set back
                self._under_way.append()
                of_topic = table.queues(self._session, [queue.topic], [])
                self._fitting([in_table for in_table in of_topic if in_table.id == queue.id])
                queue.repeats_end = queue.next_offset
            self.progress.repeated += 1
            return False
        self._refill(queue, offset)
        return queue.next_offset == offset and queue.id in self._under_way.queues

    def _take_other(self, data: bytes) -> None:
        match decode(data):
            case Begin():
                self._in_transaction = True
            case Commit() as commit:
                self._in_transaction = False
                self._taken_end = commit.end_lsn
                self._committed_at_us = commit.committed_at_2000_us + EPOCH_2000_US
            case Relation() as relation:
                self._relations[relation.id] = relation
                if (relation.schema, relation.name) == ("txmsg", "message"):
                    check_relation(relation)
                    self._message_relation = relation.id
            case Type() | Origin() | LogicalMessage():
                pass
            case other:
                self._skip_foreign(getattr(other, "relation_id", -1), what=type(other).__name__)

    def _skip_foreign(self, relation_id: int, what: str = "Insert") -> None:
        """Log a change that is not a message, once per table and kind."""
        self.progress.foreign += 1
        relation = self._relations.get(relation_id)
        name = f"{relation.schema}.{relation.name}" if relation else "no table"
        if f"{what} {name}" not in self._foreign:
            self._foreign.add(f"{what} {name}")
            _log.error(
                "mirror.publication_foreign",
                "publication %(publication)s sends changes (%(change)s of %(name)s) that are not messages: they are "
                "skipped; take what was added to it away",
                publication=self._slots.publication,
                change=what,
                name=name,
            )

    def _refill(self, queue: PendingQueue, end: int) -> None:
        self._under_way.refill(queue, end, size_bytes_max=self.config.refill_size_bytes)

    def _met(self, queue_id: int) -> PendingQueue | None:
        """Return a queue that is new to this run; None if it is not to be mirrored."""
        found = table.queues(self._session, self._include, self._exclude)
        self._open(self._new_among(found))
        if queue_id in self._stops:
            return None
        if queue_id not in self._under_way.queues:
            self._unwanted.add(queue_id)
            if not table.is_there(self._session, queue_id):
                _log.warning(
                    "mirror.queue_unknown",
                    "queue %(queue_id)d was deleted with its topic: its remaining changes are skipped",
                    queue_id=queue_id,
                )
            return None
        return self._under_way.queues[queue_id]

    # ---- what is told

    def _note_lag(self, reading: ReplicationReader, *, is_all: bool) -> None:
        if is_all:
            if self._taken_end >= self._begun_at_end:
                self.progress.behind_since = None
        elif self._committed_at_us:
            now_us = time.time_ns() // 1000 + reading.server_ahead_us
            self.progress.behind_since = time.monotonic() - max(0.0, (now_us - self._committed_at_us) / 1e6)

    def _note_slot(self) -> None:
        now = time.monotonic()
        if now - self._slot_at < _SLOT_S:
            return
        self._slot_at = now
        self.progress.slot = self._slots.read_slot()

    def _note_positions(self) -> None:
        now = time.monotonic()
        if now - self._noted_at < self.config.position_s:
            return
        is_due = now - self._noted_at >= 10 * self.config.position_s
        if self._under_way.dirty or is_due:
            self._write_positions(self._under_way.positions())

    def _write_positions(self, positions: Mapping[int, int]) -> None:
        sink = self._sink
        self._mirrors.write(positions, log=sink.name, log_id=sink.log_id, generation=sink.generation)
        self._under_way.dirty.clear()
        self._noted_at = time.monotonic()

    # ---- the table and the log compared

    def _compare(self) -> None:
        """Check from time to time that replication has brought every row that the table has had for a while."""
        if self._look is not None:
            at, ends = self._look
            if self._taken_end >= at:
                self._look = None
                for queue_id, end in ends.items():
                    self._require_complete(queue_id, end)
                self._under_way.append()
            return
        now = time.monotonic()
        if now - self._looked_at < self.config.compare_s:
            return
        self._looked_at = now
        found = table.queues(self._session, self._include, self._exclude)
        # Read after the ends of the queues, so everything that the table showed was written before this position. Once
        # the stream has passed it, a row that has not come was missed, as by a slot that was moved.
        at = wal_end(self._session)
        self._open(self._new_among(found))
        # A table that ends before the log was set back, unless a commit still waits for its standby: then its writer
        # holds the queue's lock, and the queue is not quiet.
        behind = [in_table for in_table, queue in self._under_way.among(found) if in_table.end < queue.next_offset]
        self._fitting([in_table for in_table in behind if table.is_quiet(self._session, in_table.id)])
        self._look = (at, {in_table.id: in_table.end for in_table, _ in self._under_way.among(found)})
        self._note_goal(found)

    def _new_among(self, found: Sequence[MirroredQueue]) -> list[MirroredQueue]:
        return [queue for queue in found if queue.id not in self._under_way.queues and queue.id not in self._stops]

    def _note_goal(self, found: Sequence[MirroredQueue]) -> None:
        left = sum(max(0, in_table.end - queue.next_offset) for in_table, queue in self._under_way.among(found))
        self.progress.goal = self.progress.messages + left

    def _require_complete(self, queue_id: int, end: int) -> None:
        queue = self._under_way.queues.get(queue_id)
        if queue is not None and queue.next_offset < end:
            _log.warning(
                "mirror.replication_missed",
                "topic %(topic)s queue %(queue)d: offsets %(first_offset)d to %(last_offset)d did not come by "
                "replication",
                topic=queue.topic,
                queue=queue.number,
                first_offset=queue.next_offset,
                last_offset=end - 1,
            )
            self._refill(queue, end)

    def close(self) -> None:
        """Confirm what is on disk, and end the replication. The session stays open."""
        reading, self._reading = self._reading, None
        if reading is None:
            return
        try:
            self._write_positions(self._under_way.positions())
        finally:
            reading.close()
