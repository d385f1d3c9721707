"""Frames: batches of messages as bytes of the commit log. Pure; docs/log_format.md names every byte."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from google_crc32c import value as crc32c

from txmsg.errors import InvalidMessage, MessageTooLarge
from txmsg.metaq.format.unreadable import is_time, strange_time
from txmsg.wire.unpacking import Codec
from txmsg.wire.unpacking import unpacked as unpacked_as

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC: Final = b"TXM1"
FRAME_SIZE_BYTES_MAX: Final = 256 * 1024 * 1024
COUNT_MAX: Final = 1024 * 1024
_FIXED = struct.Struct("<4sIIIQQQQIIIIIBBHqqH6x")
_CHECKED = struct.Struct("<IIQQQQIIIIIBBHqqH6x")  # the same without magic and header_crc, which covers it
_CRC = struct.Struct("<I")
HEADER_SIZE_BYTES: Final = _FIXED.size
_CHECKED_FROM = HEADER_SIZE_BYTES - _CHECKED.size
assert (HEADER_SIZE_BYTES, _CHECKED_FROM) == (96, 8)
HEADER_SIZE_BYTES_MAX: Final = HEADER_SIZE_BYTES + 128
"""The size of a header with the longest topic."""
_PADDING = tuple(bytes(size) for size in range(8))
_END = struct.Struct("<Q")


class BadFrame(Exception):
    """Bytes that are not a whole frame; the text says why."""


class Compression(IntEnum):
    """The compression of a payload."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


CODECS: Final[dict[Compression, Codec]] = {Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}


class FrameKind(IntEnum):
    """The contents of a frame."""

    MESSAGES = 0
    HOLE = 1
    """Offsets that were gone before they could be appended."""
    CUT = 2
    """The queue was truncated."""
    LOST = 3
    """Offsets that were here, were damaged, and were taken out by a repair."""
    PAD = 4
    """Bytes without meaning: a repair knew of no offset that they had held."""
    PASSED = 5
    """Offsets that may have been assigned before a power cut took their messages: they are not assigned again."""


_COMPRESSIONS: Final = {code.value: code for code in Compression}  # asked for each frame: an enum's call is slow
_KINDS: Final = {kind.value: kind for kind in FrameKind}
HOLES: Final = frozenset({FrameKind.HOLE, FrameKind.LOST, FrameKind.PASSED})
"""Kinds of frames that stand for offsets which are missing."""


class FrameColumn(IntFlag):
    """The columns of a payload, in their order."""

    TRANSACTION_ID = 1
    N = 2
    BORN_AT_US = 4
    STORED_AT_US = 8
    KEY = 16
    TAG = 32
    ORDERING_KEY = 64
    HEADERS = 128
    BODY = 256


@dataclass(slots=True)
class FrameColumns:
    """Messages of one queue to be appended: columns of one length. An empty column means none for all of them.

    stored_at_us: when each was stored, one for all if there is one entry. transaction_id: 16 bytes each, joined.
    """

    body: Sequence[bytes]
    stored_at_us: Sequence[int]
    transaction_id: bytes = b""
    n: Sequence[int] = ()
    born_at_us: Sequence[int] = ()
    key: Sequence[str] = ()
    tag: Sequence[str] = ()
    ordering_key: Sequence[str] = ()
    headers: Sequence[bytes] = ()


Buffers: TypeAlias = tuple[pa.Buffer, ...]
"""The buffers of a column: one of values, or the ends of values and their bytes."""


class _Type(NamedTuple):
    """The storage of a column's values. width: bytes of each; 0: lengths and bytes."""

    width: int
    pack: Callable[[Any], Any]
    unpack: Callable[[Buffers], Any]


def _numbers(kind: type[np.int16 | np.int64], width: int) -> _Type:
    return _Type(
        width,
        lambda values: np.asarray(values, kind).tobytes(),
        lambda found: np.frombuffer(found[0], kind).tolist(),
    )


def _values(found: Buffers) -> list[bytes]:
    data = found[1].to_pybytes()
    return [data[start:end] for start, end in pairwise(np.frombuffer(found[0], np.int32).tolist())]


def _differ(times: Sequence[int]) -> bool:
    return len(times) > 1 and min(times) != max(times)


class _StoredColumn(NamedTuple):
    """A column of a payload: its bit, its name in `FrameColumns`, its type, and a test for values that need it."""

    bit: int
    name: str
    type: _Type
    is_needed: Callable[[Any], object]


