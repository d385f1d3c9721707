"""Batches that are read: a frame of a queue as an Arrow RecordBatch, or as messages.

Nothing is copied before it is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise, repeat
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from txmsg.errors import ProtocolError, UnreadableMessage
from txmsg.message import ReceivedMessage
from txmsg.metaq.format.frame import WIDTHS, Buffer, FrameColumn, FrameColumns, Header, payload_of, raw_of, verify
from txmsg.metaq.format.unreadable import is_time, strange_time, unreadable
from txmsg.wire.headers import unpack_headers
from txmsg.wire.tags import ALL_TAGS, TagExpression

_Numbers: TypeAlias = NDArray[np.int64]
_Mask: TypeAlias = NDArray[np.bool_]

_MOMENT: Final = pa.timestamp("us", tz="UTC")
_INT64: Final = pa.int64()
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", _INT64, nullable=False),
        pa.field("transaction_id", pa.binary(16)),
        pa.field("n", pa.int16(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("ordering_key", pa.string()),
        pa.field("headers", pa.binary()),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("born_at", _MOMENT, nullable=False),
        pa.field("stored_at", _MOMENT, nullable=False),
    ]
)
"""The columns of a batch. headers: a serialised `Headers` of the protocol."""

_STORED = [field.name for field in SCHEMA if field.name not in {"offset", "born_at", "stored_at"}]
_COUNT_COMMON = 1024
_NO_HEADERS: Final = ReceivedMessage._field_defaults["headers"]
_COLUMNS = [(name, SCHEMA.field(name).type, name != "body") for name in _STORED]
_MAY_BE_UNREADABLE: Final = (FrameColumn.BORN_AT_US | FrameColumn.STORED_AT_US | FrameColumn.HEADERS).value
_PIECE_SIZE_BYTES: Final = 8 * 1024 * 1024
_JOINED_MIN: Final = 8
"""Batches from which on joining pays: it costs as much as this many batches converted one by one."""
_JOINED_SIZE_BYTES_MAX: Final = 32 * 1024
"""Bytes of a batch, on average, up to which batches are joined: copying a larger one costs as much as it saves."""
_TINY_SIZE_BYTES_MAX: Final = 512
"""Bytes of a batch, on average, up to which it is copied twice, as slicing bytes is faster than slicing memoryviews."""
_TOGETHER_SIZE_BYTES_MAX: Final = 1024**3
"""Bytes that are converted together, so that the values of a column are less than 2 GiB: their offsets are int32."""


class LogBatch(Protocol):
    """Consecutive messages of a queue, of any kind of log."""

    @property
    def topic(self) -> str:
        """The topic."""
        ...

    @property
    def queue(self) -> int:
        """The queue's number."""
        ...

    @property
    def base_offset(self) -> int:
        """The offset of the first message."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset after the last message, from which to continue, even if a filter has removed all messages."""
        ...

    @property
    def size_bytes(self) -> int:
        """Its approximate size in memory."""
        ...

    @property
    def unpacked_size_bytes(self) -> int:
        """The approximate size of its messages in memory. For a compressed batch far more than size_bytes."""
        ...

    @property
    def first_stored_at_us(self) -> int:
        """The time at which the first message was stored, in microseconds since 1970."""
        ...

    def __len__(self) -> int: ...

    def to_arrow(self, wanted: TagExpression = ALL_TAGS) -> pa.RecordBatch:
        """Return the messages as columns. Schema: SCHEMA.

        wanted: only messages with such tags (`parse_tags("created || paid")`).
        """
        ...

    def messages(self, wanted: TagExpression = ALL_TAGS) -> Iterator[ReceivedMessage]:
        """Return the messages one by one, created on demand; `wanted` as for `to_arrow`."""
        ...

    def _with_id(self, transaction_id: bytes, n: int) -> ReceivedMessage | None:
        """Return the message of this id, if it is here. Raises UnreadableMessage if it cannot be read."""
        ...

    def unreadable(self) -> UnreadableMessage | None:
        """Return the error for the first message that cannot be read; None: all can."""
        ...

    def before(self, offset: int) -> LogBatch:
        """Return the messages before this offset, which is not after the last one. It may have none."""
        ...


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """A `LogBatch` as it stands in one frame. Created by `verified`.

    skip, left: the numbers of its first and of its last messages that are left out.
    """

    header: Header
    frame: Buffer
    skip: int = 0
    left: int = 0

    @classmethod
    def verified(cls, header: Header, frame: Buffer, skip: int = 0) -> FrameBatch:
        """Return the messages of a frame that is whole. Raises BadFrame."""
        verify(header, frame)
        return cls(header, frame, skip)

    @property
    def stored(self) -> memoryview:
        """The payload as stored."""
        header = self.header
        return memoryview(self.frame)[header.start : header.start + header.payload_size_bytes]

    @property
    def topic(self) -> str:
        return self.header.topic

    @property
    def queue(self) -> int:
        return self.header.queue

    @property
    def size_bytes(self) -> int:
        """The size of the frame."""
        return self.header.size_bytes

    @property
    def unpacked_size_bytes(self) -> int:
        return self.header.raw_size_bytes

    @property
    def first_stored_at_us(self) -> int:
        return self.header.first_stored_at_us

    @property
    def base_offset(self) -> int:
        return self.header.base_offset + self.skip

    @property
    def end_offset(self) -> int:
        return self.header.base_offset + self.header.count - self.left

    def __len__(self) -> int:
        return self.header.count - self.skip - self.left

    def to_arrow(self, wanted: TagExpression = ALL_TAGS) -> pa.RecordBatch:
        """Return the messages as columns, on the log's own bytes when they are not compressed."""
        header = self.header
        count = header.count
        buffers = payload_of(header, self.stored)
        offsets = pa.py_buffer(np.arange(header.base_offset, header.base_offset + count))
        # Columns refer to the bytes of the frame, which they keep alive; only offsets and moments are made here.
        arrays = [pa.Array.from_buffers(_INT64, count, [None, offsets])]
        for name, kind, optional in _COLUMNS:
            found = buffers.get(name)
            if found is None:
                arrays.append(_absent(name, count))
            elif len(found) == 1:
                arrays.append(pa.Array.from_buffers(kind, count, [None, *found]))
            else:
                arrays.append(pa.Array.from_buffers(kind, count, [_present(found[0]) if optional else None, *found]))
        stored_at = _moments(buffers.get("stored_at_us"), count, header.first_stored_at_us)
        born_at = buffers.get("born_at_us")
        arrays += (_moments(born_at, count, 0) if born_at else stored_at, stored_at)
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        if self.skip or self.left:
            # A slice refers to the same buffers: nothing is copied for a fetch that begins within a frame.
            batch = batch.slice(self.skip, len(self))
        return only(batch, wanted)

    def messages(self, wanted: TagExpression = ALL_TAGS) -> Iterator[ReceivedMessage]:
        header = self.header
        count = header.count
        buffers = payload_of(header, self.stored)
        headers, ids = buffers.get("headers"), buffers.get("transaction_id")
        n, born_at, stored_at = buffers.get("n"), buffers.get("born_at_us"), buffers.get("stored_at_us")
        # Times are checked once per frame, by least and greatest, so that messages need no check of their own.
        has_times = self._is_stored_well and (not born_at or _are_times(np.frombuffer(born_at[0], np.int64)))
        # Messages before an unreadable one are still delivered: the error comes when the reader reaches it.
        if not has_times and len(self) and (error := self.unreadable()) is not None:
            return self._up_to(error, wanted)
        stored_at_us = _numbers(stored_at, np.int64) if stored_at else [header.first_stored_at_us] * count
        rows = zip(  # in the order of ReceivedMessage's fields: a million of them are made in a second
            repeat(header.topic),
            _values(buffers["body"]),
            _texts(buffers.get("key")),
            _texts(buffers.get("tag")),
            self._unpacked(_values(headers)) if headers else repeat(_NO_HEADERS),
            repeat(header.queue),
            range(header.base_offset, header.base_offset + count),
            repeat(1),
            _ids(ids[0].to_pybytes()) if ids else repeat(bytes(16)),
            _numbers(n, np.int16) if n else repeat(0),
            _numbers(born_at, np.int64) if born_at else stored_at_us,
            stored_at_us,
            _texts(buffers.get("ordering_key")),
            repeat(0),
            repeat(None),
        )
        messages: Iterator[ReceivedMessage] = map(ReceivedMessage._make, islice(rows, self.skip, count - self.left))
        return messages if wanted.is_all else (message for message in messages if wanted.matches(message.tag))

    def _unpacked(self, values: Iterable[bytes]) -> Iterator[Mapping[str, str]]:
        for row, packed in enumerate(values):
            # A message before the asked range is not parsed: if it cannot be read, that must not stop a reader which is
            # past it.
            if row < self.skip:
                yield _NO_HEADERS
                continue
            try:
                yield unpack_headers(packed)
            except ProtocolError as exc:
                raise self._unreadable(row, str(exc)) from exc

    def _unreadable(self, row: int, why: str) -> UnreadableMessage:
        return unreadable(self.topic, self.queue, self.header.base_offset + row, why)

    @property
    def _is_stored_well(self) -> bool:
        return is_time(self.header.first_stored_at_us) and is_time(self.header.last_stored_at_us)

    def _up_to(self, error: UnreadableMessage, wanted: TagExpression) -> Iterator[ReceivedMessage]:
        assert error.next_offset is not None
        yield from self.before(error.next_offset - 1).messages(wanted)
        raise error

    def unreadable(self) -> UnreadableMessage | None:
        header = self.header
        if self._is_stored_well and not header.columns & _MAY_BE_UNREADABLE:
            return None
        buffers = payload_of(header, self.stored)
        errors: list[UnreadableMessage] = []
        for name in ("stored_at_us", "born_at_us"):
            if found := buffers.get(name):
                times = np.frombuffer(found[0], np.int64)[self.skip : header.count - self.left]
                if len(times) and not _are_times(times):
                    row = next(row for row, us in enumerate(times.tolist(), self.skip) if not is_time(us))
                    errors.append(self._unreadable(row, strange_time(int(times[row - self.skip]))))
        if "stored_at_us" not in buffers and not self._is_stored_well:
            errors.append(self._unreadable(self.skip, strange_time(header.first_stored_at_us)))
        if headers := buffers.get("headers"):
            try:
                deque(islice(self._unpacked(_values(headers)), header.count - self.left), maxlen=0)
            except UnreadableMessage as exc:
                errors.append(exc)
        return min(errors, key=lambda error: error.next_offset or 0, default=None)

    def before(self, offset: int) -> FrameBatch:
        return replace(self, left=self.left + max(0, min(self.end_offset - offset, len(self))))

    def _with_id(self, transaction_id: bytes, n: int) -> ReceivedMessage | None:
        """Return the message that has this id."""
        header = self.header
        if not header.columns & FrameColumn.TRANSACTION_ID.value:
            return None
        size = len(transaction_id)
        # Ids are the first column, so they are searched as bytes: 550 MB/s of a core in frames of 100 messages
        # (decision 0073), without making any message.
        raw = memoryview(raw_of(header, self.stored))
        ids = bytes(raw[: size * header.count])
        # Ids are found as bytes anywhere, so a match may begin within one id and end in the next.
        at = ids.find(transaction_id, size * self.skip)
        if at < 0:  # nearly always
            return None
        buffers = payload_of(header, self.stored)
        numbers = _numbers(buffers["n"], np.int16) if "n" in buffers else [0] * header.count
        while at >= 0:
            row, rest = divmod(at, size)  # a match across two ids is not a message's
            if rest == 0 and numbers[row] == n and row < header.count - self.left:
                return next(replace(self, skip=row, left=header.count - row - 1).messages())
            at = ids.find(transaction_id, at + 1)
        return None

    def columns(self, end_offset: int) -> FrameColumns:
        """Return the messages before this offset, to be written again."""
        found = self.to_arrow().slice(0, end_offset - self.base_offset)
        values = {name: found[name].to_pylist() for name in _STORED}
        return FrameColumns(
            body=values["body"],
            stored_at_us=found["stored_at"].cast(_INT64).to_pylist(),
            transaction_id=b"".join(id_bytes or bytes(16) for id_bytes in values["transaction_id"]),
            n=values["n"],
            born_at_us=found["born_at"].cast(_INT64).to_pylist(),
            **{name: [text or "" for text in values[name]] for name in ("key", "tag", "ordering_key")},
            headers=[packed or b"" for packed in values["headers"]],
        )


