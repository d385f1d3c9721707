"""The log as its one writer has it: appends to many queues at once, syncs for all that wait, drops what is too old."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from txmsg.errors import MisuseError, StorageError, TxmsgError
from txmsg.logs import EventLog
from txmsg.message import check_name
from txmsg.metaq.format.frame import (
    HOLES,
    BadFrame,
    Buffer,
    Header,
    Kind,
    Payload,
    header_crc_of,
    hole,
    hole_end_of,
    pack,
)
from txmsg.metaq.store.ahead import AHEAD_MAX, Ahead, forget_doubt, queues_in_doubt
from txmsg.metaq.store.cells import Cell
from txmsg.metaq.store.commit_log import FILE_SIZE_BYTES_MAX, CommitLogReader, CommitLogWriter, files_of, sync_directory
from txmsg.metaq.store.delayed import DELAYED, ENTRIES, Batch, Mover, entry_of
from txmsg.metaq.store.keys import KeyIndexer
from txmsg.metaq.store.lock import WriteLock
from txmsg.metaq.store.moving import Moving
from txmsg.metaq.store.queues import QueueEnd, Queues, Unsynced, sync_files
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.recovery import recover, replay
from txmsg.metaq.store.refill import refill
from txmsg.metaq.store.retention import delete_old_files
from txmsg.metaq.store.role import Fence, fence_of, forget_copy, not_leader, require_no_copy, write_fence
from txmsg.metaq.store.state import Checkpoint, Identity, QueueKey, identity_of, write_checkpoint, write_identity
from txmsg.metaq.store.topics import Flush, Permission, TopicSettings, read_topics, write_topics
from txmsg.metrics.counts import Histogram
from txmsg.settings.catalogue import check_settings, setting

_log = EventLog(__name__)
_DEFAULT = TopicSettings()
_OF_DELAYED = TopicSettings(retention_s=1.0)  # what waits is kept by its place, not by its age


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How a log is kept."""

    file_size_bytes_max: int = setting(
        FILE_SIZE_BYTES_MAX,
        "Size of a commitlog file. Retention deletes whole files.",
        least=1,
    )
    flush_s: float = setting(
        0.5,
        "Time after which what timed topics appended is on disk.",
        least=0,
        is_open=True,
        live=True,
    )
    checkpoint_s: float = setting(
        10.0,
        "Time between checkpoints. What was appended since is read again after a crash.",
        least=0,
        is_open=True,
        live=True,
    )
    open_files_max: int = setting(
        16_384,
        "Files of cells kept open; fewer if the process may not open so many and 256 more.",
        least=1,
    )
    retention_s: float | None = setting(
        None,
        "How long to keep messages, by when their file was last written; whole files are deleted. Topics may say "
        "otherwise.",
        least=0,
        option="--retention",
        shown="forever",
        live=True,
    )
    retention_size_bytes: int | None = setting(
        None,
        "Size of all files above which the oldest are deleted, whatever topics say.",
        least=0,
        option="--retention-size",
        shown="unlimited",
        live=True,
    )
    delay_max_s: float = setting(
        3 * 86_400.0,
        "How far ahead delayed messages may be due. While one waits, no file is deleted that came after it.",
        least=0,
        most=366 * 86_400,
        live=True,
    )
    topic: TopicSettings = _DEFAULT
    """What holds for topics that have no settings of their own. Default: synchronous, not compressed."""

    def __post_init__(self) -> None:
        check_settings(self)


