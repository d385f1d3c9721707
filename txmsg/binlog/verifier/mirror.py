"""What the comparison needs of a log, as Protocols."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

Row = tuple[int, bytes, int, bytes, bytes, bytes, Any, bytes, int, int]
"""A message, by the names of FIELDS. What there is none of is empty; times are microseconds since 1970."""
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
    """A queue by its names."""

    topic: str
    number: int


class NoteDifference(Protocol):
    """Notes that offsets are not as they must be; for the kinds see `compare.Difference`."""

    def __call__(self, kind: str, begin: int, end: int, detail: str = "") -> None: ...


class QueueWalk(Protocol):
    """One queue, read once from its begin on. The rest holds as far as it was read."""

    holes: list[tuple[int, int]]
    """Ranges of offsets that the log marks as missing."""
    damaged: list[tuple[int, int]]
    """Ranges of which the messages cannot be read."""
    in_holes: int

    def rows(self) -> Iterator[Row]:
        """The messages by rising offsets; notes what is wrong with their places."""
        ...

    def is_cut(self, offset: int) -> bool:
        """Whether the log's own retention has deleted what was there."""
        ...


class VerifiedMirror(Protocol):
    """A log as a reader finds it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def topics(self) -> dict[str, list[int]]:
        """Topics and the numbers of their queues."""
        ...

    def ends(self, queues: Sequence[VerifiedQueue]) -> dict[VerifiedQueue, int]:
        """The offset after the last message of each; 0 if it has none."""
        ...

    def begin_offset(self, queue: VerifiedQueue) -> int:
        """The first offset that is kept of a queue that has messages."""
        ...

    def walk(self, queue: VerifiedQueue, begin: int, end: int, note: NoteDifference) -> QueueWalk:
        """To be compared up to `end`. begin: of the table."""
        ...

    def expected(self, row: Row) -> Row:
        """A row of the table as this log must have it."""
        ...
