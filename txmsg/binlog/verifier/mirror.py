"""The Protocols by which the comparison reads a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

Row = tuple[int, bytes, int, bytes, bytes, bytes, Any, bytes, int, int]
"""A message, by the names of FIELDS. Missing values are empty; times are microseconds since 1970."""
FIELDS: Final = (
    "offset",
    "transaction id",
    "n",
    "key",
    "tag",
    "ordering key",
    "headers",
    "body",
    "born_at",
    "stored_at",
)


class VerifiedQueue(NamedTuple):
    """A queue by its topic and number."""

    topic: str
    number: int


class NoteDifference(Protocol):
    """Notes that offsets are not as they must be; for the kinds see `compare.Difference`."""

    def __call__(self, kind: str, begin: int, end: int, detail: str = "") -> None: ...


class QueueWalk(Protocol):
    """One queue, read once from its begin. The attributes hold for the part that was read."""

    holes: list[tuple[int, int]]
    """Ranges of offsets that the log marks as missing."""
    damaged: list[tuple[int, int]]
    """Ranges of offsets whose messages cannot be read."""
    in_holes: int

    def rows(self) -> Iterator[Row]:
        """Yield the messages by rising offsets, and note errors in their places."""
        ...

    def is_cut(self, offset: int) -> bool:
        """Return True if the log's own retention has deleted messages that were there."""
        ...


class VerifiedMirror(Protocol):
    """A log as a reader sees it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def topics(self) -> dict[str, list[int]]:
        """Return the topics with the numbers of their queues."""
        ...

    def ends(self, queues: Sequence[VerifiedQueue]) -> dict[VerifiedQueue, int]:
        """Return the offset after the last message of each queue; 0 if it has none."""
        ...

    def begin_offset(self, queue: VerifiedQueue) -> int:
        """Return the first kept offset of a queue that has messages."""
        ...

    def walk(self, queue: VerifiedQueue, begin: int, end: int, note: NoteDifference) -> QueueWalk:
        """Return the walk through a queue up to `end`. begin: the table's first offset."""
        ...

    def expected(self, row: Row) -> Row:
        """Return a row of the table in the form that this log must have."""
        ...
