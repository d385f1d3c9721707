"""Reads a log's messages from its bytes, by docs/log_format.md alone. Imports nothing of the log."""

from __future__ import annotations

import json
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from pathlib import Path
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from txmsg.binlog.verifier.mirror import Row
from txmsg.errors import CorruptLog
from txmsg.wire.unpacking import Codec, unpacked

_HEADER: Final = struct.Struct("<4sIIIQQQQIIIIIBBHqqH6x")
_CELL: Final = struct.Struct("<QQIIqII")
_OPEN_MAX: Final = 8
_CELLS_READ: Final = 4096
_HOLES: Final = (1, 3, 5)  # kinds of frames
_CODECS: Final[dict[int, Codec]] = {1: "lz4", 2: "zstd"}
_IDS, _N, _BORN_AT, _STORED_AT = 1, 2, 4, 8  # bits of the columns
_VARIABLE: Final = (16, 32, 64, 128, 256)


class Damaged(Exception):
    """Raised for bytes that are not the frame of their cell; the text gives the reason."""


class VerifiedCell(NamedTuple):
    """A cell of a queue: the position and the offsets of a frame."""

    base: int
    position: int
    size_bytes: int
    messages: int
    crc: int

    @property
    def end(self) -> int:
        """The offset after its messages."""
        return self.base + self.messages


class VerifiedFrame(NamedTuple):
    """A frame: its messages, or the offset at which a hole ends."""

    rows: Iterator[Row]
    hole_end: int | None


class LogBytes:
    """The files of a log. Appends of another process are seen at the next call."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._directory = root / "commitlog"
        self._open: dict[int, int] = {}
        self._firsts = self._files()
        try:
            self._log_id = int(json.loads((root / "log.json").read_bytes())["log_id"])
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise CorruptLog(
                f"{root} is not a log: its log.json cannot be read ({exc}); give the log's directory"
            ) from exc

    def topics(self) -> dict[str, list[int]]:
        """Return the topics with the numbers of their queues."""
        found: dict[str, list[int]] = {}
        for place in sorted(self._root.glob("queues/*/*")):
            found.setdefault(place.parent.name, []).append(int(place.name))
        return found

    def begin_position(self) -> int:
        """Return the position of the first byte that is kept."""
        return next(iter(self._files()), 0)

    def _files(self) -> list[int]:
        return sorted(int(path.stem) for path in self._directory.glob("*.log"))

    # ---- cells

    def cells(self, topic: str, queue: int) -> Iterator[VerifiedCell]:
        """Yield the cells of a queue whose frames are kept, in order."""
        begin = self.begin_position()
        for path in self._cell_files(topic, queue):
            with path.open("rb") as file:
                while data := file.read(_CELLS_READ * _CELL.size):
                    whole = len(data) // _CELL.size * _CELL.size
                    for base, position, size, count, _, crc, _ in _CELL.iter_unpack(data[:whole]):
                        if position >= begin:
                            yield VerifiedCell(base, position, size, count, crc)

    def end_offset(self, topic: str, queue: int) -> int:
        """Return the offset after the last message, or the last hole, of a queue."""
        for path in reversed(self._cell_files(topic, queue)):
            with path.open("rb") as file:
                whole = path.stat().st_size // _CELL.size * _CELL.size
                if whole:
                    file.seek(whole - _CELL.size)
                    base, position, size, count, _, crc, _ = _CELL.unpack(file.read(_CELL.size))
                    cell = VerifiedCell(base, position, size, count, crc)
                    return cell.end if cell.messages else self.frame(cell, topic, queue).hole_end or cell.end
        return 0

    def _cell_files(self, topic: str, queue: int) -> list[Path]:
        return sorted((self._root / "queues" / topic / f"{queue:04}").glob("*.cells"))

    # ---- frames

    def frame(self, cell: VerifiedCell, topic: str, queue: int) -> VerifiedFrame:
        """Return the frame at the cell's position. Raises Damaged unless it is a whole frame of this queue."""
        data = self._bytes(cell.position, cell.size_bytes)
        if len(data) < _HEADER.size:
            raise Damaged(f"position {cell.position} is past the end of the log")
        (
            magic, header_crc, size, payload_crc, position, log_id, _synced, base, count, number, _generation,
            stored_size, raw_size, compression, kind, columns, first_stored_at, _last_stored_at, topic_size,
        ) = _HEADER.unpack_from(data)  # fmt: skip
        start = _HEADER.size + (topic_size + 7) // 8 * 8
        if magic != b"TXM1" or crc32c(data[8:start]) != header_crc:
            raise Damaged(f"position {cell.position} holds no whole header of a frame")
        found = (data[96 : 96 + topic_size].decode("ascii"), number, base, count, position, size, log_id, header_crc)
        if found != (topic, queue, cell.base, cell.messages, cell.position, cell.size_bytes, self._log_id, cell.crc):
            raise Damaged(f"position {cell.position} holds another frame: {found}")
        payload = data[start : start + stored_size]
        if len(payload) != stored_size or crc32c(payload) != payload_crc:
            raise Damaged(f"the payload at position {cell.position} does not match its checksum")
        if kind in _HOLES:
            return VerifiedFrame(iter(()), int.from_bytes(payload[:8], "little"))
        if compression:
            payload = unpacked(payload, raw_size, _CODECS[compression]).to_pybytes()
        return VerifiedFrame(_rows(payload, columns, base, count, first_stored_at), None)

    def _bytes(self, position: int, size: int) -> bytes:
        """Return so many bytes from this position, or as many as there are. Frames do not span files."""
        for _ in range(2):
            first = self._firsts[bisect_right(self._firsts, position) - 1] if self._firsts else 0
            # Not through a memory map: a writer may cut the file.
            data = os.pread(self._file(first), size, position - first)
            if len(data) == size:
                break
            self._firsts = self._files()  # the log has grown since
        return data

    def _file(self, first: int) -> int:
        if first not in self._open:
            while len(self._open) >= _OPEN_MAX:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[first] = os.open(self._directory / f"{first:020}.log", os.O_RDONLY | os.O_CLOEXEC)
        return self._open[first]

    def __del__(self) -> None:
        for file in self._open.values():
            os.close(file)


def _rows(payload: bytes, columns: int, base: int, count: int, stored_at: int) -> Iterator[Row]:
    """Yield the messages of a payload."""
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        taken = payload[at : at + size]
        if len(taken) != size:
            raise Damaged(f"the payload of the frame at offset {base} ends early")
        at += (size + 7) // 8 * 8
        return taken

    def numbers(bit: int, letter: str, otherwise: Sequence[int]) -> Sequence[int]:
        kind = struct.Struct(f"<{count}{letter}")
        return kind.unpack(take(kind.size)) if columns & bit else otherwise

    def values(bit: int) -> Iterator[bytes]:
        if not columns & bit:
            return repeat(b"", count)
        kind = struct.Struct(f"<{count + 1}I")
        ends = kind.unpack(take(kind.size))
        piece = take(ends[-1])
        return (piece[start:end] for start, end in pairwise(ends))

    ids = take(16 * count) if columns & _IDS else bytes(16 * count)
    n = numbers(_N, "h", [0] * count)
    born_at = numbers(_BORN_AT, "q", ())
    stored_at_each = numbers(_STORED_AT, "q", [stored_at] * count)
    key, tag, ordering_key, headers, body = map(values, _VARIABLE)
    return zip(
        range(base, base + count), (ids[start : start + 16] for start in range(0, 16 * count, 16)), n, key, tag,
        ordering_key, headers, body, born_at or stored_at_each, stored_at_each, strict=True,
    )  # fmt: skip