def in_pieces(batches: Iterable[LogBatch]) -> Iterator[list[LogBatch]]:
    """Yield consecutive batches in pieces that are converted to Arrow together: of 8 MiB unpacked, or one larger batch.

    A fetch is bounded in stored bytes, of which a compressed topic may have a thousandth. Arrow has at most 2 GiB of a
    column.
    """
    piece: list[LogBatch] = []
    left_bytes = _PIECE_SIZE_BYTES
    for batch in batches:
        if piece and batch.unpacked_size_bytes > left_bytes:
            yield piece
            piece, left_bytes = [], _PIECE_SIZE_BYTES
        piece.append(batch)
        left_bytes -= batch.unpacked_size_bytes
    if piece:
        yield piece


def only(batch: pa.RecordBatch, wanted: TagExpression) -> pa.RecordBatch:
    """Return the messages of a batch with such tags."""
    if wanted.tags is None:
        return batch
    return batch.filter(pc.is_in(batch["tag"], _strings(wanted.tags)))


# Arrays are made from buffers: pa.array and pa.scalar import pandas where it is installed, which takes 0.2 s of CPU
# time and 30 MB.


def _absent(name: str, count: int) -> pa.Array:
    """Return a column without values."""
    if count <= _COUNT_COMMON:
        return _absent_of_common_size(name, count)
    return _new_absent(name, count)


