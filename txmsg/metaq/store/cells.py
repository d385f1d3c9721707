"""Consume queues: a small cell per frame, in separate files for each queue; docs/log_format.md specifies the bytes."""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, overload

import numpy as np
from google_crc32c import extend
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from txmsg.errors import CorruptLog
from txmsg.metaq.format.frame import Header
from txmsg.metaq.store.commit_log import files_of

CELL: Final = np.dtype(
    [
        ("base_offset", "<u8"),
        ("position", "<u8"),
        ("size", "<u4"),
        ("count", "<u4"),
        ("last_stored_at", "<i8"),
        ("header_crc", "<u4"),
        ("crc", "<u4"),
    ]
)
_CELL = struct.Struct("<QQIIqII")
_CHECKED = struct.Struct("<QQIIqI")  # the same without crc, which covers it
_CRC = struct.Struct("<I")
CELL_SIZE_BYTES: Final = CELL.itemsize
assert CELL_SIZE_BYTES == _CELL.size == 40
_QUEUE: Final = re.compile(r"\d{4}", re.ASCII)
CELLS_PER_FILE_MAX: Final = 1024 * 1024
_LOOKS_MAX: Final = 10

T = TypeVar("T")


def queue_directory(root: Path, topic: str, queue: int) -> Path:
    """Return the directory of a queue's cells, below the log's directory."""
    return root / "queues" / topic / f"{queue:04}"


def queues_of(root: Path) -> list[tuple[str, int]]:
    """Return the topics and queue numbers that have cells. Ignores other names."""
    return sorted(
        (topic, int(queue))
        for topic in _listed(root / "queues")
        for queue in _listed(root / "queues" / topic)
        if _QUEUE.fullmatch(queue)
    )


def _listed(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def queues_of_topic(root: Path, topic: str) -> list[int]:
    """Return the numbers of a topic's queues."""
    return sorted(int(name) for name in _listed(root / "queues" / topic) if _QUEUE.fullmatch(name))


def cells_file(directory: Path, base_offset: int) -> Path:
    """Return the file whose first cell begins at this offset."""
    return directory / f"{base_offset:020}.cells"


def seed_of(log_id: int, topic: str, queue: int) -> int:
    """Return the seed of the checksums of a queue's cells, by which cells of other queues or logs are rejected."""
    return int(crc32c(f"{log_id}/{topic}/{queue}".encode()))


class Cell(NamedTuple):
    """The position of a frame, and its contents."""

    base_offset: int
    position: int
    size_bytes: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which a cell does not need
    last_stored_at_us: int
    header_crc: int
    crc: int = 0
    """The checksum as read; computed when the cell is written."""

    def pack(self, seed: int) -> bytes:
        """Return its 40 bytes."""
        checked = _CHECKED.pack(*self[:6])
        return checked + _CRC.pack(extend(seed, checked))

    def is_whole(self, seed: int) -> bool:
        """Return True if it is intact and was written for this queue."""
        return int(extend(seed, _CHECKED.pack(*self[:6]))) == self.crc

    @classmethod
    def of(cls, frame: Header) -> Cell:
        """Return the cell of a frame."""
        return cls(
            frame.base_offset, frame.position, frame.size_bytes, frame.count, frame.last_stored_at_us, frame.header_crc
        )


class CellFile(Sequence[Cell]):
    """A file of cells. Read, not memory-mapped: a writer that opens the log after a crash may truncate it meanwhile."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __len__(self) -> int:
        return os.fstat(self._fd).st_size // CELL_SIZE_BYTES

    @overload
    def __getitem__(self, index: int) -> Cell: ...

    @overload
    def __getitem__(self, index: slice) -> list[Cell]: ...

    def __getitem__(self, index: int | slice) -> Cell | list[Cell]:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            return self.read(start, stop - start)
        found = self.read(index if index >= 0 else index + len(self), 1)
        if not found:
            raise IndexError(index)
        return found[0]

    def read(self, start: int, count: int) -> list[Cell]:
        """Return at most this many cells from this one on; fewer at the file's end."""
        # A crash, or a write under way, may leave a part of a cell at the end: it is left out.
        data = os.pread(self._fd, count * CELL_SIZE_BYTES, start * CELL_SIZE_BYTES)
        return [
            Cell._make(fields) for fields in _CELL.iter_unpack(data[: len(data) // CELL_SIZE_BYTES * CELL_SIZE_BYTES])
        ]


class Cells:
    """The cells of a queue, in any process. Sees what others write and delete."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def files(self) -> list[int]:
        """Return the offsets at which the files begin."""
        return files_of(self.directory, ".cells")

    @contextmanager
    def open(self, base: int) -> Iterator[CellFile]:
        """Open one file. Raises FileNotFoundError when it is deleted."""
        fd = os.open(cells_file(self.directory, base), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield CellFile(fd)
        finally:
            os.close(fd)

    def load(self, base: int) -> NDArray[np.void]:
        """Return all cells of one file, as they are now. Raises CorruptLog when it is gone."""
        path = cells_file(self.directory, base)
        try:
            return np.fromfile(path, CELL)
        except FileNotFoundError as exc:
            raise CorruptLog(f"{path} is missing") from exc

    def mark(self) -> int | None:
        """Return the offset at which a queue without cells continues: the name of its first file, which is empty."""
        return next(iter(self.files()), None)

    def last(self) -> Cell | None:
        """Return the last cell, if any."""
        return while_cut(self._last)

    def _last(self) -> Cell | None:
        # The last file may be empty: it marks where the queue continues.
        for base in reversed(self.files()):
            with self.open(base) as cells:
                if len(cells):
                    return cells[-1]
        return None

    def first(self, what: Callable[[Cell], int], least: int) -> Cell | None:
        """Return the first cell with at least this value of a field that increases from cell to cell, if any."""
        return while_cut(lambda: self._first(what, least))

    def _first(self, what: Callable[[Cell], int], least: int) -> Cell | None:
        for base in self.files():
            try:
                with self.open(base) as cells:
                    place = bisect_left(cells, least, key=what)
                    if place < len(cells):
                        return cells[place]
            except FileNotFoundError:
                continue  # deleted by retention since it was listed, so the cell is behind it
        return None

    def following(self, base: int) -> int | None:
        """Return the file after this one."""
        bases = self.files()
        place = bisect_right(bases, base)
        return bases[place] if place < len(bases) else None


def while_cut(look: Callable[[], T]) -> T:
    """Return the result of a look-up, repeated if the writer has cut the queue meanwhile."""
    # The writer deletes and truncates files without a lock that readers would have to take. A few looks meet a moment
    # between two cuts; the last one raises its error.
    for _ in range(_LOOKS_MAX):
        try:
            return look()
        except (FileNotFoundError, IndexError):
            continue
    return look()
