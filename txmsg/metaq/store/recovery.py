"""Brings a log that was not closed in order: adds lost cells and cuts a torn end, or refuses a damaged log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from txmsg.errors import CorruptLog, StorageError
from txmsg.metaq.format.frame import HEADER_SIZE_BYTES_MAX, BadFrame, FrameKind, Header, hole_end, read_header, verify
from txmsg.metaq.store.cells import Cell, Cells, queue_directory
from txmsg.metaq.store.commit_log import CommitLogReader, files_of, log_file, sync_directory
from txmsg.metaq.store.frames import DamagedFrame, frames, torn_end
from txmsg.metaq.store.queues import Queues, mark_end
from txmsg.metaq.store.role import copy_of
from txmsg.metaq.store.state import Checkpoint, QueueKey, checkpoint_of
from txmsg.runtime.owners import refusal_text

_CELLS_HELD_MAX = 65_536


def recover(
    root: Path, log_id: int, queues: Queues, is_synchronous: Callable[[str], bool], *, follows: bool = False
) -> int:
    """Read from the checkpoint on, add lost cells, and cut a torn end.

    follows: the log is a copy. The part torn by a power cut may be followed by whole frames, which say that it was on
    disk: on the leader's disk, from which it is copied again. If it was on the copy's own disk, cells of any topic say
    so.

    Returns the position where the log continues; everything before is on disk. Raises CorruptLog for damage before
    that, and then has changed no frame.
    """
    if copy_of(root) is not None:  # not of a former leader that is to follow: its cells were ahead of its disk
        is_synchronous = _of_any_topic
    return _Recovery(root, log_id, queues, is_synchronous, follows=follows).run()


def _of_any_topic(_: str) -> bool:
    return True


def replay(header: Header, queues: Queues, frame: Callable[[], memoryview]) -> None:
    """Apply a frame to the cells of its queue, as its append did. Raises BadFrame if the queue continues elsewhere."""
    queue = queues.of(header.topic, header.queue)
    # The damaged data that LOST stands for may have been a cut, so it drops later offsets as a cut does.
    if header.kind in {FrameKind.CUT, FrameKind.LOST} and header.base_offset != queue.end:
        queue.cut(queues.files, header.base_offset)
    if header.base_offset != queue.end and not queue.is_new:
        raise BadFrame(
            f"topic {header.topic} queue {header.queue} goes on at offset {queue.end}, not at {header.base_offset}"
        )
    end = header.base_offset + header.count
    if header.is_hole:
        end = hole_end(header, verify(header, frame()))
    queues.add(queue, Cell.of(header), end)


class _Recovery:
    def __init__(
        self, root: Path, log_id: int, queues: Queues, is_synchronous: Callable[[str], bool], *, follows: bool
    ) -> None:
        self._root = root
        self._follows = follows
        self._log_id = log_id
        self._queues = queues
        self._is_synchronous = is_synchronous
        self._known = checkpoint_of(root, log_id)
        self._seen: set[QueueKey] = set()  # queues of which a frame was read
        self._from_begin = False
        self._on_disk = 0  # up to here cells of synchronous topics say that the log was

    def run(self) -> int:
        directory = self._root / "commitlog"
        log, known = CommitLogReader(directory), self._known
        begin = log.begin_position()
        start = max(begin, known.position if known else 0)
        end = self._end_of_files(log, start)
        # Before anything is concluded from the files: what a killed writer wrote can be read, and may not be on disk
        # yet.
        _sync_from(directory, start)
        # Cells of synchronous topics are written after the fdatasync, so the furthest of them proves how much was on
        # disk.
        self._on_disk = self._queues.drop_from(start, self._is_synchronous)
        self._forget_marks()
        if known is None or self._queues.known_ends != known.ends:
            self._from_begin, start = True, begin  # cells were damaged, or taken away: frames tell
            self._queues.drop_from(start)
        end = self._read(log, start, end)
        # All checks come before the cut: a log that is refused keeps its frames for `txmsg metaq check`.
        self._require_ends()
        _cut(directory, end)
        self._write_cells(end)
        return end

    def _damaged(self, how: str) -> CorruptLog:
        return CorruptLog(f"the log {self._root} is damaged: {how}; run `txmsg metaq check`")

    def _end_of_files(self, log: CommitLogReader, start: int) -> int:
        """Return the position after the last byte, if files follow each other and begin as they are named."""
        known = self._known or Checkpoint(0)
        firsts = log.files()
        expected = min(firsts[:1] + ([known.begin] if self._known else []), default=0)
        for first in firsts:
            if first != expected:
                raise self._damaged(f"a file begins at position {first}, where {expected} is expected")
            size = log_file(log.directory, first).stat().st_size
            if size and first < start:
                try:
                    header = read_header(log.read(first, min(size, HEADER_SIZE_BYTES_MAX)))
                except BadFrame as exc:
                    raise self._damaged(f"position {first}: {exc}") from exc
                if (header.position, header.log_id) != (first, self._log_id):
                    raise self._damaged(f"position {first}: there is a frame of another position or log")
            expected += size
        if expected < known.position:
            raise self._damaged(f"it ends at position {expected}, and was on disk up to {known.position}")
        return expected

    def _forget_marks(self) -> None:
        """Delete empty files of cells that no checkpoint knows: they were created as the process ended."""
        known = self._known.ends if self._known else self._queues.known_ends
        for topic, queue in self._queues.known_ends.keys() - known.keys():
            if Cells(queue_directory(self._root, topic, queue)).last() is None:
                self._queues.forget_queue(topic, queue)

    # ---- frames

    def _read(self, log: CommitLogReader, start: int, end: int) -> int:
        """Apply all frames; return their end, which is before `end` if a crash has torn the last ones."""
        try:
            for number, header in enumerate(frames(log, self._log_id, start, end)):
                self._replay(header, log)
                # Written in between, so that a log without a checkpoint does not hold all its cells in memory.
                if number % _CELLS_HELD_MAX == _CELLS_HELD_MAX - 1:
                    self._write_cells(header.end)
        except DamagedFrame as exc:
            # Frames of a copy carry the `synced` of its leader, which says nothing about this disk.
            is_torn = self._follows or torn_end(log, self._log_id, exc.position, end)
            if exc.position < self._on_disk or not is_torn:
                raise self._damaged(f"{exc}, and it had been on disk") from exc
            end = exc.position
        if end < self._on_disk:
            raise self._damaged(f"it ends at position {end}, and cells name frames up to {self._on_disk}")
        return end

    def _replay(self, header: Header, log: CommitLogReader) -> None:
        """Apply a frame to the cells of its queue, as its append did."""
        key = (header.topic, header.queue)
        if self._from_begin and key not in self._seen:
            self._queues.forget_queue(*key)  # drops cells of frames that are not kept
        self._seen.add(key)
        try:
            replay(header, self._queues, lambda: log.read(header.position, header.size_bytes))
        except BadFrame as exc:
            raise self._damaged(f"position {header.position}: {exc}") from exc

    def _require_ends(self) -> None:
        """Continue every queue at least at its end in the checkpoint, or an offset would be assigned twice."""
        known = self._known.ends if self._known and self._from_begin else {}
        for (topic, queue), end in known.items():
            if (topic, queue) not in self._seen:  # nothing of it is kept
                mark_end(queue_directory(self._root, topic, queue), end)
                self._queues.known_ends[topic, queue] = end
        for (topic, queue), end in self._queues.known_ends.items():
            if end < 0 and (topic, queue) not in self._seen:
                raise self._damaged(f"nothing tells where topic {topic} queue {queue} goes on")

    def _write_cells(self, up_to: int) -> None:
        try:
            self._queues.write(up_to)
        except OSError as exc:
            raise StorageError(
                f"the cells of {self._root} cannot be written: {refusal_text(exc, self._root)}, and open it"
            ) from exc


def _sync_from(directory: Path, position: int) -> None:
    """Sync the files: their writer may have been killed before it did. From now on the log says that they are
    on disk.
    """
    firsts = files_of(directory, ".log")
    for first, following in zip(firsts, [*firsts[1:], position + 1], strict=False):
        if following <= position:
            continue
        fd = os.open(log_file(directory, first), os.O_WRONLY)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
    sync_directory(directory)


def _cut(directory: Path, end: int) -> None:
    firsts = files_of(directory, ".log")
    # From the last file back: a crash in between leaves files that follow each other.
    for first in reversed(firsts):
        path = log_file(directory, first)
        if first >= end and first != firsts[0]:
            path.unlink()
            continue
        with path.open("r+b") as file:
            file.truncate(end - first)
            os.fsync(file.fileno())
        break
    sync_directory(directory)
