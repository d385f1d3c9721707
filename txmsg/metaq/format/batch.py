"""What is read: a frame of a queue as an Arrow RecordBatch, or as messages. Nothing is copied before it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise, repeat
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmsg.message import ReceivedMessage
from txmsg.metaq.format.frame import Buffer, Columns, Header, payload_of
from txmsg.wire.headers import unpack_headers
from txmsg.wire.tags import ALL_TAGS, TagExpression

__all__ = ["SCHEMA", "LogBatch", "only"]

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
_ABSENT: Final = {
    name: pa.array(np.zeros(_COUNT_COMMON, np.int16))
    if name == "n"
    else pa.nulls(_COUNT_COMMON, SCHEMA.field(name).type)
    for name in _STORED
}
"""Columns that no message fills, made once: batches of usual size take a slice."""
_NO_HEADERS: Final = ReceivedMessage._field_defaults["headers"]
_COLUMNS = [(name, name.upper(), SCHEMA.field(name).type, name != "body") for name in _STORED]


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Consecutive messages of a queue, as they stand in one frame; `skip` of the first ones are not asked for."""

    header: Header
    stored: Buffer
    skip: int = 0

    @property
    def base_offset(self) -> int:
        """The offset of the first message."""
        return self.header.base_offset + self.skip

    @property
    def end_offset(self) -> int:
        """The offset after the last message: where to read on, also when a filter has left nothing of this batch."""
        return self.header.base_offset + self.header.count

    def __len__(self) -> int:
        return self.header.count - self.skip

    def to_arrow(self, wanted: TagExpression = ALL_TAGS) -> pa.RecordBatch:
        """The messages as columns, on the log's own bytes when they are not compressed. Schema: SCHEMA.

        wanted: only messages with such tags (`parse_tags("created || paid")`).
        """
        header = self.header
        count = header.count
        buffers = payload_of(header, self.stored)
        offsets = pa.py_buffer(np.arange(header.base_offset, header.base_offset + count))
        arrays = [pa.Array.from_buffers(_INT64, count, [None, offsets])]
        for name, stored_name, kind, optional in _COLUMNS:
            found = buffers.get(stored_name)
            if found is None:
                arrays.append(_absent(name, kind, count))
            elif len(found) == 1:
                arrays.append(pa.Array.from_buffers(kind, count, [None, *found]))
            else:
                arrays.append(pa.Array.from_buffers(kind, count, [_present(found[0]) if optional else None, *found]))
        stored_at = _moments(buffers.get("STORED_AT"), count, header.first_stored_at_us)
        born_at = buffers.get("BORN_AT")
        arrays += (_moments(born_at, count, 0) if born_at else stored_at, stored_at)
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        if self.skip:
            batch = batch.slice(self.skip)
        return only(batch, wanted)

    def messages(self, wanted: TagExpression = ALL_TAGS) -> Iterator[ReceivedMessage]:
        """The messages one by one, made as they are asked for; `wanted` as for `to_arrow`."""
        header = self.header
        count = header.count
        buffers = payload_of(header, self.stored)
        headers, ids = buffers.get("HEADERS"), buffers.get("TRANSACTION_ID")
        n, born_at, stored_at = buffers.get("N"), buffers.get("BORN_AT"), buffers.get("STORED_AT")
        stored_at_us = _numbers(stored_at, np.int64) if stored_at else [header.first_stored_at_us] * count
        rows = zip(  # in the order of ReceivedMessage's fields: a million of them are made in a second
            repeat(header.topic),
            _values(buffers["BODY"]),
            _texts(buffers.get("KEY")),
            _texts(buffers.get("TAG")),
            (unpack_headers(each) for each in _values(headers)) if headers else repeat(_NO_HEADERS),
            repeat(header.queue),
            range(header.base_offset, header.base_offset + count),
            repeat(1),
            _ids(ids[0].to_pybytes()) if ids else repeat(bytes(16)),
            _numbers(n, np.int16) if n else repeat(0),
            _numbers(born_at, np.int64) if born_at else stored_at_us,
            stored_at_us,
            _texts(buffers.get("ORDERING_KEY")),
            repeat(0),
        )
        messages = map(ReceivedMessage._make, islice(rows, self.skip, None))
        return messages if wanted.is_all else (each for each in messages if wanted.matches(each.tag))

    def columns(self, end_offset: int) -> Columns:
        """The messages before this offset, to be written again."""
        found = self.to_arrow().slice(0, end_offset - self.base_offset)
        values = {name: found[name].to_pylist() for name in _STORED}
        return Columns(
            bodies=values["body"],
            stored_at_us=found["stored_at"].cast(_INT64).to_pylist(),
            transaction_ids=b"".join(each or bytes(16) for each in values["transaction_id"]),
            n=values["n"],
            born_at_us=found["born_at"].cast(_INT64).to_pylist(),
            keys=[each or "" for each in values["key"]],
            tags=[each or "" for each in values["tag"]],
            ordering_keys=[each or "" for each in values["ordering_key"]],
            headers=[each or b"" for each in values["headers"]],
        )


def only(batch: pa.RecordBatch, wanted: TagExpression) -> pa.RecordBatch:
    """The messages of a batch with such tags."""
    if wanted.tags is None:
        return batch
    return batch.filter(pc.is_in(batch["tag"], pa.array(wanted.tags, pa.string())))


def _absent(name: str, kind: pa.DataType, count: int) -> pa.Array:
    """A column that no message fills."""
    if count <= _COUNT_COMMON:
        return _absent_of_common_size(name, count)
    return pa.array(np.zeros(count, np.int16)) if name == "n" else pa.nulls(count, kind)


@lru_cache(maxsize=1024)
def _absent_of_common_size(name: str, count: int) -> pa.Array:
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
    """The values of a column of lengths and bytes."""
    joined = memoryview(found[1])
    return (joined[start:end].tobytes() for start, end in pairwise(np.frombuffer(found[0], np.int32).tolist()))


def _texts(found: tuple[pa.Buffer, ...] | None) -> Iterable[str | None]:
    return repeat(None) if found is None else (each.decode() if each else None for each in _values(found))


def _present(ends: pa.Buffer) -> pa.Buffer | None:
    """Which values there are, as Arrow marks it; None when all are."""
    positions = np.frombuffer(ends, np.int32)
    there = positions[1:] > positions[:-1]
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
