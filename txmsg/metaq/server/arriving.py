"""Checks batches that came over the network, so that what is appended can be read by everybody. Knows no network.

A checksum says only that bytes are as their sender made them. A payload whose columns do not fit each other would break
each reader that comes by, for good: it is refused before it has a place in the log.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
from google_crc32c import value as crc32c

from txmsg.errors import MisuseError, ProtocolError, TxmsgError
from txmsg.message import QUEUES_MAX, check_name
from txmsg.metaq.batch import LogBatch
from txmsg.metaq.frame import COUNT_MAX, FRAME_SIZE_BYTES_MAX, Column, Compression, Header, Kind, Payload
from txmsg.metaq.log import Append
from txmsg.wire.headers import unpack_headers

__all__ = ["check"]

_COLUMNS_ALL = sum(Column)
_HOLE_SIZE_BYTES = 8
_TIME_US_MAX = 2**62
_UNREADABLE = (pa.ArrowException, OSError, ValueError, IndexError, struct.error, TxmsgError)


def check(append: Append) -> None:
    """Raises InvalidName, MisuseError or ProtocolError for a batch that must not be appended."""
    check_name("topic", append.topic)
    if not 0 <= append.queue < QUEUES_MAX:
        raise MisuseError(f"queue {append.queue} of topic {append.topic!r}: 0 to {QUEUES_MAX - 1} are allowed")
    payload = append.payload
    try:
        _require(crc32c(bytes(payload.parts[0])) == payload.crc, "its payload does not match its checksum")
        times = (payload.first_stored_at_us, payload.last_stored_at_us)
        _require(0 <= times[0] <= times[1] <= _TIME_US_MAX, f"it was stored from {times[0]} to {times[1]}")
        if payload.kind is Kind.HOLE:
            _check_hole(payload)
        else:
            _require(payload.kind is Kind.MESSAGES, f"it is of kind {payload.kind.name}, which only a log itself makes")
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
    is_known = bool(payload.columns & Column.BODY) and not payload.columns & ~_COLUMNS_ALL
    _require(is_known, f"it has columns {payload.columns:#x}")
    raw = _decompressed(payload)
    header = Header(
        0, 0, 0, 0, 0, 0, 0, payload.count, 0, 0, len(raw), len(raw), Compression.NONE, Kind.MESSAGES, payload.columns,
        payload.first_stored_at_us, payload.last_stored_at_us, "", 0,
    )  # fmt: skip
    needed = _size_of(header, raw)
    _require(needed == len(raw) == payload.raw_size_bytes, f"its columns need {needed} bytes, not {len(raw)}")
    columns = LogBatch(header, raw).to_arrow()
    columns.validate(full=True)
    stored_at = columns["stored_at"].cast(pa.int64()).to_numpy()
    times = (int(stored_at.min()), int(stored_at.max()))
    is_as_said = times == (payload.first_stored_at_us, payload.last_stored_at_us)
    _require(is_as_said, f"it was stored from {times[0]} to {times[1]}")
    if payload.columns & Column.HEADERS:
        for each in filter(None, columns["headers"].to_pylist()):
            unpack_headers(each)


def _decompressed(payload: Payload) -> bytes:
    """Never more than a byte above what it says to be, so that a small payload cannot swell without bound."""
    stored = payload.parts[0]
    if payload.compression is Compression.NONE:
        return bytes(stored)
    source = pa.BufferReader(stored)
    with pa.CompressedInputStream(source, payload.compression.name.lower()) as stream:
        return bytes(stream.read(payload.raw_size_bytes + 1))


def _size_of(header: Header, raw: bytes) -> int:
    """What the columns need. Raises when they go beyond the end, or their values do not follow each other."""
    at, widths = 0, {Column.TRANSACTION_ID: 16, Column.N: 2, Column.BORN_AT: 8, Column.STORED_AT: 8}
    for column in Column:
        if not header.columns & column:
            continue
        if width := widths.get(column):
            at += _padded(width * header.count)
            continue
        ends = np.frombuffer(raw, np.int32, header.count + 1, at)
        if ends[0] != 0 or (ends[1:] < ends[:-1]).any():
            raise ValueError(f"the values of column {column.name} do not follow each other")
        at += _padded(ends.nbytes) + _padded(int(ends[-1]))
    return at


def _padded(size: int) -> int:
    return (size + 7) & ~7
