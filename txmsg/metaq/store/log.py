"""The log, for its only writer: appends to many queues at once, applies retention, and is a copy or is copied."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from txmsg.errors import MisuseError
from txmsg.metaq.format.frame import Header, Payload
from txmsg.metaq.store.ahead import AHEAD_MAX
from txmsg.metaq.store.commit_log import files_of
from txmsg.metaq.store.delayed import DELAYED, ENTRIES, DelayedBatch, entry_of
from txmsg.metaq.store.end import Append, LogEnd
from txmsg.metaq.store.keys import KeyIndexer
from txmsg.metaq.store.lock import WriteLock
from txmsg.metaq.store.log_config import LogConfig
from txmsg.metaq.store.mover import Mover
from txmsg.metaq.store.moving import Moving
from txmsg.metaq.store.queues import Queues
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.recovery import recover
from txmsg.metaq.store.refill import refill
from txmsg.metaq.store.role import GenerationFence, fence_of, forget_copy, not_leader, require_no_copy, write_fence
from txmsg.metaq.store.state import LogIdentity, QueueKey, identity_of
from txmsg.metaq.store.topics import Flush, TopicSettings, TopicSettingsStore
from txmsg.metaq.store.upkeep import Upkeep
from txmsg.metrics.counts import Histogram

__all__ = ["Append", "Log", "LogConfig", "LogCounts", "LogSize"]

_OF_DELAYED = TopicSettings(retention_s=1.0)  # waiting entries are kept by position, not by age


class Log:
    """A log opened for writing. Threads may share it. Close it, or the last messages of timed topics may be lost.

    Raises StorageError if another process writes it or it cannot be written at all, CorruptLog if it is damaged before
    its end.
    """

    def __init__(
        self,
        root: Path | str,
        config: LogConfig | None = None,
        *,
        clock: Callable[[], float] = time.time,
        follows: bool = False,
    ) -> None:
        """Open the log. follows: the log is a copy of another log, and accepts only its frames.

        Raises NotLeader for a copy that is not opened with it.
        """
        self.root = Path(root)
        self.follows = follows
        self.config = config or LogConfig()
        self._clock = clock
        # The lock first: opening repairs and cuts files, which only the single writer may do.
        self._write_lock = WriteLock(self.root)
        with ExitStack() as opened:
            opened.callback(self._write_lock.release)
            if not follows:
                require_no_copy(self.root)
            identity = identity_of(self.root, create=not follows)
            self._fenced = fence_of(self.root)
            self._topics = TopicSettingsStore(self.root, self.config.topic)
            self._queues = Queues(self.root, self.config.open_files_max)
            opened.callback(self._queues.files.close)
            self._indexer = KeyIndexer(self.root, identity.log_id)
            self._end = LogEnd(
                self.root,
                identity,
                self._queues,
                position=recover(self.root, identity.log_id, self._queues, self._is_synchronous, follows=follows),
                file_size_bytes_max=self.config.file_size_bytes_max,
                on_rolled=self._indexer.wake,
            )
            try:
                if not follows:
                    # Before the first append, or an offset that a reader saw before a power cut would be given to
                    # another message (decision 0035). A copy leaves this to its promotion: its leader assigns the
                    # offsets.
                    self._end.pass_over_doubt(int(clock() * 1e6))
            except BaseException:
                # The file `ahead` stays, so that the next writer marks these offsets.
                self._end.close(is_whole=False)
                raise
            self._opened = opened.pop_all()
        self._writer = self._end.writer
        self.reader = LogReader(self.root)
        self._mover = Mover(self.root, self._append_own, self.flush, self._queue_that_is_read)
        self.moving = Moving(self.root, self._mover, clock)
        self._upkeep = Upkeep(
            self._end,
            lambda: self.config,
            clock=clock,
            keep_s=self._keep_s,
            kept_from=self._kept_from,
            before_checkpoint=self._before_checkpoint,
        )
        self._indexer.start()
        self._upkeep.start()
        if not follows:
            self.moving.start()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_copy(self) -> bool:
        """True if this process was forked from the one that writes the log."""
        return self._write_lock.is_copy

    @property
    def identity(self) -> LogIdentity:
        """The log's identity, and its current generation."""
        return self._end.identity

    # ---- topics

    def settings_of(self, topic: str) -> TopicSettings:
        """Return the settings of this topic: those that were set, or else the log's defaults."""
        return _OF_DELAYED if topic == DELAYED else self._topics.of(topic)

    def set_topic(self, topic: str, settings: TopicSettings) -> None:
        """Set the settings of this topic, from the next append on; stored in the log. Raises StorageError."""
        self._write_lock.require()
        self._topics.set(topic, settings, self.checkpoint)

    def _is_synchronous(self, topic: str) -> bool:
        return self.settings_of(topic).flush is Flush.SYNC

    def _queue_that_is_read(self, topic: str, queue: int) -> int:
        return self.settings_of(topic)._queue_that_is_read(queue)

    # ---- appending

    def append(self, appends: Sequence[Append], flush: Flush | None = None) -> list[int]:
        """Append all batches, or none, and return their first offsets. On disk as each topic's flush promises.

        flush: SYNC: all are on disk, regardless of their topics. TIMED: waits for none; those of a synchronous topic
        become visible when they are on disk. Raises MisuseError for a base_offset that is not the queue's end, or a
        queue that accepts no appends; InvalidName; StorageError for a full disk; NotLeader.
        """
        self._write_lock.require()
        end, writer = self._end, self._writer
        with end.lock:
            self.require_leader()
            end.require_usable()
            self._require_open_for(appends)
            if any(append.due_at_us is not None for append in appends):
                appends = [self.waiting(append) for append in appends]
            own = {(append.topic, append.queue) for append in appends if not append.is_mirrored}
            timed = {(append.topic, append.queue) for append in appends if not self._is_synchronous(append.topic)}
            # A name must be on disk before a reader can see an early message of its queue. Mirrored queues are not
            # named: their producer appends the same messages again, under the same offsets.
            end.name_early(own & timed)
            placed = end.place(appends)
            end.note(placed)
            end.own |= own
            # What is seen early is bounded, or nothing would tell which offsets a power cut leaves free.
            may_be_early = writer.offsets_unsynced <= AHEAD_MAX
            early = [queue for queue, _, _ in placed if (queue.topic, queue.queue) in timed] if may_be_early else []
            if early:
                end.write_cells(writer.end, early)
            # A timed topic waits, too, once the bound is reached: the sync is what makes room below it.
            is_waited_for = len(early) < len(placed) and (flush is not Flush.TIMED or not may_be_early)
            # The disk is waited for without `lock` (`end.sync`): appends that come meanwhile share the next fdatasync.
            position = writer.end if is_waited_for or flush is Flush.SYNC else 0
        if position:
            end.sync(position)
        # After the sync: the mover is a reader like others, and sees only published entries.
        if any(append.topic == DELAYED for append in appends):
            self.moving.wake()
        return [cell.base_offset for _, cell, _ in placed]

    def next_offset(self, topic: str, queue: int) -> int:
        """Return the offset of the queue's next message. Raises InvalidName, MisuseError, CorruptLog."""
        with self._end.lock:
            return self._queues.of(topic, queue).end

    def waiting(self, append: Append) -> Append:
        """Return the batch to append now: for a delayed batch, the entry that waits.

        Raises InvalidMessage, MisuseError.
        """
        due_at_us = append.due_at_us
        if due_at_us is None:
            return append
        if append.base_offset is not None:
            raise MisuseError(f"a delayed batch for topic {append.topic} has no offset before it is due: give None")
        self._require_open_for([append])
        batch = DelayedBatch(append.topic, append.queue, append.payload)
        ahead_us = int(self.config.delay_max_s * 1e6)
        return Append(DELAYED, ENTRIES, entry_of(batch, due_at_us, now_us=int(self._clock() * 1e6), ahead_us=ahead_us))

    def _append_own(self, batches: Sequence[DelayedBatch], note: Callable[[Sequence[int]], DelayedBatch]) -> None:
        """Append due batches after a note of where they are. Raises StorageError.

        Also to closed topics: they were accepted earlier. Readers see them when they are on disk.
        """
        self._write_lock.require()
        end = self._end
        appends = [Append(*batch) for batch in batches]
        with end.lock:
            self.require_leader()
            end.require_usable()
            # One write, with the note in front of its batches. A crash can leave a note without its batches, which the
            # mover looks for when the log is opened, but no batch without its note (decision 0080).
            end.note(end.place([Append(*note(end.bases(appends))), *appends]))
            end.own.update((batch.topic, batch.queue) for batch in batches)

    def recall(self, topic: str, number: int) -> None:
        """Cancel a delayed batch, on disk on return. number: the offset that its append returned.

        Repeating it changes nothing. Raises MisuseError if it is not waiting, StorageError, NotLeader.
        """
        self._write_lock.require()
        self.require_leader()
        self._mover.recall(topic, number, int(self._clock() * 1e6))

    def _require_open_for(self, appends: Sequence[Append]) -> None:
        """Raise MisuseError for a queue that accepts no appends. A mirror may append in any case."""
        for append in appends:
            if not append.is_mirrored:
                self.settings_of(append.topic)._require_takes(append.topic, append.queue)

    def require_leader(self) -> None:
        """Raise NotLeader for a log that accepts no changes, including those beside its frames."""
        if self.follows:
            raise not_leader(self.root, "it is a copy")
        if self._fenced is not None:
            raise not_leader(
                self.root, f"a copy of it was promoted, and goes on as generation {self._fenced.generation}"
            )

    # ---- cutting

    def fork(self, cuts: Sequence[tuple[str, int, int]]) -> int:
        """Continue under a new generation, in which these queues (topic, queue, offset) end at these offsets.

        Returns the generation, which all later frames have. See also `truncate`.
        """
        self._write_lock.require()
        with self._end.lock:
            self.require_leader()
            self._end.begin_generation(self.identity.generation + 1)
            generation = self.identity.generation
        for topic, queue, offset in cuts:
            self.truncate(topic, queue, offset)
        return generation

    def truncate(self, topic: str, queue: int, offset: int) -> None:
        """Drop the messages of a queue from this offset on; the next appended message gets it. On disk on return.

        The frames stay in place, because frames of other queues are between them; a mark in the log makes them void.
        The offset may be before the first one kept. Raises OffsetOutOfRange past the end, and CorruptLog if a frame
        that would have to be kept in part is damaged.
        """
        self._write_lock.require()
        # Both locks: neither an append nor a sync may run while cells are dropped and written again.
        with self._end.alone():
            self.require_leader()
            self._end.settle()
            self._queues.of(topic, queue)  # raises for an invalid name or number
            begin, payloads = self._queues.reader.queue(topic, queue).cut_at(offset)
            if payloads:
                self._end.cut(topic, queue, begin, payloads)

    def refill(self, topic: str, queue: int, base_offset: int, payload: Payload) -> bool:
        """Replace a hole that a repair has left by messages with exactly its offsets. On disk on return.

        Returns False if they need more room than the hole has: then they stay missing. The original messages fit if
        they are compressed as before. Raises MisuseError if there is no such hole, OffsetOutOfRange, CorruptLog.
        """
        self._write_lock.require()
        with self._end.alone():
            self.require_leader()
            self._end.settle()
            return refill(self._queues.reader, topic, queue, base_offset, payload)

    # ---- copies

    @property
    def synced(self) -> int:
        """Everything before this position is on disk. Copies get no more, so that none is ahead of its leader."""
        return self._writer.synced

    @property
    def own_queues(self) -> Collection[QueueKey]:
        """The queues appended to since the log was opened, without mirrored ones and those that are never read."""
        with self._end.lock:
            return frozenset(queue for queue in self._end.own if queue[0] != DELAYED)

    def fence(self, generation: int, copy_id: bytes) -> int:
        """Accept no appends from now on, even after it is reopened: a copy continues under this generation.

        Returns the end of the log; everything before is on disk. Raises MisuseError for a generation that is not later,
        NotLeader for a copy, or if another copy has fenced it before.
        """
        self._write_lock.require()
        with self._end.alone():
            if self._fenced is not None and generation <= self._fenced.generation and copy_id != self._fenced.copy_id:
                raise not_leader(
                    self.root,
                    f"another copy was promoted, or is being, as generation {self._fenced.generation}: if it was not, "
                    "have this log lead again, with `txmsg metaq promote` on its directory while it is stopped",
                )
            if self.follows:
                raise not_leader(self.root, "it was not fenced, as it is itself a copy")
            if generation <= self.identity.generation:
                raise MisuseError(
                    f"generation {generation} of the log {self.root} is not after its own, {self.identity.generation}: "
                    "it was not fenced"
                )
            # What was accepted so far is on disk before the fence: the copy takes everything up to the returned
            # position, so a promotion loses nothing that was acknowledged.
            self._end.settle()
            fence = GenerationFence(generation, copy_id)
            write_fence(self.root, fence)
            self._fenced = fence
            return self._writer.synced

    def take_frames(self, first: int, frames: memoryview, headers: Sequence[Header]) -> None:
        """Append the leader's frames at the same position, in the file that begins at `first`. On disk on return.

        headers: of the frames, which are whole. Raises BadFrame for frames that do not follow, StorageError.
        """
        assert self.follows
        self._write_lock.require()
        with self._end.alone():
            self._end.take_frames(first, frames, headers)

    def promote(self) -> int:
        """Make a copy the leader, from the next time it is opened. Returns its generation."""
        assert self.follows
        self._write_lock.require()
        with self._end.lock:
            # A log that led before may have been superseded by a generation of which it has no frames yet: its own must
            # be later than both.
            superseded = self._fenced.generation if self._fenced else 0
            self._end.begin_generation(max(self.identity.generation, superseded) + 1)
            # After the generation: a crash in between leaves a copy, which can be promoted again.
            forget_copy(self.root)
            return self.identity.generation

    # ---- upkeep

    def flush(self) -> None:
        """Return when everything appended is on disk. Raises StorageError."""
        self._write_lock.require()
        self._end.sync(self._writer.end)

    def checkpoint(self) -> None:
        """Flush, sync cells and record it, so that a recovery has little to read. Raises StorageError."""
        self._write_lock.require()
        self._upkeep.checkpoint()

    def apply_settings(self, config: LogConfig) -> None:
        """Apply these settings, as far as they are live, within the previous `flush_s`."""
        self.config = config

    def delete_old(self, *, size_bytes_max: int | None = None) -> list[int]:
        """Delete the oldest files beyond the age or size limit, and return their first positions.

        Never the file being written. Runs by itself at each checkpoint. size_bytes_max: overrides the setting.
        """
        self._write_lock.require()
        return self._upkeep.delete_old(self.config.retention_size_bytes if size_bytes_max is None else size_bytes_max)

    def _before_checkpoint(self) -> None:
        if not self.follows:
            self.delete_old()
        self._indexer.wake()  # a full disk may have stopped it

    def _keep_s(self, topic: str) -> float | None:
        if self.follows:
            return None  # a copy deletes the files that its leader has deleted
        wanted = self.settings_of(topic).retention_s
        return self.config.retention_s if wanted is None else wanted

    def _kept_from(self) -> int | None:
        """Return the position from which delayed messages need the log.

        None for a copy, whose leader decides what is kept.
        """
        return None if self.follows else self._mover.kept_from()

    def size(self) -> LogSize:
        """Return the current size of the log. Reads its directory."""
        firsts = files_of(self.root / "commitlog", ".log")
        end = self._writer.end
        return LogSize(end - next(iter(firsts), end), len(firsts))

    def counts(self) -> LogCounts:
        """Return the counters of its writer."""
        first_due_us = self._mover.first_due_us
        return LogCounts(
            self._writer.end - self._writer.synced,
            self._upkeep.deleted_files,
            self._writer.syncs,
            self._mover.waiting_messages,
            0.0 if first_due_us is None else max(0.0, self._clock() - first_due_us / 1e6),
        )

    def index_keys(self) -> None:
        """Index the keys of all completed files. Runs by itself on a thread after a file is completed."""
        self._write_lock.require()
        self._indexer.run_once()

    def close(self) -> None:
        """Flush everything and let another process write, even if the disk fails. Closing twice is fine."""
        if self._end.is_closed or self.is_copy:
            return
        # In this order: the mover and upkeep append and sync, so they end before the end of the log is closed.
        self.moving.stop()
        self._end.is_closed = True
        self._upkeep.stop()
        self._indexer.stop()
        # Callbacks run in reverse order, after an error as well: the end is closed, then the files of cells, and the
        # write lock is released last, when this process writes nothing any more.
        with self._opened as opened:
            opened.callback(self._end.close, is_whole=not self.follows)
            if self._writer.failed is None:
                self.checkpoint()


class LogSize(NamedTuple):
    """The files of messages of a log."""

    size_bytes: int
    files: int


class LogCounts(NamedTuple):
    """Counters of the writer of a log since it was opened."""

    unsynced_bytes: int
    """Bytes appended, and not known to be on disk."""
    deleted_files: int
    syncs: Histogram
    """Seconds that the disk took."""
    delayed_messages: int
    """Messages that wait until they are due."""
    delayed_late_s: float
    """Seconds since the first of them was due."""
