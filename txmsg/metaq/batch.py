"""What is read: a frame of a queue as an Arrow RecordBatch, or as messages. Nothing is copied before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmsg.message import ReceivedMessage
from txmsg.metaq.frame import Buffer, Column, Columns, Header, payload_of
from txmsg.wire.headers import unpack_headers
from txmsg.wire.tags import ALL_TAGS, TagExpression

__all__ = ["SCHEMA", "LogBatch"]

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
_ROWS_AT_ONCE = 1024
_ABSENT: Final = {
    name: pa.array(np.zeros(_COUNT_COMMON, np.int16))
    if name == "n"
    else pa.nulls(_COUNT_COMMON, SCHEMA.field(name).type)
    for name in _STORED
}
"""Columns that no message fills, made once: batches of usual size take a slice."""
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
        if wanted.tags is None:
            return batch
        if not header.columns & Column.TAG.value:
            return batch.slice(0, 0)
        return batch.filter(pc.is_in(batch["tag"], pa.array(wanted.tags, pa.string())))

    def messages(self, wanted: TagExpression = ALL_TAGS) -> Iterator[ReceivedMessage]:
        """The messages one by one, made as they are asked for; `wanted` as for `to_arrow`."""
        columns = self.to_arrow(wanted)
        for start in range(0, columns.num_rows, _ROWS_AT_ONCE):
            yield from self._rows(columns.slice(start, _ROWS_AT_ONCE))

    def _rows(self, columns: pa.RecordBatch) -> Iterator[ReceivedMessage]:
        topic, queue = self.header.topic, self.header.queue
        rows = zip(
            *(columns[name].to_pylist() for name in ("offset", *_STORED)),
            *(columns[name].cast(_INT64).to_pylist() for name in ("born_at", "stored_at")),
            strict=True,
        )
        for offset, id_bytes, n, key, tag, ordering_key, headers, body, born_at_us, stored_at_us in rows:
            yield ReceivedMessage(
                topic,
                body,
                key,
                tag,
                unpack_headers(headers) if headers else {},
                queue,
                offset,
                id_bytes=id_bytes or bytes(16),
                n=n,
                born_at_us=born_at_us,
                stored_at_us=stored_at_us,
                ordering_key=ordering_key,
            )

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


def _absent(name: str, kind: pa.DataType, count: int) -> pa.Array:
    """A column that no message fills."""
    if count <= _COUNT_COMMON:
        return _ABSENT[name].slice(0, count)
    return pa.array(np.zeros(count, np.int16)) if name == "n" else pa.nulls(count, kind)


def _moments(found: tuple[pa.Buffer, ...] | None, count: int, one_us: int) -> pa.Array:
    buffer = found[0] if found else pa.py_buffer(np.full(count, one_us, np.int64))
    return pa.Array.from_buffers(_MOMENT, count, [None, buffer])


def _present(ends: pa.Buffer) -> pa.Buffer | None:
    """Which values there are, as Arrow marks it; None when all are."""
    positions = np.frombuffer(ends, np.int32)
    there = positions[1:] > positions[:-1]
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
