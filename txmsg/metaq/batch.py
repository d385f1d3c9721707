"""What is read: a frame of a queue as an Arrow RecordBatch, or as messages. Nothing is copied before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from txmsg.message import ReceivedMessage
from txmsg.metaq.frame import Buffer, Column, Header, payload_of
from txmsg.wire.headers import unpack_headers

__all__ = ["SCHEMA", "LogBatch"]

_MOMENT: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
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

_TEXTS = {"key": Column.KEY, "tag": Column.TAG, "ordering_key": Column.ORDERING_KEY}


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
        """The offset after the last message."""
        return self.header.base_offset + self.header.count

    def __len__(self) -> int:
        return self.header.count - self.skip

    def to_arrow(self) -> pa.RecordBatch:
        """The messages as columns, on the log's own bytes when they are not compressed. Schema: SCHEMA."""
        header = self.header
        count = header.count
        buffers = payload_of(header, self.stored)

        def fixed(column: Column, kind: pa.DataType) -> pa.Array | None:
            found = buffers.get(column)
            return found and pa.Array.from_buffers(kind, count, [None, found[0]])

        def variable(column: Column, kind: pa.DataType, *, optional: bool = True) -> pa.Array:
            found = buffers.get(column)
            if found is None:
                return pa.nulls(count, kind)
            return pa.Array.from_buffers(kind, count, [_present(found[0]) if optional else None, *found])

        stored_at = fixed(Column.STORED_AT, _MOMENT)
        if stored_at is None:
            stored_at = pa.array(np.full(count, header.first_stored_at_us), _MOMENT)
        transaction_id = fixed(Column.TRANSACTION_ID, pa.binary(16))
        n = fixed(Column.N, pa.int16())
        born_at = fixed(Column.BORN_AT, _MOMENT)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(np.arange(header.base_offset, self.end_offset)),
                pa.nulls(count, pa.binary(16)) if transaction_id is None else transaction_id,
                pa.array(np.zeros(count, np.int16)) if n is None else n,
                *(variable(column, pa.string()) for column in _TEXTS.values()),
                variable(Column.HEADERS, pa.binary()),
                variable(Column.BODY, pa.binary(), optional=False),
                stored_at if born_at is None else born_at,
                stored_at,
            ],
            schema=SCHEMA,
        )
        return batch.slice(self.skip) if self.skip else batch

    def messages(self) -> Iterator[ReceivedMessage]:
        """The messages one by one."""
        header = self.header
        columns = self.to_arrow()
        ids = columns["transaction_id"]
        born_at, stored_at = (columns[name].cast(pa.int64()).to_pylist() for name in ("born_at", "stored_at"))
        rows = zip(
            columns["offset"].to_pylist(),
            ids.to_pylist(),
            columns["n"].to_pylist(),
            columns["key"].to_pylist(),
            columns["tag"].to_pylist(),
            columns["ordering_key"].to_pylist(),
            columns["headers"].to_pylist(),
            columns["body"].to_pylist(),
            born_at,
            stored_at,
            strict=True,
        )
        for offset, id_bytes, n, key, tag, ordering_key, headers, body, born_at_us, stored_at_us in rows:
            yield ReceivedMessage(
                topic=header.topic,
                body=body,
                key=key,
                tag=tag,
                ordering_key=ordering_key,
                headers=unpack_headers(headers or b""),
                queue=header.queue,
                offset=offset,
                id_bytes=id_bytes or bytes(16),
                n=n,
                born_at_us=born_at_us,
                stored_at_us=stored_at_us,
            )


def _present(ends: pa.Buffer) -> pa.Buffer | None:
    """Which values there are, as Arrow marks it; None when all are."""
    there = np.diff(np.frombuffer(ends, np.int32)) > 0
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
