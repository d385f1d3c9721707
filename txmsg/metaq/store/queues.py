"""Consume queues, for the writer: the end of each queue, and its cells, which are written when frames may be read."""

from __future__ import annotations

import ctypes
import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from txmsg.errors import CorruptLog, MisuseError
from txmsg.message import QUEUES_MAX, check_name
from txmsg.metaq.store.cells import (
    CELL_SIZE_BYTES,
    CELLS_PER_FILE_MAX,
    Cell,
    Cells,
    cells_file,
    queue_directory,
    queues_of,
    seed_of,
)
from txmsg.metaq.store.commit_log import sync_directory
from txmsg.metaq.store.lock import make_private
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.state import QueueKey

_SYNCED_ONE_BY_ONE_MAX: Final = 64
_OPEN_FILES_SPARED: Final = 256
_NOWHERE: Final = 2**64
_UNKNOWN: Final = -1


@dataclass(slots=True)
class Unsynced:
    """Files that were written, cut or deleted, and their directories, that are not known to be on disk."""

    files: set[str] = field(default_factory=set)
    directories: set[str] = field(default_factory=set)
    """Directories in which files may have been created, or were deleted: syncing one costs a commit of the file
    system's journal.
    """

    def add(self, other: Unsynced) -> None:
        """Add these as well."""
        self.files |= other.files
        self.directories |= other.directories


class OpenFiles:
    """Keeps the last written files of cells open. With ten thousand queues this saves most opening."""

    def __init__(self, count_max: int) -> None:
        self._count_max = _open_files_max(count_max)
        self._fds: OrderedDict[str, int] = OrderedDict()
        self.unsynced = Unsynced()

    def append(self, path: str, data: bytes, size_bytes: int) -> None:
        """Append to a file of this size, created with its directory when missing: all of it, or raise OSError and write
        nothing.
        """
        fd = self._fds.get(path)
        if fd is None:
            fd = self._open(path)
        else:
            self._fds.move_to_end(path)
        self.unsynced.files.add(path)
        if os.write(fd, data) != len(data):
            self._rewrite(fd, data, size_bytes)

    def _rewrite(self, fd: int, data: bytes, size_bytes: int) -> None:
        """Write everything again after a short write: its cause becomes an error, and no partial cell remains."""
        os.ftruncate(fd, size_bytes)
        written = 0
        try:
            while written < len(data):
                written += os.write(fd, data[written:])
        except OSError:
            os.ftruncate(fd, size_bytes)
            raise

    def _open(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            # The directory is nearly always there, so it is not looked for before each file.
            fd = os.open(path, flags, 0o600)
        except FileNotFoundError:
            cells = Path(path)
            make_private(cells.parent, below=cells.parents[3])
            fd = os.open(path, flags, 0o600)
        self.unsynced.directories.add(os.path.dirname(path))
        self._fds[path] = fd
        if len(self._fds) > self._count_max:
            os.close(self._fds.popitem(last=False)[1])
        return fd

    def cut(self, path: str, size_bytes: int) -> None:
        """Keep so many bytes of a file, or delete it if there are none."""
        self.unsynced.files.add(path)
        if size_bytes:
            os.truncate(path, size_bytes)
            return
        if (fd := self._fds.pop(path, None)) is not None:
            os.close(fd)
        self.unsynced.directories.add(os.path.dirname(path))
        os.unlink(path)

    def close(self) -> None:
        """Close all files."""
        while self._fds:
            os.close(self._fds.popitem()[1])


def _open_files_max(wanted: int) -> int:
    import resource

    # The soft limit, often 1,024, is raised as well: ten thousand queues need more.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(64, min(wanted, hard - _OPEN_FILES_SPARED))


def sync_files(root: Path, unsynced: Unsynced) -> None:
    """Sync these files and directories to disk."""
    are_many = len(unsynced.files) > _SYNCED_ONE_BY_ONE_MAX
    if are_many and (syncfs := getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)):
        # One pass over the file system, not one commit of its journal for each of ten thousand files.
        fd = os.open(root, os.O_RDONLY)
        try:
            if syncfs(fd):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(fd)
        return
    for path in unsynced.files:
        try:
            fd = os.open(path, os.O_WRONLY)
        except FileNotFoundError:
            continue  # deleted: syncing its directory does it
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
    directories = {Path(name) for name in unsynced.directories}
    if directories:
        # A new queue may have new parents: the name at each level must be on disk for the file to be found.
        directories |= {*(directory.parent for directory in directories), root / "queues", root}
    for directory in directories:
        if directory.is_dir():
            sync_directory(directory)


