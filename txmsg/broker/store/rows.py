"""Rows as delivery reads them. Knows no driver, so that the pure parts of delivery can name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["GroupLag", "RetryRow", "Row"]

Row: TypeAlias = tuple[int, bytes, int, str | None, str | None, bytes | None, bytes, int, int]
"""A message as read: offset, transaction id, n, key, tag, headers, body, born_at and stored_at in PostgreSQL's
microseconds since 2000. A plain tuple as the driver makes it: at 100,000 messages/s every copy counts."""

RetryRow: TypeAlias = tuple[int, int, Row]
"""A retry as read: queue id, deliveries so far, the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """How far a group is behind in a topic: messages not yet acknowledged, waiting for a retry, and dead."""

    group: str
    topic: str
    waiting: int
    retrying: int
    dead: int