def _new_absent(name: str, count: int) -> pa.Array:
    if name == "n":
        return pa.Array.from_buffers(pa.int16(), count, [None, pa.py_buffer(np.zeros(count, np.int16))])
    return pa.nulls(count, SCHEMA.field(name).type)


_ABSENT: Final = {name: _new_absent(name, _COUNT_COMMON) for name in _STORED}
"""Columns without values, made once: batches of usual size take a slice."""


@lru_cache(maxsize=1024)
def _absent_of_common_size(name: str, count: int) -> pa.Array:
    # A slice of one shared array: most batches lack most columns.
    return _ABSENT[name].slice(0, count)


def _moments(found: tuple[pa.Buffer, ...] | None, count: int, one_us: int) -> pa.Array:
    buffer = found[0] if found else pa.py_buffer(np.full(count, one_us, np.int64))
    return pa.Array.from_buffers(_MOMENT, count, [None, buffer])


def _numbers(found: tuple[pa.Buffer, ...], kind: type[np.int16 | np.int64]) -> list[int]:
    numbers: list[int] = np.frombuffer(found[0], kind).tolist()
    return numbers


def _ids(joined: bytes) -> Iterator[bytes]:
    return (joined[start : start + 16] for start in range(0, len(joined), 16))


def _values(found: tuple[pa.Buffer, ...]) -> Iterator[bytes]:
    """Return the values of a column of lengths and bytes."""
    joined = memoryview(found[1])
    return (joined[start:end].tobytes() for start, end in pairwise(np.frombuffer(found[0], np.int32).tolist()))


