"""Checks batches that came over the network, so that every reader can read what is appended. Knows no network.

A checksum says only that bytes are as their sender made them. A payload whose columns do not fit each other would break
each reader that comes by, for good: it is refused before it has a place in the log.
"""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import pyarrow as pa
from google_crc32c import value as crc32c

from txmsg.errors import MisuseError, ProtocolError, TxmsgError
from txmsg.message import QUEUES_MAX, check_name
from txmsg.metaq.format.frame import (
    CODECS,
    COUNT_MAX,
    FRAME_SIZE_BYTES_MAX,
    WIDTHS,
    Compression,
    FrameColumn,
    FrameKind,
    Payload,
)
from txmsg.metaq.format.unreadable import TIME_US_MAX, is_time
from txmsg.metaq.store.log import Append
from txmsg.wire.headers import unpack_headers
from txmsg.wire.unpacking import unpacked_of_stranger

_COLUMNS = [(column.value, WIDTHS.get(column, 0)) for column in FrameColumn]  # as numbers: enum flags are slow
_COLUMNS_ALL = sum(column for column, _ in _COLUMNS)
_TEXTS = (FrameColumn.KEY | FrameColumn.TAG | FrameColumn.ORDERING_KEY).value
_BODY, _HEADERS = FrameColumn.BODY.value, FrameColumn.HEADERS.value
_BORN_AT, _STORED_AT = FrameColumn.BORN_AT_US.value, FrameColumn.STORED_AT_US.value
_HOLE_SIZE_BYTES = 8
_UNREADABLE = (pa.ArrowException, OSError, ValueError, IndexError, struct.error, TxmsgError)


def check(append: Append) -> None:
    """Raise InvalidName, MisuseError or ProtocolError for a batch that must not be appended."""
    check_name("topic", append.topic)
    if not 0 <= append.queue < QUEUES_MAX:
        raise MisuseError(f"queue {append.queue} of topic {append.topic!r}: 0 to {QUEUES_MAX - 1} are allowed")
    payload = append.payload
    try:
        _require(crc32c(bytes(payload.parts[0])) == payload.crc, "its payload does not match its checksum")
        times = (payload.first_stored_at_us, payload.last_stored_at_us)
        _require(0 <= times[0] <= times[1] <= TIME_US_MAX, f"it was stored from {times[0]} to {times[1]}")
        if payload.kind is FrameKind.HOLE:
            _check_hole(payload)
        else:
            if payload.kind is not FrameKind.MESSAGES:
                raise ValueError(f"it is of kind {payload.kind.name}, which only a log itself makes")
            _check_messages(payload)
    except _UNREADABLE as exc:
        raise ProtocolError(
            f"a batch for topic {append.topic!r} cannot be read: {str(exc)[:200]}; nothing was appended"
        ) from exc


def _require(is_right: bool, why: str) -> None:
    if not is_right:
        raise ValueError(why)


def _check_hole(payload: Payload) -> None:
    sizes = {len(payload.parts[0]), payload.raw_size_bytes}
    _require(sizes == {_HOLE_SIZE_BYTES}, f"a hole has {_HOLE_SIZE_BYTES} bytes, not {sizes}")
    is_empty = not (payload.columns or payload.count) and payload.compression is Compression.NONE
    _require(is_empty, "a hole has neither messages nor columns, and is not compressed")


def _check_messages(payload: Payload) -> None:
    _require(1 <= payload.count <= COUNT_MAX, f"it has {payload.count} messages")
    _require(payload.raw_size_bytes <= FRAME_SIZE_BYTES_MAX, f"it has {payload.raw_size_bytes} bytes")
    is_known = payload.columns & _BODY != 0 and payload.columns & ~_COLUMNS_ALL == 0
    _require(is_known, f"it has columns {payload.columns:#x}")
    raw = _unpacked(payload)
    at, times = 0, (payload.first_stored_at_us, payload.first_stored_at_us)
    for column, width in _COLUMNS:
        if not payload.columns & column:
            continue
        if width:
            if column in {_STORED_AT, _BORN_AT}:
                moments = np.frombuffer(raw, np.int64, payload.count, at)
                found = (int(np.min(moments)), int(np.max(moments)))
                _require(is_time(found[0]) and is_time(found[1]), f"it has times from {found[0]} to {found[1]}")
                times = found if column == _STORED_AT else times
            at += _padded(width * payload.count)
        else:
            at = _check_values(column, raw, at, payload.count)
    _require(at == len(raw) == payload.raw_size_bytes, f"its columns need {at} bytes, not {len(raw)}")
    is_as_said = times == (payload.first_stored_at_us, payload.last_stored_at_us)
    _require(is_as_said, f"it was stored from {times[0]} to {times[1]}")


def _check_values(column: int, raw: bytes, at: int, count: int) -> int:
    """Check a column of lengths and bytes, and return its end. numpy raises when the lengths themselves are cut off."""
    ends = np.frombuffer(raw, np.int32, count + 1, at)
    # The names of flags cost more than all else here: they are asked for only to be told.
    if ends[0] or not (ends[1:] >= ends[:-1]).all():
        raise ValueError(f"the values of column {FrameColumn(column).name} do not follow each other")
    begin = at + _padded(ends.nbytes)
    end = begin + int(ends[-1])
    if end > len(raw):
        raise ValueError(f"the values of column {FrameColumn(column).name} go beyond the end")
    if column & _TEXTS and not raw[begin:end].isascii():
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(raw).slice(begin, end - begin)]
        pa.Array.from_buffers(pa.string(), count, buffers).validate(full=True)
    elif column == _HEADERS:
        for first, last in pairwise(ends.tolist()):
            if last > first:
                unpack_headers(raw[begin + first : begin + last])
    return begin + _padded(end - begin)


def _unpacked(payload: Payload) -> bytes:
    stored = payload.parts[0]
    codec = CODECS.get(payload.compression)
    return bytes(stored) if codec is None else unpacked_of_stranger(stored, payload.raw_size_bytes, codec)


def _padded(size: int) -> int:
    return (size + 7) & ~7
