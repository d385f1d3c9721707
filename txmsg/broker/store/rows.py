"""Rows as delivery reads them. Knows no driver, so that the pure parts of delivery can name them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from txmsg.message import Offset, QueueId


class StoredRow(NamedTuple):
    """A message as read. _2000_us: microseconds since 2000-01-01, as in `EPOCH_2000_US`."""

    offset: Offset
    transaction_id: bytes
    n: int
    key: str | None
    tag: str | None
    headers: bytes | None
    body: bytes
    born_at_2000_us: int
    stored_at_2000_us: int
    ordering_key: str | None


class RetryKey(NamedTuple):
    """The identity of a retry within its group."""

    queue_id: QueueId
    offset: int


class RetryRow(NamedTuple):
    """A retry as read: deliveries counted so far, and the generation when it was written.

    losses: how often its consumer was lost with it, which was not counted.
    """

    queue_id: QueueId
    attempts: int
    generation: int
    message: StoredRow
    losses: int = 0


class Generations(NamedTuple):
    """The generations of a queue's offsets for a group: `of[i]` from offset `starts[i]` on, 0 before the first.

    starts is ascending. `seek --again` to an offset begins a generation there, above all earlier ones: messages from
    there on are handled again. A plain seek changes nothing here, so messages that it brings back count as handled
    (decision 34).
    """

    starts: Sequence[int]
    of: Sequence[int]

    def at(self, offset: int) -> int:
        """Return the generation of one offset."""
        place = bisect_right(self.starts, offset)
        return self.of[place - 1] if place else 0


NO_GENERATIONS = Generations((), ())
"""The generations of a queue without requests to handle messages again."""


def size_bytes_of(row: StoredRow) -> int:
    """Return the size of a message in bytes: its body and its headers."""
    return len(row.body) + len(row.headers) if row.headers else len(row.body)