def _texts(found: tuple[pa.Buffer, ...] | None) -> Iterable[str | None]:
    return repeat(None) if found is None else (tag.decode() if tag else None for tag in _values(found))


def _present(ends: pa.Buffer) -> pa.Buffer | None:
    """Return the validity bitmap of values, in Arrow's form; None if all are valid."""
    positions = np.frombuffer(ends, np.int32)
    there = positions[1:] > positions[:-1]
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))


# ---- many frames as one table
#
# They are joined unless they are large: what a batch costs Arrow is most of what a small one costs, and a writer that
# is never behind makes frames of one message. Large ones stay on the log's own bytes. Columns are taken from all frames
# at once, one after the other: bytes are copied together, and numpy does the rest.


def to_arrow(batches: Sequence[LogBatch], wanted: TagExpression = ALL_TAGS) -> pa.Table:
    """Return the messages of several batches as columns, as `LogBatch.to_arrow` does for each. Schema: SCHEMA.

    In few chunks; `combine_chunks` makes one of them. wanted: only messages with such tags.
    """
    frames = [batch for batch in batches if isinstance(batch, FrameBatch)]
    size_bytes_max = min(_JOINED_SIZE_BYTES_MAX * len(frames), _TOGETHER_SIZE_BYTES_MAX)
    are_few = len(frames) < max(_JOINED_MIN, len(batches))
    if are_few or sum(batch.header.raw_size_bytes for batch in frames) > size_bytes_max:
        return pa.Table.from_batches([batch.to_arrow(wanted) for batch in batches], SCHEMA)
    return pa.Table.from_batches([only(_Frames(frames).joined(), wanted)])


def _are_times(times: NDArray[np.int64]) -> bool:
    return is_time(int(np.min(times))) and is_time(int(np.max(times)))