class Log:
    """A log opened for writing. Threads may share it. Close it, or what timed topics appended last may be lost.

    Raises StorageError when another process writes it or it cannot be written at all, CorruptLog when it is damaged
    before its end.
    """

    def __init__(
        self,
        root: Path | str,
        config: LogConfig | None = None,
        *,
        clock: Callable[[], float] = time.time,
        follows: bool = False,
    ) -> None:
        """follows: it is a copy of another log, and takes only what that one has. Raises NotLeader if it is and is not
        opened so."""
        self.root = Path(root)
        self.follows = follows
        self.config = config or LogConfig()
        self._clock = clock
        self._lock = threading.Lock()  # order of appends
        self._sync_lock = threading.Lock()  # one fdatasync at a time, for all that wait; taken before _lock
        self._topics_lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()  # one checkpoint at a time, nothing deleted meanwhile; taken first
        self._write_lock = WriteLock(self.root)
        with ExitStack() as opened:
            opened.callback(self._write_lock.release)
            if not follows:
                require_no_copy(self.root)
            self.identity = identity_of(self.root, create=not follows)
            self._fenced = fence_of(self.root)
            self._topics = read_topics(self.root)
            self._queues = Queues(self.root, self.config.open_files_max)
            opened.callback(self._queues.files.close)
            end = recover(self.root, self.identity.log_id, self._queues, self._is_synchronous, follows=follows)
            self._ahead = Ahead(self.root)
            opened.callback(self._ahead.close)
            self._writer = CommitLogWriter(
                self.root / "commitlog",
                end=end,
                file_size_bytes_max=self.config.file_size_bytes_max,
                on_failure=self._ahead.spoil,
            )
            self._deleted_files = 0
            self._own: set[QueueKey] = set()
            self._unseen: OSError | None = None  # why cells of what was appended are not written yet
            self._closed = threading.Event()
            self._indexer = KeyIndexer(self.root, self.identity.log_id)
            try:
                if not follows:
                    self._pass_over(queues_in_doubt(self.root))
            except BaseException:
                self._writer.close()
                raise
            self._opened = opened.pop_all()
        self.reader = LogReader(self.root)
        self._mover = Mover(self.root, self._move, self._queue_that_takes)
        self.moving = Moving(self.root, self._mover, clock)
        self._indexer.start()
        self._flusher = threading.Thread(target=self._flush_periodically, name="txmsg-metaq-flush", daemon=True)
        self._flusher.start()
        if not follows:
            self.moving.start()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_copy(self) -> bool:
        """Whether this process was forked from the one that writes the log."""
        return self._write_lock.is_copy

    # ---- topics

    def settings_of(self, topic: str) -> TopicSettings:
        """What this topic asks for: what was set, or else what the log's configuration says."""
        if topic == DELAYED:
            return _OF_DELAYED
        return self._topics.get(topic, self.config.topic)

    def set_topic(self, topic: str, settings: TopicSettings) -> None:
        """Chooses what this topic asks for, from the next append on; kept in the log. Raises StorageError."""
        check_name("topic", topic)
        self._write_lock.require()
        with self._topics_lock:
            before, topics = self._topics, {**self._topics, topic: settings}
            # Cells of a timed topic may be ahead of the disk, and those of one that is said to be synchronous must not.
            if settings.flush is Flush.SYNC:
                try:
                    self._topics = topics
                    self.checkpoint()
                    write_topics(self.root, topics)
                except StorageError:
                    self._topics = before
                    raise
            else:
                write_topics(self.root, topics)
                self._topics = topics

    def _is_synchronous(self, topic: str) -> bool:
        return self.settings_of(topic).flush is Flush.SYNC

    def _pass_over(self, queues: Sequence[QueueKey]) -> None:
        """Marks offsets as missing that may have been given out before a power cut took their messages."""
        if queues:
            now_us = int(self._clock() * 1e6)
            ends = [self._queues.of(*queue).end + AHEAD_MAX for queue in queues]
            self._note(
                self._place(
                    [Append(*queue, hole(end, now_us, Kind.PASSED)) for queue, end in zip(queues, ends, strict=True)]
                )
            )
            self._writer.sync()
            self._write_cells(self._writer.end)
            self._require_usable()
            _log.warning(
                "log.not_closed",
                "the log %(log)s was not closed before the machine stopped: what its timed topics appended last may be "
                "gone, and %(queues)d queues pass over %(offsets)d offsets each, which readers are told of",
                log=self.root,
                queues=len(queues),
                offsets=AHEAD_MAX,
            )
        forget_doubt(self.root)

    # ---- appending

    def append(self, appends: Sequence[Append], flush: Flush | None = None) -> list[int]:
        """Appends all batches, or none, and returns their first offsets. On disk as each topic's flush promises.

        flush: SYNC: all are on disk, whatever their topics say. TIMED: none is waited for; those of a synchronous topic
        are seen when they are on disk. Raises MisuseError for a base_offset that is not the queue's end, or a queue
        that takes nothing, InvalidName, StorageError for a full disk, NotLeader.
        """
        self._write_lock.require()
        with self._lock:
            self.require_leader()
            self._require_usable()
            self._require_open_for(appends)
            if any(append.due_at_us is not None for append in appends):
                appends = [self.waiting(append) for append in appends]
            timed = self._named_early(appends)
            placed = self._place(appends)
            self._note(placed)
            # What is seen early is bounded, or nothing would tell which offsets a power cut leaves free.
            may_be_early = self._writer.offsets_unsynced <= AHEAD_MAX
            early = [queue for queue, _, _ in placed if (queue.topic, queue.queue) in timed] if may_be_early else []
            if early:
                self._write_cells(self._writer.end, early)
            is_waited_for = len(early) < len(placed) and (flush is not Flush.TIMED or not may_be_early)
            end = self._writer.end if is_waited_for or flush is Flush.SYNC else 0
        if end:
            self._sync(end)
        if any(append.topic == DELAYED for append in appends):
            self.moving.wake()
        return [cell.base_offset for _, cell, _ in placed]

    def next_offset(self, topic: str, queue: int) -> int:
        """The offset that the next message of a queue gets. Raises InvalidName, MisuseError, CorruptLog."""
        with self._lock:
            return self._queues.of(topic, queue).end

    def waiting(self, append: Append) -> Append:
        """What is appended now: of a delayed batch, one that waits for its time. Raises InvalidMessage, MisuseError."""
        due_at_us = append.due_at_us
        if due_at_us is None:
            return append
        if append.base_offset is not None:
            raise MisuseError(f"a delayed batch for topic {append.topic} has no offset before it is due: give None")
        self._require_open_for([append])
        batch = Batch(append.topic, append.queue, append.payload)
        ahead_us = int(self.config.delay_max_s * 1e6)
        return Append(DELAYED, ENTRIES, entry_of(batch, due_at_us, now_us=int(self._clock() * 1e6), ahead_us=ahead_us))

    def _move(self, batches: Sequence[Batch], note: Callable[[Sequence[int]], Batch]) -> list[int]:
        """Appends what is due, behind a note that says where it stands; on disk on return. Raises StorageError.

        Also to topics that are closed: it was accepted before. Readers see it when it is on disk.
        """
        self._write_lock.require()
        appends = [Append(*batch) for batch in batches]
        with self._lock:
            self.require_leader()
            self._require_usable()
            _, foreseen, _ = packed(appends, self._queues, self._writer, self.identity)
            bases = [cell.base_offset for _, cell, _ in foreseen]
            self._own.update((batch.topic, batch.queue) for batch in batches)
            self._note(self._place([Append(*note(bases)), *appends]))
            end = self._writer.end
        self._sync(end)
        return bases

    def _queue_that_takes(self, topic: str, queue: int) -> int:
        """This one, or if it is not read any more, one that is."""
        settings = self.settings_of(topic)
        return queue if settings.read_queues is None else queue % settings.read_queues

    def _require_open_for(self, appends: Sequence[Append]) -> None:
        """Raises MisuseError for a queue that takes nothing. What a mirror appends is not the producers' choice."""
        for append in appends:
            settings = self.settings_of(append.topic)
            if append.is_mirrored or settings.takes(append.queue):
                continue
            if settings.permission in {Permission.READ, Permission.NONE}:
                what, way_out = f"topic {append.topic} has permission {settings.permission}", "--permission rw"
            else:
                assert settings.read_queues is not None
                what = f"queue {append.queue} of topic {append.topic} is not read, but 0 to {settings.read_queues - 1}"
                way_out = f"--read-queues {append.queue + 1}"
            raise MisuseError(
                f"{what}: nothing was appended; allow it with `txmsg metaq set LOG {append.topic} {way_out}`"
            )

    def _place(self, appends: Sequence[Append]) -> list[Placed]:
        """Writes frames to the end of the log: all of them, and into one file, or none."""
        parts, placed, size = packed(appends, self._queues, self._writer, self.identity)
        if not self._writer.room(size):
            self._writer.roll()
            self._write_cells(self._writer.synced)
            self._indexer.wake()
            parts, placed, _ = packed(appends, self._queues, self._writer, self.identity)  # for where they stand now
        self._writer.append(parts, sum(end - cell.base_offset for _, cell, end in placed))
        return placed

    def _named_early(self, appends: Sequence[Append]) -> set[QueueKey]:
        """The queues whose messages may be seen before they are on disk. The log says so first. Raises StorageError."""
        timed = {(append.topic, append.queue) for append in appends if not self._is_synchronous(append.topic)}
        new = {
            key for append in appends if not append.is_mirrored and (key := (append.topic, append.queue)) in timed
            and key not in self._ahead
        }  # fmt: skip
        self._own.update((append.topic, append.queue) for append in appends if not append.is_mirrored)
        if new:
            for key in new:
                self._queues.of(*key)  # only what may be a queue
            self._ahead.name(new)
        return timed

    def _note(self, placed: Sequence[Placed]) -> None:
        """Moves the ends of queues."""
        for queue, cell, end in placed:
            self._queues.add(queue, cell, end)

    def _write_cells(self, up_to: int, only: Sequence[QueueEnd] | None = None) -> None:
        """Lets readers see frames before this position. What cannot be written waits; `_require_usable` tries again."""
        try:
            self._queues.write(up_to, only)
            self._unseen = None
        except OSError as exc:
            self._unseen = exc

    def require_leader(self) -> None:
        """Raises NotLeader for a log that takes no changes: what stands beside its frames, too."""
        if self.follows:
            raise not_leader(self.root, "it is a copy")
        if self._fenced is not None:
            raise not_leader(
                self.root, f"a copy of it was promoted, and goes on as generation {self._fenced.generation}"
            )

    def _require_usable(self) -> None:
        if self._writer.failed is not None:
            raise StorageError(
                f"the log {self.root} accepts no more appends: {self._writer.failed}"
            ) from self._writer.failed
        if self._closed.is_set():
            raise MisuseError(f"the log {self.root} is closed: open it again")
        if self._unseen is not None:
            self._write_cells(self._writer.synced)
        if self._unseen is not None:
            raise StorageError(
                f"the log {self.root} is full: {self._unseen.strerror}; nothing was appended, and the messages before "
                "it are on disk but not visible until there is space"
            ) from self._unseen

    # ---- cutting

    def fork(self, cuts: Sequence[tuple[str, int, int]]) -> int:
        """Goes on under a new generation, in which these queues (topic, queue, offset) end at these offsets.

        Returns the generation, which stands in all later frames. For the rest see `truncate`.
        """
        self._write_lock.require()
        with self._lock:
            self.require_leader()
            self._begin_generation(self.identity.generation + 1)
            identity = self.identity
        for topic, queue, offset in cuts:
            self.truncate(topic, queue, offset)
        return identity.generation

    def _begin_generation(self, generation: int) -> None:
        identity = Identity(self.identity.log_id, generation)
        write_identity(self.root, identity)
        self.identity = identity

    def truncate(self, topic: str, queue: int, offset: int) -> None:
        """Drops the messages of a queue from this offset on; the next one that is appended gets it. On disk on return.

        The frames stay where they are, as other queues' stand between them: a mark in the log says that they are void.
        The offset may lie before those that are kept. Raises OffsetOutOfRange past the end, and CorruptLog when the
        frame that would have to be kept in part is damaged.
        """
        self._write_lock.require()
        with self._sync_lock, self._lock:
            self.require_leader()
            self._settle()
            end = self._queues.of(topic, queue)
            begin, payloads = self._queues.reader.queue(topic, queue).cut_at(offset)
            if not payloads:
                return
            end_before, end.end = end.end, begin
            try:
                placed = self._place([Append(topic, queue, payload) for payload in payloads])
            except StorageError:
                end.end = end_before
                raise
            self._writer.sync()
            try:
                end.cut(self._queues.files, begin)
            except OSError as exc:
                self._writer.fail(f"cells of topic {topic} queue {queue} cannot be cut: {exc.strerror}; open it again")
                raise
            self._note(placed)
            self._write_cells(self._writer.end)

    def refill(self, topic: str, queue: int, base_offset: int, payload: Payload) -> bool:
        """Puts messages in the place of a hole of exactly their offsets, which a repair has left. On disk on return.

        False when they need more room than the hole has: so they stay missing. Those that stood there fit, if they are
        compressed as they were. Raises MisuseError when there is no such hole, OffsetOutOfRange, CorruptLog.
        """
        self._write_lock.require()
        with self._sync_lock, self._lock:
            self.require_leader()
            self._settle()
            return refill(self._queues.reader, topic, queue, base_offset, payload)

    # ---- copies

    @property
    def synced(self) -> int:
        """Everything before this position is on disk. Copies get no more, so that none is ahead of its leader."""
        return self._writer.synced

    @property
    def own_queues(self) -> Collection[QueueKey]:
        """The queues that were appended to since it was opened, but for those that are mirrored, or read by nobody."""
        with self._lock:
            return frozenset(queue for queue in self._own if queue[0] != DELAYED)

    def fence(self, generation: int, copy_id: bytes) -> int:
        """Takes no appends from now on, also when it is opened again: a copy goes on under this generation.

        Returns where it ends; everything before is on disk. Raises MisuseError for a generation that is not later,
        NotLeader for a copy, and when another copy asked before.
        """
        self._write_lock.require()
        with self._sync_lock, self._lock:
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
            self._settle()
            fence = Fence(generation, copy_id)
            write_fence(self.root, fence)
            self._fenced = fence
            return self._writer.synced

    def take_frames(self, first: int, frames: memoryview, headers: Sequence[Header]) -> None:
        """Appends what the leader has at the same position, in the file that begins at `first`. On disk on return.

        headers: of the frames, which are whole. Raises BadFrame for frames that do not follow, StorageError.
        """
        assert self.follows
        self._write_lock.require()
        with self._sync_lock, self._lock:
            self._require_usable()
            writer = self._writer
            if first != writer.first and first == writer.end:
                writer.roll()
                self._indexer.wake()
            if (first, headers[0].position) != (writer.first, writer.end):
                raise BadFrame(
                    f"frames at position {headers[0].position} of file {first} came, where {writer.end} of file "
                    f"{writer.first} is expected"
                )
            if headers[-1].generation > self.identity.generation:
                self._begin_generation(headers[-1].generation)
            writer.append([frames], 0)
            writer.sync()
            for header in headers:
                if header.kind is not Kind.PAD:
                    at = header.position - headers[0].position
                    replay(header, self._queues, lambda at=at, header=header: frames[at : at + header.size_bytes])  # type: ignore[misc]
            self._write_cells(writer.end)  # what has no room is said by the next call: these frames are on disk

    def promote(self) -> int:
        """Has a copy be a log of its own from the next time that it is opened on. Returns its generation."""
        assert self.follows
        self._write_lock.require()
        with self._lock:
            self._begin_generation(max(self.identity.generation, self._fenced.generation if self._fenced else 0) + 1)
            forget_copy(self.root)
            return self.identity.generation

    # ---- to disk

    def _settle(self) -> None:
        """Everything that was appended is on disk and visible. Needs both locks. Raises StorageError."""
        self._require_usable()
        self._writer.sync()
        self._write_cells(self._writer.synced)
        self._require_usable()

    def _sync(self, position: int) -> None:
        """Returns when everything before this position is on disk, and seen by readers."""
        with self._sync_lock:  # a second caller finds its work done by the first
            if self._writer.synced < position:
                if self._writer.failed is not None:
                    raise self._writer.failed
                self._writer.sync()
            with self._lock:
                self._write_cells(self._writer.synced)

    def flush(self) -> None:
        """Everything that was appended is on disk. Raises StorageError."""
        self._write_lock.require()
        self._sync(self._writer.end)

    def checkpoint(self) -> None:
        """Flushes, syncs cells, and notes it, so that a recovery has little to read. Raises StorageError."""
        self._write_lock.require()
        with self._checkpoint_lock:
            # Not self.reader, which another thread may read by.
            self._checkpoint(CommitLogReader(self.root / "commitlog").begin())

    def _checkpoint(self, begin: int) -> bool:
        """Whether it was noted. Not while cells wait for room on the disk: the checkpoint before is still true."""
        files = self._queues.files
        with self._lock:
            checkpoint = Checkpoint(self._writer.end, begin, self._queues.ends())
        self._sync(checkpoint.position)
        with self._lock:
            if self._queues.complete_up_to(checkpoint.position) < checkpoint.position:
                return False
            unsynced, files.unsynced = files.unsynced, Unsynced()
        try:
            sync_files(self.root, unsynced)
        except OSError as exc:
            with self._lock:
                files.unsynced.add(unsynced)
            raise StorageError(f"the cells of {self.root} cannot be synced: {exc.strerror}") from exc
        write_checkpoint(self.root, self.identity.log_id, checkpoint)
        return True

    def _note_begin(self, begin: int) -> None:
        """Before files are deleted: so that one which is missing otherwise is missed."""
        try:
            noted = self._checkpoint(begin)
        except StorageError:  # the disk may be full, and deleting makes room
            noted = False
        if not noted:
            (self.root / "checkpoint").unlink(missing_ok=True)  # without one, all is read
            sync_directory(self.root)

    def use(self, config: LogConfig) -> None:
        """From now on these settings hold, as far as they are live: within the `flush_s` from before."""
        self.config = config

    def delete_old(self, *, size_bytes_max: int | None = None) -> list[int]:
        """Deletes the oldest files that are beyond the age or the size to be kept; which ones, by first position.

        Never the file that is written. Done by itself at each checkpoint. size_bytes_max: other than configured.
        """
        self._write_lock.require()
        with self._checkpoint_lock:
            deleted = delete_old_files(
                self.root,
                end=self._writer.end,
                size_bytes_max=self.config.retention_size_bytes if size_bytes_max is None else size_bytes_max,
                keep_s=self._keep_s,
                now=self._clock(),
                note=self._note_begin,
                # A copy's mover moves nothing: what waits is its leader's to keep.
                kept_from=None if self.follows else self._mover.kept_from(),
            )
        self._deleted_files += len(deleted)
        return deleted

    def size(self) -> LogSize:
        """How large the log is now. Reads its directory."""
        firsts = files_of(self.root / "commitlog", ".log")
        end = self._writer.end
        return LogSize(end - next(iter(firsts), end), len(firsts))

    def counts(self) -> LogCounts:
        """What its writer has done."""
        return LogCounts(self._writer.end - self._writer.synced, self._deleted_files, self._writer.syncs)

    def index_keys(self) -> None:
        """Indexes the keys of all finished files. Done by itself, on a thread, after a file is finished."""
        self._write_lock.require()
        self._indexer.run_once()

    def _keep_s(self, topic: str) -> float | None:
        if self.follows:
            return None  # a copy deletes what its leader has deleted
        wanted = self.settings_of(topic).retention_s
        return self.config.retention_s if wanted is None else wanted

    def _flush_periodically(self) -> None:
        since_checkpoint_s = 0.0
        trouble = ""
        while not self._closed.wait(self.config.flush_s) and self._writer.failed is None:
            since_checkpoint_s += self.config.flush_s
            try:
                if self._writer.synced < self._writer.end or self._unseen is not None:
                    self.flush()
                if since_checkpoint_s >= self.config.checkpoint_s:
                    since_checkpoint_s = 0.0
                    if not self.follows:
                        self.delete_old()
                    self._indexer.wake()  # a full disk may have stopped it
                    self.checkpoint()
                trouble = ""
            except (OSError, TxmsgError) as exc:  # a full disk: tried again until there is room
                if trouble != str(exc):
                    _log.warning(
                        "log.not_in_order", "the log %(log)s is not in order: %(error)s", log=self.root, error=exc
                    )
                trouble = str(exc)
            except Exception as exc:  # noqa: BLE001 - the root of a thread: the next append says it
                _log.exception("log.stopped", "the log %(log)s stops", log=self.root)
                self._writer.fail(f"its flushing ended with {exc!r}; open it again")

    def close(self) -> None:
        """Flushes everything and lets another process write, whatever the disk says. Closing twice is fine."""
        if self._closed.is_set() or self.is_copy:
            return
        self.moving.stop()
        self._closed.set()
        self._flusher.join()
        self._indexer.stop()
        with self._opened as opened:
            opened.callback(self._close_writer)
            if self._writer.failed is None:
                self.checkpoint()

    def _close_writer(self) -> None:
        with self._sync_lock, self._lock:  # an append that was under way has ended, or finds its work done
            self._writer.close()
            self._write_cells(self._writer.synced)
            if self._writer.failed is None and not self.follows:
                self._ahead.forget()


