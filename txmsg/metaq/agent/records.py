"""Splits bytes of a file into records: lines, or several lines that belong together.

Pure; works on blocks, not on lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Final

import numpy as np

from txmsg.errors import MisuseError, shown

_VERSION: Final = 8 << 12  # of a UUID whose bits an application chooses (RFC 9562)
_VARIANT: Final = 2 << 62
_OFFSET_BITS: Final = 48
STREAM_ID_SIZE_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records. ends: the end of each, with its line end, counted from the first byte that was cut."""

    bodies: Sequence[bytes]
    ends: Sequence[int]

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def size_bytes(self) -> int:
        """The size from the first byte to the end of the last record."""
        return self.ends[-1] if self.ends else 0

    def first(self, count: int) -> Records:
        """Return this many of them, from the first on."""
        return self if count >= len(self.bodies) else Records(self.bodies[:count], self.ends[:count])


class RecordSplitter:
    """Cuts bytes into records. A record has no line end.

    record_start: what the first line of a record begins with, a regular expression; empty: each line is a record.
        Looked for in as many bytes of a line as a record has at most.
    record_size_bytes_max: longer ones are cut into pieces of this size, each of which is a record.
    encoding: of the file; empty: bytes are taken as they are. Else records are UTF-8, with U+FFFD for invalid bytes.
    """

    def __init__(self, *, record_start: str = "", record_size_bytes_max: int = 1024 * 1024, encoding: str = "") -> None:
        self._start = _pattern(record_start) if record_start else None
        self._size_bytes_max = record_size_bytes_max
        self._encoding = check_encoding(encoding) if encoding else ""

    @property
    def block_size_bytes_least(self) -> int:
        """The size from which on data has a record, or a piece of one, that a further byte would not change.

        The longest record, its line end and a byte more; and the bytes of the next line that decide whether it
        continues the record.
        """
        return self._size_bytes_max + 3 + (self._size_bytes_max if self._start is not None else 0)

    def cut(self, data: bytes, *, is_end: bool) -> Records:
        """Return the records that data begins with. One that may continue is left, unless is_end: nothing follows."""
        # Blocks are split as a whole, because `split` loops over the lines in C.
        whole = data.rfind(b"\n") + 1
        known = len(data)
        if self._start is None:
            bodies = data[:whole].split(b"\n")
            bodies.pop()
            ends = [*accumulate(map(_one_more, map(len, bodies)))]
            if is_end and whole < len(data):
                bodies.append(data[whole:])
                ends.append(len(data))
        else:
            if not is_end and len(data) - whole < self._size_bytes_max:
                known = whole  # the start of a line may not be all of it yet
            ends = self._starts(data, known, is_end=is_end)
            if is_end and data:
                ends.append(len(data))
            bodies = [data[a:b].removesuffix(b"\n") for a, b in zip([0, *ends], ends, strict=False)]
        begin = ends[-1] if ends else 0
        if b"\r\n" in data or data.endswith(b"\r"):
            bodies = [body.removesuffix(b"\r") for body in bodies]
        if known - begin > self._size_bytes_max or max(map(len, bodies), default=0) > self._size_bytes_max:
            bodies, ends = self._in_pieces(bodies, ends, data[begin:known])
        return Records(self._as_text(bodies), ends)

    def _starts(self, data: bytes, known: int, *, is_end: bool) -> list[int]:
        """Return the starts of records after the first, as far as they are known.

        Of a line that is longer than a record may be, only the size of a record counts: no more of it may have come.
        """
        assert self._start is not None
        last = known if is_end or not data.endswith(b"\n", 0, known) else known - 1  # what follows may be part of it
        starts = [found.start() for found in self._start.finditer(data, 0, last) if 0 < found.start() < known]
        size = self._size_bytes_max
        if max(map(sub, [*starts, known], [0, *starts])) < size:
            return starts
        at, right = 0, set(starts)
        for line in data[:known].split(b"\n"):
            if at and len(line) >= size:
                (right.add if self._start.match(data, at, at + size) else right.discard)(at)
            at += len(line) + 1
        return sorted(right)

    def _in_pieces(self, bodies: Sequence[bytes], ends: Sequence[int], rest: bytes) -> tuple[list[bytes], list[int]]:
        """Cut long records into pieces, the same if they have come whole or in part: ids of pieces must not depend on
        it.
        """
        size, begin = self._size_bytes_max, 0
        pieces, piece_ends = list[bytes](), list[int]()
        for body, end in [*zip(bodies, ends, strict=True), (_without_line_end(rest), 0)]:
            at = 0
            while len(body) - at > size:
                pieces.append(body[at : at + size])
                at += size
                piece_ends.append(begin + at)
            if end:
                pieces.append(body[at:])
                piece_ends.append(end)
                begin = end
        return pieces, piece_ends

    def _as_text(self, bodies: Sequence[bytes]) -> Sequence[bytes]:
        if not self._encoding:
            return bodies
        return [body.decode(self._encoding, "replace").encode() for body in bodies]


def _without_line_end(data: bytes) -> bytes:
    return data.removesuffix(b"\n").removesuffix(b"\r")


def _one_more(size: int) -> int:
    return size + 1


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(b"^(?:" + text.encode() + b")", re.MULTILINE)
    except re.error as exc:
        raise MisuseError(f"{shown(text)} is not a regular expression: {exc}") from exc


def check_encoding(name: str) -> str:
    """Check that a line feed is one byte in an encoding, as in ASCII. Raises MisuseError."""
    try:
        is_usable = "\na".encode(name) == b"\na"
    except LookupError:
        raise MisuseError(
            f"{shown(name)} is not an encoding that Python knows: utf-8, latin-1, cp1252 are some"
        ) from None
    if not is_usable:
        raise MisuseError(
            f"lines cannot be told apart in {shown(name)}: give an encoding that has ASCII in it, or have the file "
            "written as UTF-8"
        )
    return name


def ids_of(stream_id: bytes, base: int, ends: Sequence[int]) -> bytes:
    """Return the transaction ids of records, 16 bytes each: the stream, and the record's end in it. UUIDs of version 8.

    The end and not the begin: a record at the end of a file that was sent before it had all its lines differs from the
    one with all of them, so receivers that drop repeats drop neither.
    """
    high, low = int.from_bytes(stream_id[:8], "big"), int.from_bytes(stream_id[8:], "big")
    pairs = np.empty((len(ends), 2), ">u8")
    pairs[:, 0] = high & ~(0xF << 12) | _VERSION
    pairs[:, 1] = np.asarray(ends, np.uint64) + np.uint64(_VARIANT | (low & 0x3FFF) << _OFFSET_BITS | base)
    return pairs.tobytes()


def stream_and_end_of(transaction_id: bytes) -> tuple[bytes, int]:
    """Return the two parts of an id of `ids_of`: the part that all records of a file share, and the record's end."""
    low = int.from_bytes(transaction_id[8:], "big")
    return transaction_id[:8] + (low >> _OFFSET_BITS).to_bytes(2, "big"), low & (1 << _OFFSET_BITS) - 1
