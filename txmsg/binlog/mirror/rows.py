"""Converts rows of the table to messages of a log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from txmsg.binlog.rows import RowBatch, TableRow
from txmsg.message import EPOCH_2000_US
from txmsg.metaq.format.frame import FrameColumns

if TYPE_CHECKING:
    from txmsg.tracing import Tracing


def columns_of(rows: Sequence[TableRow]) -> FrameColumns:
    """Return the columns that a log stores of these rows."""
    columns: Any = TableRow._make(zip(*rows, strict=True))
    return FrameColumns(
        body=columns.body,
        stored_at_us=[us + EPOCH_2000_US for us in columns.stored_at_2000_us],
        transaction_id=b"".join(columns.transaction_id),
        n=columns.n,
        born_at_us=[us + EPOCH_2000_US for us in columns.born_at_2000_us],
        key=_texts(columns.key),
        tag=_texts(columns.tag),
        ordering_key=_texts(columns.ordering_key),
        headers=columns.headers,
    )


def _texts(values: tuple[bytes, ...]) -> Sequence[str]:
    return [value.decode() for value in values] if any(values) else ()


def traced(tracing: Tracing | None, batches: Sequence[RowBatch]) -> AbstractContextManager[object]:
    """Return a span around the append of these, if one of them has a trace."""
    if tracing is None:
        return nullcontext()
    headers = (row.headers for batch in batches for row in batch.rows)
    count = sum(len(batch.rows) for batch in batches)
    return tracing.mirroring({batch.topic for batch in batches}, count, headers)
