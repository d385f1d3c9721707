"""Rows of the table as messages of a log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from txmsg.binlog.rows import Batch, Row
from txmsg.message import EPOCH_2000_US
from txmsg.metaq.format.frame import Columns

if TYPE_CHECKING:
    from txmsg.tracing import Tracing


def columns_of(rows: Sequence[Row]) -> Columns:
    """What a log stores of them."""
    ids, n, keys, tags, headers, bodies, born_at, stored_at, ordering_keys = zip(*rows, strict=True)
    return Columns(
        bodies=bodies,
        stored_at_us=[us + EPOCH_2000_US for us in stored_at],
        transaction_ids=b"".join(ids),
        n=n,
        born_at_us=[us + EPOCH_2000_US for us in born_at],
        keys=_texts(keys),
        tags=_texts(tags),
        headers=headers,
        ordering_keys=_texts(ordering_keys),
    )


def _texts(values: tuple[bytes, ...]) -> Sequence[str]:
    return [value.decode() for value in values] if any(values) else ()


def traced(tracing: Tracing | None, batches: Sequence[Batch]) -> AbstractContextManager[object]:
    """A span around the append of these, if one of them has a trace."""
    if tracing is None:
        return nullcontext()
    headers = (row.headers for batch in batches for row in batch.rows)
    count = sum(len(batch.rows) for batch in batches)
    return tracing.mirroring({batch.topic for batch in batches}, count, headers)
