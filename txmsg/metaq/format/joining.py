"""Many frames as one table. Small ones are joined: what Arrow costs by the batch is most of it, and a writer
that is never behind makes frames of one message. Large ones are chunks of it, on the log's own bytes.

Columns are found by numpy in all frames at once; their bytes are copied together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txmsg.metaq.format.batch import SCHEMA, LogBatch, only
from txmsg.metaq.format.frame import WIDTHS, Column, raw_of
from txmsg.wire.tags import ALL_TAGS, TagExpression

__all__ = ["to_arrow"]

_Numbers: TypeAlias = NDArray[np.int64]

_JOINED_MIN: Final = 8
"""Joining costs as much as this many batches by themselves."""
_JOINED_MESSAGES_MAX: Final = 50
"""In a batch, on average; with more of them it is no gain."""
_JOINED_SIZE_BYTES_MAX: Final = 64 * 1024 * 1024


def to_arrow(batches: Sequence[LogBatch], wanted: TagExpression = ALL_TAGS) -> pa.Table:
    """The messages of several batches, as `LogBatch.to_arrow` gives them of each. Schema: SCHEMA.

    In few chunks; `combine_chunks` makes one of them. wanted: only messages with such tags.
    """
    are_large = (
        sum(map(len, batches)) > _JOINED_MESSAGES_MAX * len(batches)
        or sum(each.header.raw_size_bytes for each in batches) > _JOINED_SIZE_BYTES_MAX
    )
    if len(batches) < _JOINED_MIN or are_large:
        return pa.Table.from_batches([each.to_arrow(wanted) for each in batches], SCHEMA)
    return pa.Table.from_batches([only(_joined(batches), wanted)])


def _joined(batches: Sequence[LogBatch]) -> pa.RecordBatch:
    """All of them as one. Values of a column stand at places that are int32, so together they are less than 2 GiB."""
    frames = _Frames(batches)
    batch = pa.RecordBatch.from_arrays(frames.arrays(), schema=SCHEMA)
    return batch.filter(pa.array(frames.is_asked_for)) if any(each.skip for each in batches) else batch


class _Frames:
    """Payloads one behind the other, in which the columns are found one after the other."""

    def __init__(self, batches: Sequence[LogBatch]) -> None:
        headers = [each.header for each in batches]
        raw = [raw_of(each.header, each.stored) for each in batches]
        self._data = b"".join(raw)
        self._words = np.frombuffer(self._data, np.int32)
        self._bases = np.array([each.base_offset for each in headers], np.int64)
        self._stored_at = np.array([each.first_stored_at_us for each in headers], np.int64)
        self._columns = np.array([each.columns for each in headers], np.int64)
        self._counts = np.array([each.count for each in headers], np.int64)
        sizes = np.array([len(each) for each in raw], np.int64)
        self._at = np.cumsum(sizes) - sizes
        """Where the next column of each frame begins."""
        self._frame = np.repeat(np.arange(len(batches)), self._counts)
        """Of each message, the number of its frame."""
        self._place = np.arange(len(self._frame)) - np.repeat(np.cumsum(self._counts) - self._counts, self._counts)
        """And its place in it."""
        self.is_asked_for = self._place >= np.array([each.skip for each in batches], np.int64)[self._frame]

    def arrays(self) -> list[pa.Array]:
        """The columns of SCHEMA."""
        stored = self._stored_at[self._frame]
        ids, has_id = self._fixed(Column.TRANSACTION_ID, np.zeros((len(self._frame), 16), np.uint8))
        n, _ = self._fixed(Column.N, np.zeros(len(self._frame), np.int16))
        born_at, has_born_at = self._fixed(Column.BORN_AT, np.zeros(len(self._frame), np.int64))
        stored_at, _ = self._fixed(Column.STORED_AT, stored)
        born_at = np.where(has_born_at, born_at, stored_at)
        key, tag, ordering_key, headers, body = map(
            self._values, (Column.KEY, Column.TAG, Column.ORDERING_KEY, Column.HEADERS, Column.BODY)
        )
        buffers: list[list[Any]] = [
            [None, self._bases[self._frame] + self._place],
            [_bitmap(has_id), ids],
            [None, n],
            *([_bitmap(ends[1:] > ends[:-1]), ends, data] for ends, data in (key, tag, ordering_key, headers)),
            [None, *body],
            [None, born_at],
            [None, stored_at],
        ]
        return [
            pa.Array.from_buffers(
                field.type, len(self._frame), [each if each is None else pa.py_buffer(each) for each in parts]
            )
            for field, parts in zip(SCHEMA, buffers, strict=True)
        ]

    def _fixed(self, column: Column, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Puts what frames have of a column of fixed width in its place; which messages have it."""
        there = (self._columns & column.value) != 0
        has = there[self._frame]
        if there.any():
            data = self._taken(np.where(there, self._counts * WIDTHS[column], 0))
            values[has] = np.frombuffer(data, values.dtype).reshape(-1, *values.shape[1:])
        return values, has

    def _values(self, column: Column) -> tuple[NDArray[np.int32], bytes]:
        """Where values end and the next ones begin, and their bytes; empty ones of frames that lack the column."""
        ends = np.zeros(len(self._frame) + 1, np.int32)
        there = (self._columns & column.value) != 0
        if not there.any():
            return ends, b""
        has = there[self._frame]
        at = (self._at[self._frame] // 4 + self._place)[has]
        ends[1:][has] = self._words[at + 1] - self._words[at]
        np.cumsum(ends, out=ends)
        sizes = np.zeros_like(self._at)
        sizes[there] = self._words[(self._at // 4 + self._counts)[there]]
        self._at[there] += _padded(4 * (self._counts + 1))[there]
        return ends, self._taken(sizes)

    def _taken(self, sizes: _Numbers) -> bytes:
        """So many bytes of each frame, together, and goes past them."""
        data, ends = self._data, self._at + sizes
        taken = b"".join([data[begin:end] for begin, end in zip(self._at.tolist(), ends.tolist(), strict=True)])
        self._at += _padded(sizes)
        return taken


def _padded(sizes: _Numbers) -> _Numbers:
    return (sizes + 7) & ~7


def _bitmap(there: NDArray[np.bool_]) -> NDArray[np.uint8] | None:
    """As Arrow marks which values there are; None when all are."""
    return None if there.all() else np.packbits(there, bitorder="little")