class _Frames:
    """Payloads from which columns are taken, one after the other."""

    def __init__(self, batches: Sequence[FrameBatch]) -> None:
        self._batches = batches
        self._headers = [batch.header for batch in batches]
        raw = [memoryview(raw_of(batch.header, batch.stored)) for batch in batches]
        sizes = np.array([len(payload) for payload in raw], np.int64)
        is_tiny = sizes.mean() <= _TINY_SIZE_BYTES_MAX
        self._raw: Iterable[memoryview | bytes] = repeat(b"".join(raw)) if is_tiny else raw
        self._at = np.cumsum(sizes) - sizes if is_tiny else np.zeros_like(sizes)
        """The begin of each frame's next column."""
        self._counts = np.array([header.count for header in self._headers], np.int64)
        self._columns = np.array([header.columns for header in self._headers], np.int64)
        self._total = int(self._counts.sum())

    def joined(self) -> pa.RecordBatch:
        """Return all messages that are asked for."""
        places = np.arange(self._total) - self._of_all(np.cumsum(self._counts) - self._counts)
        ids, has_id = self._numbers(FrameColumn.TRANSACTION_ID, np.zeros((self._total, 16), np.uint8))
        n, _ = self._numbers(FrameColumn.N, np.zeros(self._total, np.int16))
        born_at, has_born_at = self._numbers(FrameColumn.BORN_AT_US, np.zeros(self._total, np.int64))
        stored_at, _ = self._numbers(
            FrameColumn.STORED_AT_US, self._of_all([header.first_stored_at_us for header in self._headers])
        )
        values = [
            self._values(column)
            for column in (
                FrameColumn.KEY,
                FrameColumn.TAG,
                FrameColumn.ORDERING_KEY,
                FrameColumn.HEADERS,
                FrameColumn.BODY,
            )
        ]
        buffers: list[list[Any]] = [
            [None, self._of_all([header.base_offset for header in self._headers]) + places],
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
        if not any(batch.skip or batch.left for batch in self._batches):
            return batch
        wanted = places >= self._of_all([batch.skip for batch in self._batches])
        wanted &= places < self._of_all([batch.header.count - batch.left for batch in self._batches])
        return batch.filter(_where(wanted))

    def _of_all(self, of_frames: _Numbers | Sequence[int]) -> _Numbers:
        """Return a value of each frame, repeated for each of its messages."""
        return np.repeat(np.asarray(of_frames, np.int64), self._counts)

    def _numbers(self, column: FrameColumn, values: NDArray[Any]) -> tuple[NDArray[Any], _Mask]:
        """Return a column of fixed width, with these values for frames that lack it, and the messages that have it."""
        there = (self._columns & column.value) != 0
        has = np.repeat(there, self._counts)
        if there.any():
            data = self._taken(np.where(there, self._counts * WIDTHS[column], 0))
            values[has] = np.frombuffer(data, values.dtype).reshape(-1, *values.shape[1:])
        return values, has

    def _values(self, column: FrameColumn) -> tuple[NDArray[np.int32], bytes]:
        """Return the ends of values, and their bytes; values are empty for frames that lack the column."""
        ends = np.zeros(self._total + 1, np.int32)
        there = (self._columns & column.value) != 0
        if not there.any():
            return ends, b""
        sizes = np.where(there, self._counts + 1, 0)
        of_frames = np.frombuffer(self._taken(4 * sizes), np.int32)
        # Ends start with 0 in each frame. Their differences are lengths; the one across two frames is deleted, and a
        # single sum over the rest gives the ends of the joined column.
        last = np.cumsum(sizes[there]) - 1
        # Lengths stand where ends will: one array serves for both.
        ends[1:][np.repeat(there, self._counts)] = np.delete(np.diff(of_frames), last[:-1])
        np.cumsum(ends, out=ends)
        sizes[there] = of_frames[last]
        return ends, self._taken(sizes)

    def _taken(self, sizes: _Numbers) -> bytes:
        """Return so many bytes of each frame, joined, and advance past them."""
        ends = self._at + sizes
        parts = zip(self._raw, self._at.tolist(), ends.tolist(), strict=False)
        # Columns in a frame are padded to 8 bytes, so that Arrow can use them in place.
        self._at = (ends + 7) & ~7
        return b"".join([raw[begin:end] for raw, begin, end in parts])


def _bitmap(there: _Mask) -> NDArray[np.uint8] | None:
    """Return the validity bitmap of values, in Arrow's form; None if all are valid."""
    return None if there.all() else np.packbits(there, bitorder="little")


def _where(wanted: _Mask) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(wanted), [None, pa.py_buffer(np.packbits(wanted, bitorder="little"))])


def _strings(texts: Iterable[str]) -> pa.Array:
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))