class LogSize(NamedTuple):
    """The files of messages of a log."""

    size_bytes: int
    files: int


class LogCounts(NamedTuple):
    """What the writer of a log has done since it was opened."""

    unsynced_bytes: int
    """Appended, and not known to be on disk."""
    deleted_files: int
    syncs: Histogram
    """Seconds that the disk took."""


class Append(NamedTuple):
    """A batch for one queue. base_offset: where it must begin, or None: at the queue's end.

    A queue that nothing was ever appended to begins at base_offset. is_mirrored: the messages stand elsewhere under
    these offsets, and their producer appends them again when a power cut has taken them. due_at_us: the batch waits
    until then, and the offset that its append returns is not that of its queue.
    """

    topic: str
    queue: int
    payload: Payload
    base_offset: int | None = None
    is_mirrored: bool = False
    due_at_us: int | None = None


Placed: TypeAlias = tuple[QueueEnd, Cell, int]
"""A frame that was placed: its queue, its cell, and the offset after it."""


def packed(
    appends: Sequence[Append], queues: Queues, writer: CommitLogWriter, identity: Identity
) -> tuple[list[Buffer], list[Placed], int]:
    """The frames as they will stand at the end of the log, in parts, and their size. Moves nothing yet.

    Raises MisuseError for a base_offset that is not the queue's end, and as `Queues.of`.
    """
    parts: list[Buffer] = []
    placed: list[Placed] = []
    ends: dict[QueueEnd, int] = {}
    position = writer.end
    for topic, number, payload, base_offset, *_ in appends:
        queue = queues.of(topic, number)
        at = ends.get(queue, queue.end)
        if base_offset is not None and base_offset != at:
            if not queue.is_new or queue in ends:
                raise MisuseError(
                    f"offset {base_offset} of topic {topic} queue {number}: the next one is {at}; nothing was appended"
                )
            at = base_offset
        frame = pack(
            payload,
            queue.name,
            number,
            at,
            position=position,
            log_id=identity.log_id,
            synced=writer.synced,
            generation=identity.generation,
        )
        parts += frame
        size = sum(map(len, frame))
        crc = header_crc_of(frame)
        end = hole_end_of(payload) if payload.kind in HOLES else at + payload.count
        placed.append((queue, Cell(at, position, size, payload.count, payload.last_stored_at_us, crc), end))
        ends[queue] = end
        position += size
    return parts, placed, position - writer.end