_IDS: Final = _Type(16, bytes, lambda found: found[0].to_pybytes())
_INT16: Final = _numbers(np.int16, 2)
_INT64: Final = _numbers(np.int64, 8)
_TEXTS: Final = _Type(
    0,
    lambda texts: [text.encode() for text in texts],
    lambda found: [value.decode() for value in _values(found)],
)
_BYTES: Final = _Type(0, lambda values: values, _values)
_COLUMNS: Final = tuple(
    _StoredColumn(column.value, str(column.name).lower(), type_, is_needed)
    for column, type_, is_needed in (
        (FrameColumn.TRANSACTION_ID, _IDS, bool),
        (FrameColumn.N, _INT16, any),
        (FrameColumn.BORN_AT_US, _INT64, bool),
        (FrameColumn.STORED_AT_US, _INT64, _differ),
        (FrameColumn.KEY, _TEXTS, any),
        (FrameColumn.TAG, _TEXTS, any),
        (FrameColumn.ORDERING_KEY, _TEXTS, any),
        (FrameColumn.HEADERS, _BYTES, any),
        (FrameColumn.BODY, _BYTES, len),
    )
)
"""The columns in the order of a payload. As numbers and names: asking an enum's flags is slow."""
WIDTHS: Final = {FrameColumn(each.bit): each.type.width for each in _COLUMNS if each.type.width}


class Payload(NamedTuple):
    """A frame's content, made without its position: encoding needs no lock."""

    parts: tuple[Buffer, ...]
    size_bytes: int
    raw_size_bytes: int
    crc: int
    compression: Compression
    kind: FrameKind
    columns: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which a payload does not need
    first_stored_at_us: int
    last_stored_at_us: int


class Header(NamedTuple):
    """The header of a frame."""

    header_crc: int
    """The checksum of the header, which tells this frame from any other one."""
    size_bytes: int
    payload_crc: int
    position: int
    log_id: int
    synced: int
    base_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    queue: int
    generation: int
    payload_size_bytes: int
    raw_size_bytes: int
    compression: Compression
    kind: FrameKind
    columns: int
    first_stored_at_us: int
    last_stored_at_us: int
    topic: str
    start: int
    """The begin of the payload, in the frame."""

    @property
    def end(self) -> int:
        """The position after the frame."""
        return self.position + self.size_bytes

    @property
    def is_hole(self) -> bool:
        """True if the frame stands for offsets that are missing."""
        return self.kind in HOLES


def _padded(size: int) -> int:
    return (size + 7) & ~7


# ---- writing


def encode(columns: FrameColumns, compression: Compression = Compression.NONE) -> Payload:
    """Return the columns as a payload.

    Raises MessageTooLarge for more than fits a frame, InvalidMessage for times that no reader can show, ValueError for
    unequal lengths.
    """
    # Least and greatest of a batch are enough: a check of each time would cost every message.
    for times in filter(None, (columns.stored_at_us, columns.born_at_us)):
        for us in (min(times), max(times)):
            if not is_time(us):
                raise InvalidMessage(f"a message cannot be appended: {strange_time(us)}")
    return _encode(columns, compression, FrameKind.MESSAGES)


def _encode(columns: FrameColumns, compression: Compression, kind: FrameKind) -> Payload:
    count = len(columns.body)
    if not 1 <= count <= COUNT_MAX:
        raise MessageTooLarge(f"{count} messages in one batch: 1 to {COUNT_MAX} are allowed")
    parts: list[Buffer] = []
    present = 0
    first, last = min(columns.stored_at_us), max(columns.stored_at_us)
    for bit, name, (width, pack_values, _), is_needed in _COLUMNS:
        values = getattr(columns, name)
        if not is_needed(values):
            continue
        present |= bit
        if width:
            fixed = pack_values(values)
            _check_length(name, len(fixed), count * width)
            parts += (fixed, _PADDING[-len(fixed) & 7])
        else:
            _check_length(name, len(values), count)
            _add_lengths_and_bytes(parts, pack_values(values))
    return _payload(parts, compression, kind, present, count, (first, last))


def hole(end_offset: int, at_us: int, kind: FrameKind = FrameKind.HOLE) -> Payload:
    """Return the payload that marks offsets up to end_offset as missing: HOLE, LOST or PASSED."""
    return _payload([_END.pack(end_offset)], Compression.NONE, kind, 0, 0, (at_us, at_us))