@dataclass(slots=True, eq=False)
class QueueEnd:
    """The end of a queue, and cells that are not written yet."""

    topic: str
    queue: int
    directory: Path
    end: int
    is_new: bool
    """True if nothing was ever appended: it begins where the first append says."""
    last_stored_at_us: int
    file: str
    file_cells: int
    seed: int
    name: bytes = field(init=False)
    waiting: list[Cell] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.topic.encode()

    def add(self, cell: Cell, end: int) -> None:
        """Note the cell of a frame that was appended. `end`: the offset after it."""
        if cell.last_stored_at_us >= self.last_stored_at_us:
            self.last_stored_at_us = cell.last_stored_at_us
        else:
            # Readers bisect cells by time, so times must rise: a batch of a slower clock gets the time of the cell
            # before.
            cell = cell._replace(last_stored_at_us=self.last_stored_at_us)
        self.waiting.append(cell)
        self.end, self.is_new = end, False

    def write(self, files: OpenFiles, up_to: int) -> None:
        """Write the cells of frames that begin before this position. After an OSError they wait."""
        while self.waiting and self.waiting[0].position < up_to:
            if self.file_cells >= CELLS_PER_FILE_MAX or not self.file_cells:
                self.file, self.file_cells = str(cells_file(self.directory, self.waiting[0].base_offset)), 0
            ready = self.waiting[: CELLS_PER_FILE_MAX - self.file_cells]
            if ready[-1].position >= up_to:
                ready = ready[: bisect_left(ready, up_to, key=lambda cell: cell.position)]
            data = b"".join([cell.pack(self.seed) for cell in ready])
            files.append(self.file, data, self.file_cells * CELL_SIZE_BYTES)
            self.file_cells += len(ready)
            del self.waiting[: len(ready)]

    def cut(self, files: OpenFiles, offset: int) -> None:
        """Drop the cells of frames that begin at this offset or later, written or not."""
        self.waiting = [cell for cell in self.waiting if cell.base_offset < offset]
        self.file, self.file_cells, last = _drop_cells(files, self.directory, _base_offset, offset)
        last = self.waiting[-1] if self.waiting else last
        self.last_stored_at_us = last.last_stored_at_us if last else 0
        self.end = offset


def _base_offset(cell: Cell) -> int:
    return cell.base_offset


def _position(cell: Cell) -> int:
    return cell.position


def _drop_cells(
    files: OpenFiles, directory: Path, what: Callable[[Cell], int], limit: int
) -> tuple[str, int, Cell | None]:
    """Drop the cells from this limit on. Returns the file to append to, how many cells it has, and the last one."""
    cells = Cells(directory)
    for base in reversed(cells.files()):
        path = cells_file(directory, base)
        with cells.open(base) as found:
            count = len(found)
            kept = count if count and what(found[-1]) < limit else bisect_left(found, limit, key=what)
            last = found[kept - 1] if kept else None
        if kept * CELL_SIZE_BYTES != path.stat().st_size:  # also drops half a cell that a crash left
            files.cut(str(path), kept * CELL_SIZE_BYTES)
        if kept:
            return str(path), kept, last
    return "", 0, None


