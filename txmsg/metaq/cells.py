"""Consume queues: a small cell per frame, in files of their own for each queue; docs/log_format.md names the bytes."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from txmsg.errors import CorruptLog
from txmsg.metaq.commit_log import files_of

__all__ = ["CELL", "CELLS_PER_FILE_MAX", "Cell", "Cells", "OpenFiles", "QueueEnd", "queue_directory", "queues_of"]

CELL: Final = np.dtype(
    [
        ("base_offset", "<u8"),
        ("position", "<u8"),
        ("size", "<u4"),
        ("count", "<u4"),
        ("last_stored_at", "<i8"),
    ]
)
assert CELL.itemsize == 32
CELLS_PER_FILE_MAX: Final = 1024 * 1024


def queue_directory(root: Path, topic: str, queue: int) -> Path:
    """Where the cells of a queue lie, in the directory of the log."""
    return root / "queues" / topic / f"{queue:04}"


def queues_of(root: Path) -> list[tuple[str, int]]:
    """The topics and queue numbers that have cells."""
    return sorted((each.parent.name, int(each.name)) for each in root.glob("queues/*/*") if each.is_dir())


def cells_file(directory: Path, base_offset: int) -> Path:
    """The file whose first cell begins at this offset."""
    return directory / f"{base_offset:020}.cells"


class Cell(NamedTuple):
    """Where a frame stands, and what it holds."""

    base_offset: int
    position: int
    size_bytes: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs of a cell
    last_stored_at_us: int


class OpenFiles:
    """The files of cells that were written last, kept open. With ten thousand queues that saves most opening."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._fds: OrderedDict[Path, int] = OrderedDict()
        self.unsynced: set[Path] = set()
        """What was written since `sync`."""

    def write(self, path: Path, data: bytes) -> None:
        """Appends to a file, made with its directory when missing."""
        fd = self._fds.get(path)
        if fd is None:
            fd = self._open(path)
        else:
            self._fds.move_to_end(path)
        os.write(fd, data)
        self.unsynced.add(path)

    def _open(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o644)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, flags, 0o644)
        self._fds[path] = fd
        if len(self._fds) > self._count_max:
            os.close(self._fds.popitem(last=False)[1])
        return fd

    def sync(self) -> None:
        """What was written is on disk."""
        paths, self.unsynced = self.unsynced, set()
        for path in paths:
            fd = os.open(path, os.O_WRONLY)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Closes all files."""
        while self._fds:
            os.close(self._fds.popitem()[1])


@dataclass(slots=True)
class QueueEnd:
    """The writer's side of a queue: where it ends, and cells that are not written yet."""

    directory: Path
    end: int
    last_stored_at_us: int
    file: Path
    file_cells: int
    waiting: list[Cell] = field(default_factory=list)

    def add(self, cell: Cell, end: int) -> None:
        """Notes the cell of a frame that was appended. `end`: the offset after it."""
        self.last_stored_at_us = max(self.last_stored_at_us, cell.last_stored_at_us)
        self.waiting.append(cell._replace(last_stored_at_us=self.last_stored_at_us))
        self.end = end

    def write(self, files: OpenFiles, up_to: int) -> bool:
        """Writes the cells of frames that begin before this position; whether some still wait."""
        ready = self.waiting
        if ready and ready[-1].position >= up_to:
            place = bisect_right(ready, up_to - 1, key=lambda cell: cell.position)
            ready, self.waiting = ready[:place], ready[place:]
        else:
            self.waiting = []
        if ready:
            if self.file_cells >= CELLS_PER_FILE_MAX or not self.file_cells:
                self.file, self.file_cells = cells_file(self.directory, ready[0].base_offset), 0
            files.write(self.file, np.array(ready, CELL).tobytes())
            self.file_cells += len(ready)
        return bool(self.waiting)


class Cells:
    """The reader's side of a queue. Sees what other processes write and delete."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._bases: list[int] = []
        self._finished: dict[int, NDArray[np.void]] = {}

    def files(self) -> list[int]:
        """The offsets at which the files begin."""
        self._bases = files_of(self.directory, ".cells") if self.directory.is_dir() else []
        return self._bases

    def load(self, base: int) -> NDArray[np.void]:
        """The cells of one file, as it is now. A file that is followed by another one does not change any more."""
        cells = self._finished.get(base)
        if cells is not None:
            return cells
        path = cells_file(self.directory, base)
        try:
            size = path.stat().st_size // CELL.itemsize * CELL.itemsize
            if not size:
                return np.empty(0, CELL)
            cells = np.memmap(path, CELL, "r", shape=(size // CELL.itemsize,))
        except FileNotFoundError as exc:
            raise CorruptLog(f"{path} is gone") from exc
        if base != self._bases[-1]:
            self._finished = {base: cells}
        return cells