def pad() -> Payload:
    """Return the payload that marks bytes as meaningless; `fitted` sets their number. Its frame has no topic."""
    return _payload([], Compression.NONE, FrameKind.PAD, 0, 0, (0, 0))


def hole_end_of(payload: Payload) -> int:
    """Return the offset after the last one that a hole to be written marks as missing."""
    assert payload.kind in HOLES
    return int(_END.unpack_from(payload.parts[0])[0])


def cut(kept: FrameColumns | None) -> Payload:
    """Return the payload that marks a cut: messages of the queue from its base_offset on are dropped, except those in
    this frame.
    """
    if kept is not None:
        return _encode(kept, Compression.NONE, FrameKind.CUT)
    return _payload([], Compression.NONE, FrameKind.CUT, 0, 0, (0, 0))


def _check_length(name: str, length: int, expected: int) -> None:
    if length != expected:
        raise ValueError(f"column {name} has {length} entries or bytes where {expected} are needed")


def _add_lengths_and_bytes(parts: list[Buffer], values: Sequence[bytes]) -> None:
    # Ends and bytes are in Arrow's own layout, so a reader hands them to it without converting a value.
    joined = b"".join(values)
    if len(joined) > FRAME_SIZE_BYTES_MAX:
        raise MessageTooLarge(f"{len(joined)} bytes in one batch: at most {FRAME_SIZE_BYTES_MAX} fit; send several")
    ends = struct.pack(f"<{len(values) + 1}I", *accumulate(map(len, values), initial=0))
    parts += (ends, _PADDING[-len(ends) & 7], joined, _PADDING[-len(joined) & 7])


def _payload(  # noqa: PLR0917 - what a payload is made of
    parts: list[Buffer],
    compression: Compression,
    kind: FrameKind,
    columns: int,
    count: int,
    stored_at_us: tuple[int, int],
) -> Payload:
    raw = b"".join(parts)
    # Compressed before it has a place, so that appends under the lock only copy bytes.
    stored = raw
    if compression is not Compression.NONE:
        stored = pa.compress(raw, codec=CODECS[compression], asbytes=True)
        # Small or random payloads grow when they are compressed: readers then get them without a copy.
        if len(stored) >= len(raw):
            compression, stored = Compression.NONE, raw
    if len(stored) > FRAME_SIZE_BYTES_MAX:
        raise MessageTooLarge(f"{len(stored)} bytes in one batch: at most {FRAME_SIZE_BYTES_MAX} fit; send several")
    return Payload(
        (stored, _PADDING[-len(stored) & 7]), len(stored), len(raw), crc32c(stored), compression, kind, columns, count,
        *stored_at_us,
    )  # fmt: skip


def pack(
    payload: Payload,
    topic: bytes,
    queue: int,
    base_offset: int,
    *,
    position: int,
    log_id: int,
    synced: int,
    generation: int,
) -> tuple[Buffer, ...]:
    """Return the whole frame in parts, to be written one after the other. `topic`: its name in ASCII."""
    size = HEADER_SIZE_BYTES + _padded(len(topic)) + _padded(payload.size_bytes)
    checked = b"".join(
        (
            _CHECKED.pack(
                size, payload.crc, position, log_id, synced, base_offset, payload.count, queue, generation,
                payload.size_bytes, payload.raw_size_bytes, payload.compression, payload.kind, payload.columns,
                payload.first_stored_at_us, payload.last_stored_at_us, len(topic),
            ),
            topic,
            _PADDING[-len(topic) & 7],
        )
    )  # fmt: skip
    # Only the header is joined: the payload was checksummed when it was encoded, outside the lock under which this
    # runs.
    return b"".join((MAGIC, _CRC.pack(crc32c(checked)), checked)), *payload.parts


def header_crc_of(frame: Sequence[Buffer]) -> int:
    """Return the header checksum of a frame that `pack` has made, which tells it from any other one."""
    return int(_CRC.unpack_from(frame[0], len(MAGIC))[0])


def fitted(frame: Sequence[Buffer], size_bytes: int) -> bytes:
    """Return the same frame for a larger size: zeros must follow."""
    checked = _CRC.pack(size_bytes) + bytes(frame[0][_CHECKED_FROM + _CRC.size :])
    # The size is part of the header's checksum, so the header is made again; the payload and its checksum stay.
    head = b"".join((MAGIC, _CRC.pack(crc32c(checked)), checked))
    return b"".join((head, *frame[1:]))


