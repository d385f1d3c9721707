"""Rows as delivery reads them. Knows no driver, so that the pure parts of delivery can name them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

__all__ = ["NO_GENERATIONS", "Generations", "GroupLag", "RetryRow", "Row", "size_bytes_of"]

Row: TypeAlias = tuple[int, bytes, int, str | None, str | None, bytes | None, bytes, int, int, str | None]
"""A message as read: offset, transaction id, n, key, tag, headers, body, born_at and stored_at in PostgreSQL's
microseconds since 2000, ordering key. A plain tuple as the driver makes it: at 100,000 messages/s every copy counts."""

RetryRow: TypeAlias = tuple[int, int, int, Row]
"""A retry as read: queue id, deliveries so far, generation when it was written, the message."""


class Generations(NamedTuple):
    """Under which generation a group gets which offsets of a queue: of `starts`, ascending, each begins one of `of`.

    0 before the first. `seek --again` to an offset begins one there, above all that were given before: messages from
    there on are handled again. A plain seek changes nothing here, so what it brings back has been handled.
    """

    starts: Sequence[int]
    of: Sequence[int]

    def at(self, offset: int) -> int:
        """The generation of one offset."""
        place = bisect_right(self.starts, offset)
        return self.of[place - 1] if place else 0


NO_GENERATIONS = Generations((), ())
"""No message of a queue was asked for again."""


def size_bytes_of(row: Row) -> int:
    """What a message weighs: its body and its headers."""
    return len(row[6]) + len(row[5]) if row[5] else len(row[6])


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """How far a group is behind in a topic: messages not yet acknowledged, waiting for a retry, and dead."""

    group: str
    topic: str
    waiting: int
    retrying: int
    dead: int
