"""Many frames as one table. They are joined unless they are large: what a batch costs Arrow is most of what a small one
costs, and a writer that is never behind makes frames of one message. Large ones stay on the log's own bytes.

Columns are taken from all frames at once, one after the other: bytes are copied together, and numpy does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txmsg.metaq.format.batch import SCHEMA, LogBatch, only
from txmsg.metaq.format.frame import WIDTHS, Column, raw_of
from txmsg.wire.tags import ALL_TAGS, TagExpression

__all__ = ["to_arrow"]

_Numbers: TypeAlias = NDArray[np.int64]
_Mask: TypeAlias = NDArray[np.bool_]

_JOINED_MIN: Final = 8
"""Joining costs as much as this many batches by themselves."""
_JOINED_SIZE_BYTES_MAX: Final = 32 * 1024
"""Of a batch, on average: copying a larger one costs as much as it saves."""
_TINY_SIZE_BYTES_MAX: Final = 512
"""Of a batch, on average: such ones are copied twice, as bytes are cut faster than views of memory are."""
_TOGETHER_SIZE_BYTES_MAX: Final = 1024**3
"""So that the values of a column are less than 2 GiB: they stand at places that are int32."""


def to_arrow(batches: Sequence[LogBatch], wanted: TagExpression = ALL_TAGS) -> pa.Table:
    """The messages of several batches, as `LogBatch.to_arrow` gives them of each. Schema: SCHEMA.

    In few chunks; `combine_chunks` makes one of them. wanted: only messages with such tags.
    """
    size_bytes_max = min(_JOINED_SIZE_BYTES_MAX * len(batches), _TOGETHER_SIZE_BYTES_MAX)
    if len(batches) < _JOINED_MIN or sum(each.header.raw_size_bytes for each in batches) > size_bytes_max:
        return pa.Table.from_batches([each.to_arrow(wanted) for each in batches], SCHEMA)
    return pa.Table.from_batches([only(_Frames(batches).joined(), wanted)])


class _Frames:
    """Payloads of which columns are taken, one after the other."""

    def __init__(self, batches: Sequence[LogBatch]) -> None:
        self._batches = batches
        self._headers = [each.header for each in batches]
        raw = [memoryview(raw_of(each.header, each.stored)) for each in batches]
        sizes = np.array([len(each) for each in raw], np.int64)
        is_tiny = sizes.mean() <= _TINY_SIZE_BYTES_MAX
        self._raw: Iterable[memoryview | bytes] = repeat(b"".join(raw)) if is_tiny else raw
        self._at = np.cumsum(sizes) - sizes if is_tiny else np.zeros_like(sizes)
        """Where the next column of each frame begins."""
        self._counts = np.array([each.count for each in self._headers], np.int64)
        self._columns = np.array([each.columns for each in self._headers], np.int64)
        self._total = int(self._counts.sum())

    def joined(self) -> pa.RecordBatch:
        """All messages that are asked for."""
        places = np.arange(self._total) - self._of_all(np.cumsum(self._counts) - self._counts)
        ids, has_id = self._numbers(Column.TRANSACTION_ID, np.zeros((self._total, 16), np.uint8))
        n, _ = self._numbers(Column.N, np.zeros(self._total, np.int16))
        born_at, has_born_at = self._numbers(Column.BORN_AT, np.zeros(self._total, np.int64))
        stored_at, _ = self._numbers(
            Column.STORED_AT, self._of_all([each.first_stored_at_us for each in self._headers])
        )
        values = [
            self._values(each) for each in (Column.KEY, Column.TAG, Column.ORDERING_KEY, Column.HEADERS, Column.BODY)
        ]
        buffers: list[list[Any]] = [
            [None, self._of_all([each.base_offset for each in self._headers]) + places],
            [_bitmap(has_id), ids],
            [None, n],
            *([_bitmap(ends[1:] > ends[:-1]), ends, data] for ends, data in values[:-1]),
            [None, *values[-1]],
            [None, np.where(has_born_at, born_at, stored_at)],
            [None, stored_at],
        ]
        arrays = [
            pa.Array.from_buffers(
                field.type, self._total, [part if part is None else pa.py_buffer(part) for part in parts]
            )
            for field, parts in zip(SCHEMA, buffers, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        skips = [each.skip for each in self._batches]
        return batch.filter(pa.array(places >= self._of_all(skips))) if any(skips) else batch

    def _of_all(self, of_frames: _Numbers | Sequence[int]) -> _Numbers:
        """What each frame has, for each of its messages."""
        return np.repeat(np.asarray(of_frames, np.int64), self._counts)

    def _numbers(self, column: Column, values: NDArray[Any]) -> tuple[NDArray[Any], _Mask]:
        """What frames have of a column of fixed width, else these values; which messages have it."""
        there = (self._columns & column.value) != 0
        has = np.repeat(there, self._counts)
        if there.any():
            data = self._taken(np.where(there, self._counts * WIDTHS[column], 0))
            values[has] = np.frombuffer(data, values.dtype).reshape(-1, *values.shape[1:])
        return values, has

    def _values(self, column: Column) -> tuple[NDArray[np.int32], bytes]:
        """Where values end and the next ones begin, and their bytes; empty ones of frames that lack the column."""
        ends = np.zeros(self._total + 1, np.int32)
        there = (self._columns & column.value) != 0
        if not there.any():
            return ends, b""
        sizes = np.where(there, self._counts + 1, 0)
        of_frames = np.frombuffer(self._taken(4 * sizes), np.int32)
        last = np.cumsum(sizes[there]) - 1
        ends[1:][np.repeat(there, self._counts)] = np.delete(np.diff(of_frames), last[:-1])
        np.cumsum(ends, out=ends)
        sizes[there] = of_frames[last]
        return ends, self._taken(sizes)

    def _taken(self, sizes: _Numbers) -> bytes:
        """So many bytes of each frame, together, and goes past them."""
        ends = self._at + sizes
        parts = zip(self._raw, self._at.tolist(), ends.tolist(), strict=False)
        self._at = (ends + 7) & ~7
        return b"".join([raw[begin:end] for raw, begin, end in parts])


def _bitmap(there: _Mask) -> NDArray[np.uint8] | None:
    """As Arrow marks which values there are; None when all are."""
    return None if there.all() else np.packbits(there, bitorder="little")