class Queues:
    """All queues of a log that are appended to. Not safe for threads, but `sync_files` may run at the same time."""

    def __init__(self, root: Path, open_files_max: int) -> None:
        self._root = root
        self.reader = LogReader(root)
        self._ends: dict[tuple[str, int], QueueEnd] = {}
        self._waiting: dict[QueueEnd, None] = {}
        self.files = OpenFiles(open_files_max)
        self.known_ends: dict[QueueKey, int] = {}
        """The ends of queues when the log was opened."""

    def of(self, topic: str, queue: int) -> QueueEnd:
        """Return one queue. Raises InvalidName, MisuseError for a wrong number, CorruptLog when its end is damaged."""
        end = self._ends.get((topic, queue))
        return self._load(topic, queue) if end is None else end

    def _load(self, topic: str, queue: int) -> QueueEnd:
        check_name("topic", topic)
        if not 0 <= queue < QUEUES_MAX:
            raise MisuseError(f"queue {queue} of topic {topic!r}: 0 to {QUEUES_MAX - 1} are allowed")
        directory = queue_directory(self._root, topic, queue)
        # This drops the half cell that a crash may have left, and nothing else: no frame has this position.
        file, count, last = _drop_cells(self.files, directory, _position, _NOWHERE)
        end = QueueEnd(
            topic=topic,
            queue=queue,
            directory=directory,
            end=self.reader.queue(topic, queue).checked_end(),
            is_new=last is None and self.reader.queue(topic, queue).is_new(),
            last_stored_at_us=last.last_stored_at_us if last else 0,
            file=file,
            file_cells=count,
            seed=seed_of(self.reader.log_id, topic, queue),
        )
        self._ends[topic, queue] = end
        return end

    def add(self, queue: QueueEnd, cell: Cell, end: int) -> None:
        """Note the cell of a frame that was appended, to be written when it may be seen."""
        queue.add(cell, end)
        self._waiting[queue] = None

    def write(self, up_to: int, only: Iterable[QueueEnd] | None = None) -> None:
        """Write the cells of frames that begin before this position. After an OSError all that are left wait."""
        for queue in list(self._waiting) if only is None else only:
            queue.write(self.files, up_to)
            if not queue.waiting:
                self._waiting.pop(queue, None)

    def complete_up_to(self, position: int) -> int:
        """Return the position before which all cells are written, at most this one."""
        return min([position, *(queue.waiting[0].position for queue in self._waiting)])

    def ends(self) -> dict[QueueKey, int]:
        """Return the ends of all queues that ever had messages."""
        return {**self.known_ends, **{key: queue.end for key, queue in self._ends.items() if not queue.is_new}}

    # ---- when the log is opened

    def drop_from(self, position: int, is_synchronous: Callable[[str], bool] | None = None) -> int:
        """Drop the cells of all frames from this position on: recovery finds them again. Then `known_ends` are true.

        Returns the position up to which cells of synchronous topics say that the log was on disk.
        """
        on_disk = 0
        self.known_ends.clear()
        for topic, number in queues_of(self._root):
            queue, directory = self.reader.queue(topic, number), queue_directory(self._root, topic, number)
            if is_synchronous and is_synchronous(topic):
                last = Cells(directory).last()
                # Only a whole cell of this queue is evidence for what was on disk.
                if last is not None and last.is_whole(seed_of(self.reader.log_id, topic, number)):
                    on_disk = max(on_disk, last.position + last.size_bytes)
            _drop_cells(self.files, directory, _position, position)
            if not queue.is_new():
                try:
                    self.known_ends[topic, number] = queue.end_offset()
                except CorruptLog:
                    # Frames may still tell its end; otherwise recovery refuses the log, or an offset could be given
                    # twice.
                    self.known_ends[topic, number] = _UNKNOWN
        return on_disk

    def forget_queue(self, topic: str, number: int) -> None:
        """Delete all cells of a queue."""
        remove_cells(queue_directory(self._root, topic, number))
        self._ends.pop((topic, number), None)
        self.known_ends.pop((topic, number), None)


def mark_end(directory: Path, end: int) -> None:
    """Record where a queue with no messages kept continues: an empty file of cells."""
    # The mark is an empty file whose name is the offset: it needs no second format, and bisecting files by their names
    # finds it like any other.
    make_private(directory, below=directory.parents[2])
    remove_cells(directory)
    cells_file(directory, end).touch(0o600)
    sync_directory(directory)


def remove_cells(directory: Path) -> None:
    """Delete the cells of a queue."""
    for base in Cells(directory).files():
        cells_file(directory, base).unlink()
