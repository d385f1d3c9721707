"""Batches of a log as Arrow columns for Spark: only those of the query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from txmsg.errors import MisuseError
from txmsg.metaq.format.batch import LogBatch, to_arrow
from txmsg.metaq.format.readable import header_maps
from txmsg.metaq.interface import LogQueue

if TYPE_CHECKING:
    from txmsg.wire.body_keys import BodyKeys

_HEADERS: Final = StructField("headers", MapType(StringType(), StringType(), valueContainsNull=False))
_FIELDS: Final = (
    StructField("topic", StringType(), nullable=False),
    StructField("queue", IntegerType(), nullable=False),
    StructField("offset", LongType(), nullable=False),
    StructField("key", StringType()),
    StructField("tag", StringType()),
    StructField("ordering_key", StringType()),
    StructField("value", BinaryType(), nullable=False),
    StructField("born_at", TimestampType(), nullable=False),
    StructField("stored_at", TimestampType(), nullable=False),
)
_TYPES: Final = {field.name: field.dataType for field in (*_FIELDS, _HEADERS)}
_SEALED: Final = frozenset({"body", "headers"})
"""Columns whose values decryption changes."""
_IN_LOG: Final = {"value": "body"}
_CONSTANT: Final = frozenset({"topic", "queue"})


def schema_of(*, include_headers: bool) -> StructType:
    """Return the schema with all columns."""
    fields = list(_FIELDS)
    if include_headers:
        fields.insert(7, _HEADERS)
    return StructType(fields)


def chosen(names: Sequence[str]) -> StructType:
    """Return the columns of these names. Raises MisuseError for others."""
    for name in names:
        _require_known(name)
    return StructType([field for name in names for field in (*_FIELDS, _HEADERS) if field.name == name])


def _require_known(name: str) -> None:
    if name not in _TYPES:
        raise MisuseError(f"MetaQ has no column {name!r}: there are {', '.join(_TYPES)}")


class ArrowColumns:
    """A converter of batches to Arrow with these columns. Sent to executors."""

    def __init__(self, schema: StructType) -> None:
        for field in schema.fields:
            _require_known(field.name)
            if field.dataType.simpleString() != _TYPES[field.name].simpleString():
                raise MisuseError(
                    f"column {field.name!r} is of type {_TYPES[field.name].simpleString()}, not "
                    f"{field.dataType.simpleString()}: cast it in the query"
                )
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._names = [_IN_LOG.get(name, name) for name in self._schema.names if name not in _CONSTANT]

    def of(
        self, queue: LogQueue, batches: Sequence[LogBatch], end: int, keys: BodyKeys | None = None
    ) -> pa.RecordBatch:
        """Return the messages of consecutive batches of a queue, up to this offset. keys: decrypt bodies
        and headers.
        """
        if keys is None or _SEALED.isdisjoint(self._names):
            found = [batch.to_arrow().select(self._names) for batch in batches]
        else:  # of all batches in one call
            found = keys.decrypt_arrow(queue.topic, to_arrow(batches)).select(self._names).combine_chunks().to_batches()
        last = batches[-1]
        if last.end_offset > end:
            found[-1] = found[-1].slice(0, len(found[-1]) - (last.end_offset - end))
        count = min(end, last.end_offset) - batches[0].base_offset
        joined = pa.concat_batches(found) if self._names else None
        return pa.RecordBatch.from_arrays(
            [self._column(name, queue, joined, count) for name in self._schema.names], schema=self._schema
        )

    def _column(self, name: str, queue: LogQueue, joined: pa.RecordBatch | None, count: int) -> pa.Array:
        if name == "topic":
            return pa.repeat(pa.scalar(queue.topic, pa.string()), count)
        if name == "queue":
            return pa.repeat(pa.scalar(queue.queue, pa.int32()), count)
        assert joined is not None
        found = joined[_IN_LOG.get(name, name)]
        return header_maps(found).cast(self._schema.field(name).type) if name == "headers" else found