# ---- reading


def read_header(data: Buffer, at: int = 0) -> Header:
    """Return the header of the frame at `at`. Raises BadFrame if there is none, or not all of it."""
    view = memoryview(data)[at:]
    if len(view) < HEADER_SIZE_BYTES:
        raise BadFrame(f"{len(view)} bytes are too few for a frame")
    (
        magic, header_crc, size, payload_crc, position, log_id, synced, base_offset, count, queue, generation,
        payload_size, raw_size, compression, kind, columns, first, last, topic_size,
    ) = _FIXED.unpack_from(view)  # fmt: skip
    if magic != MAGIC:
        raise BadFrame(f"no frame begins with {bytes(magic)!r}")
    start = HEADER_SIZE_BYTES + _padded(topic_size)
    if len(view) < start or topic_size > 127:
        raise BadFrame("the frame's header is cut off")
    # Checked before any field is used: sizes of a damaged header could point anywhere.
    if crc32c(bytes(view[_CHECKED_FROM:start])) != header_crc:
        raise BadFrame("the frame's header does not match its checksum")
    try:
        return Header(
            header_crc, size, payload_crc, position, log_id, synced, base_offset, count, queue, generation,
            payload_size, raw_size, _COMPRESSIONS[compression], _KINDS[kind], columns, first, last,
            bytes(view[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + topic_size]).decode("ascii"), start,
        )  # fmt: skip
    except (KeyError, ValueError) as exc:
        raise BadFrame(f"the frame is of a kind that this release does not know: {exc}") from exc


def verify(header: Header, data: Buffer, at: int = 0) -> memoryview:
    """Return the stored payload if it is whole and matches its checksum; otherwise raise BadFrame."""
    # A view, so that Arrow can use the bytes in place.
    payload = memoryview(data)[at + header.start : at + header.start + header.payload_size_bytes]
    if len(payload) != header.payload_size_bytes:
        raise BadFrame("the frame is cut off")
    if crc32c(bytes(payload)) != header.payload_crc:  # its C code takes no memoryview
        raise BadFrame("the frame's payload does not match its checksum")
    return payload


def raw_of(header: Header | Payload, stored: Buffer) -> Buffer | pa.Buffer:
    """Return the payload before compression. Raises ValueError if it does not match its header."""
    codec = CODECS.get(header.compression)
    return stored if codec is None else unpacked_as(stored, header.raw_size_bytes, codec)


@lru_cache(maxsize=512)
def layout(columns: int) -> tuple[tuple[str, int], ...]:
    """Return the names of the columns that are present, and their widths; 0: lengths and bytes."""
    return tuple((column.name, column.type.width) for column in _COLUMNS if columns & column.bit)


def payload_of(header: Header | Payload, stored: Buffer) -> dict[str, Buffers]:
    """Return the buffers of each column that is present, by its name."""
    raw = pa.py_buffer(raw_of(header, stored))
    buffers: dict[str, Buffers] = {}
    at, count = 0, header.count
    ends_of = memoryview(raw)
    for name, width in layout(header.columns):
        if width:
            buffers[name] = (raw.slice(at, width * count),)
            at += _padded(width * count)
        else:
            ends = raw.slice(at, 4 * (count + 1))
            # The last end is the size of the values: no length of its own is stored that could contradict it.
            (size,) = _CRC.unpack_from(ends_of, at + 4 * count)
            at += _padded(4 * (count + 1))
            buffers[name] = (ends, raw.slice(at, size))
            at += _padded(size)
    return buffers


def unpacked(payload: Payload) -> FrameColumns:
    """Return the columns that were encoded, for a log that does not store frames."""
    assert payload.kind is FrameKind.MESSAGES
    buffers = payload_of(payload, payload.parts[0])
    values = {each.name: each.type.unpack(buffers[each.name]) for each in _COLUMNS if each.name in buffers}
    return FrameColumns(**{"stored_at_us": [payload.first_stored_at_us], **values})


def hole_end(header: Header, stored: Buffer) -> int:
    """Return the offset after the last one that a hole marks as missing."""
    assert header.is_hole
    return int(_END.unpack_from(stored)[0])
