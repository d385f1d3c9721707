"""The end of a log, where it grows: places frames, syncs them for all waiting appends, and publishes them to readers.

Does not decide who may append, nor to what: `log` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from txmsg.errors import MisuseError, StorageError
from txmsg.metaq.format.frame import (
    HOLES,
    BadFrame,
    Buffer,
    FrameKind,
    Header,
    Payload,
    header_crc_of,
    hole,
    hole_end_of,
    pack,
)
from txmsg.metaq.store.ahead import AHEAD_MAX, AheadFile, forget_doubt, queues_in_doubt
from txmsg.metaq.store.cells import Cell
from txmsg.metaq.store.commit_log import CommitLogWriter, unwritten
from txmsg.metaq.store.queues import QueueEnd, Queues
from txmsg.metaq.store.recovery import replay
from txmsg.metaq.store.state import LogIdentity, QueueKey, write_identity
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)


class Append(NamedTuple):
    """A batch for one queue. base_offset: where it must begin; None: at the queue's end.

    A queue that was never appended to begins at base_offset. is_mirrored: the messages exist elsewhere under these
    offsets, and their producer appends them again after a power cut. due_at_us: the batch waits until then, and the
    offset that its append returns is not an offset of its queue.
    """

    topic: str
    queue: int
    payload: Payload
    base_offset: int | None = None
    is_mirrored: bool = False
    due_at_us: int | None = None


Placed: TypeAlias = tuple[QueueEnd, Cell, int]
"""A frame that was placed: its queue, its cell, and the offset after it."""


class LogEnd:
    """The end of an open log. Methods need `lock` unless they say otherwise.

    position: the end of the log; everything before is on disk. on_rolled: called when a file is completed.
    """

    def __init__(
        self,
        root: Path,
        identity: LogIdentity,
        queues: Queues,
        *,
        position: int,
        file_size_bytes_max: int,
        on_rolled: Callable[[], None],
    ) -> None:
        self.lock = threading.Lock()
        """The order of appends."""
        self.root = root
        self.identity = identity
        self.queues = queues
        self.own: set[QueueKey] = set()
        """The queues appended to, without mirrored ones."""
        self.is_closed = False
        self._syncing = threading.Lock()  # one fdatasync at a time, for all that wait; taken before `lock`
        self._ahead = AheadFile(root)
        self._unseen: OSError | None = None  # the reason why cells are not written yet
        self._on_rolled = on_rolled
        self.writer = CommitLogWriter(
            root / "commitlog",
            end=position,
            file_size_bytes_max=file_size_bytes_max,
            on_failure=self._ahead.spoil,
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Prevent appends and syncs meanwhile. Holds `lock`."""
        with self._syncing, self.lock:
            yield

    def require_usable(self) -> None:
        """Raise StorageError, or MisuseError if it was closed."""
        if self.writer.failed is not None:
            raise StorageError(
                f"the log {self.root} accepts no more appends: {self.writer.failed}"
            ) from self.writer.failed
        if self.is_closed:
            raise MisuseError(f"the log {self.root} is closed: open it again")
        # Cells that found no room are tried before each append: until they are written, readers see neither them nor
        # what follows.
        if self._unseen is not None:
            self.write_cells(self.writer.synced)
        if self._unseen is not None:
            raise StorageError(
                f"{unwritten(self.root, self._unseen)}; nothing was appended, and the messages before "
                "it are on disk but not visible until there is space"
            ) from self._unseen

    # ---- appending

    def place(self, appends: Sequence[Append]) -> list[Placed]:
        """Write frames to the end of the log: all of them, into one file, or none."""
        parts, placed, size = self.foreseen(appends)
        if not self.writer.room(size):
            # `roll` syncs everything, so it can be published now instead of with the next sync.
            self.writer.roll()
            self.write_cells(self.writer.synced)
            self._on_rolled()
            parts, placed, _ = self.foreseen(appends)  # for where they stand now
        self.writer.append(parts, sum(end - cell.base_offset for _, cell, end in placed))
        return placed

    def foreseen(self, appends: Sequence[Append]) -> tuple[list[Buffer], list[Placed], int]:
        """Return the frames as they will stand at the end of the log, in parts, and their size. Moves nothing yet.

        Raises MisuseError for a base_offset that is not the queue's end, and as `Queues.of`.
        """
        parts: list[Buffer] = []
        placed: list[Placed] = []
        # Ends are only foreseen here; `note` moves them after the write, so a failed write leaves the queues as they
        # were.
        ends: dict[QueueEnd, int] = {}
        position = self.writer.end
        for topic, number, payload, base_offset, *_ in appends:
            queue = self.queues.of(topic, number)
            at = ends.get(queue, queue.end)
            if base_offset is not None and base_offset != at:
                if not queue.is_new or queue in ends:
                    raise MisuseError(
                        f"offset {base_offset} of topic {topic} queue {number}: the next one is {at}; nothing was "
                        "appended"
                    )
                at = base_offset
            # Each frame says up to where the log was on disk when it was made. By that a recovery tells damage, which
            # was acknowledged, from the torn end of a crash, which was not.
            frame = pack(
                payload,
                queue.name,
                number,
                at,
                position=position,
                log_id=self.identity.log_id,
                synced=self.writer.synced,
                generation=self.identity.generation,
            )
            parts += frame
            size = sum(map(len, frame))
            crc = header_crc_of(frame)
            end = hole_end_of(payload) if payload.kind in HOLES else at + payload.count
            placed.append((queue, Cell(at, position, size, payload.count, payload.last_stored_at_us, crc), end))
            ends[queue] = end
            position += size
        return parts, placed, position - self.writer.end

    def bases(self, appends: Sequence[Append]) -> list[int]:
        """Return the offsets at which these batches of messages will begin, each where its queue ends."""
        bases: list[int] = []
        ends: dict[QueueEnd, int] = {}
        for append in appends:
            queue = self.queues.of(append.topic, append.queue)
            bases.append(ends.get(queue, queue.end))
            ends[queue] = bases[-1] + append.payload.count
        return bases

    def note(self, placed: Sequence[Placed]) -> None:
        """Move the ends of queues after these frames, whose cells wait to be written."""
        for queue, cell, end in placed:
            self.queues.add(queue, cell, end)

    def name_early(self, queues: Collection[QueueKey]) -> None:
        """Record first that messages of these queues may be seen before they are on disk. Raises StorageError.

        Raises InvalidName and MisuseError for what cannot be a queue.
        """
        if new := {queue for queue in queues if queue not in self._ahead}:
            for queue in new:
                self.queues.of(*queue)
            self._ahead.name(new)

    def pass_over_doubt(self, now_us: int) -> None:
        """Mark offsets as missing that may have been assigned before a power cut lost their messages."""
        if queues := queues_in_doubt(self.root):
            # The recovered end plus the bound is above every offset that was ever visible, so no mark per queue has to
            # be reserved, written and renewed (decision 0035).
            ends = [self.queues.of(*queue).end + AHEAD_MAX for queue in queues]
            self.note(
                self.place(
                    [
                        Append(*queue, hole(end, now_us, FrameKind.PASSED))
                        for queue, end in zip(queues, ends, strict=True)
                    ]
                )
            )
            self.settle()
            _log.warning(
                "log.not_closed",
                "the log %(log)s was not closed before the machine stopped: what its timed topics appended last may be "
                "gone, and %(queues)d queues pass over %(offsets)d offsets each, which readers are told of",
                log=self.root,
                queues=len(queues),
                offsets=AHEAD_MAX,
            )
        # Only when the marks are on disk. A crash before that repeats them, which costs offsets and loses nothing.
        forget_doubt(self.root)

    def cut(self, topic: str, queue: int, begin: int, payloads: Sequence[Payload]) -> None:
        """Continue a queue at `begin`, with these batches; its messages from there on become void. On disk on return.

        Needs `alone`.
        """
        end = self.queues.of(topic, queue)
        # Frames are packed for the queue's end, so it moves first, and back if nothing was written.
        end_before, end.end = end.end, begin
        try:
            placed = self.place([Append(topic, queue, payload) for payload in payloads])
        except StorageError:
            end.end = end_before
            raise
        # The mark is on disk before cells are dropped: after a crash in between, recovery drops them by it. Cells that
        # end too early without a mark would be damage.
        self.writer.sync()
        try:
            end.cut(self.queues.files, begin)
        except OSError as exc:
            # Cells that are dropped in part contradict the frames. Opening the log again makes them from the frames.
            self.writer.fail(f"cells of topic {topic} queue {queue} cannot be cut: {exc.strerror}; open it again")
            raise
        self.note(placed)
        self.write_cells(self.writer.end)

    def take_frames(self, first: int, frames: memoryview, headers: Sequence[Header]) -> None:
        """Append frames of another log, at the same position as there: see `Log.take_frames`. Needs `alone`."""
        self.require_usable()
        writer = self.writer
        if first != writer.first and first == writer.end:
            writer.roll()
            self._on_rolled()
        if (first, headers[0].position) != (writer.first, writer.end):
            raise BadFrame(
                f"frames at position {headers[0].position} of file {first} came, where {writer.end} of file "
                f"{writer.first} is expected"
            )
        # The identity first, so that `log.json` is never behind the frames.
        if headers[-1].generation > self.identity.generation:
            self.begin_generation(headers[-1].generation)
        # No offsets count as ahead of the disk: a copy publishes frames only after the sync below.
        writer.append([frames], 0)
        writer.sync()
        for header in headers:
            if header.kind is not FrameKind.PAD:
                at = header.position - headers[0].position
                replay(header, self.queues, lambda at=at, header=header: frames[at : at + header.size_bytes])  # type: ignore[misc]
        self.write_cells(writer.end)  # a full disk is reported by the next call: these frames are on disk

    def begin_generation(self, generation: int) -> None:
        """Give later frames this generation of the log. On disk on return."""
        identity = LogIdentity(self.identity.log_id, generation)
        write_identity(self.root, identity)
        self.identity = identity

    # ---- to disk, and to readers

    def write_cells(self, up_to: int, only: Sequence[QueueEnd] | None = None) -> None:
        """Publish frames before this position to readers. Cells that cannot be written wait; `require_usable`
        retries.
        """
        try:
            # A full disk must not fail an append whose frames are on disk: its cells wait in memory, and after a crash
            # recovery makes them from the frames.
            self.queues.write(up_to, only)
            self._unseen = None
        except OSError as exc:
            self._unseen = exc

    def settle(self) -> None:
        """Return when everything appended is on disk and visible. Needs `alone`. Raises StorageError."""
        self.require_usable()
        self.writer.sync()
        self.write_cells(self.writer.synced)
        self.require_usable()

    def sync(self, position: int) -> None:
        """Return when everything before this position is on disk and visible to readers. Without `lock`."""
        # `_syncing` before `lock`, as in `alone`. The fdatasync runs without `lock`, so appends continue meanwhile, and
        # the next caller syncs all of them at once.
        with self._syncing:  # a second caller finds its work done by the first
            if self.writer.synced < position:
                if self.writer.failed is not None:
                    raise self.writer.failed
                self.writer.sync()
            with self.lock:
                self.write_cells(self.writer.synced)

    @property
    def has_unseen(self) -> bool:
        """True if something is not on disk yet, or not visible."""
        return self.writer.synced < self.writer.end or self._unseen is not None

    def close(self, *, is_whole: bool) -> None:
        """Sync and close. is_whole: the next writer need not check for losses. Without `lock`."""
        with self.alone():  # an append that was under way has ended, or finds its work done
            try:
                self.writer.close()
                self.write_cells(self.writer.synced)
                if self.writer.failed is None and is_whole:
                    self._ahead.forget_queues()
            finally:
                self._ahead.close()
