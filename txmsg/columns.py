"""The messages of a request as columns, from the producer's request to the statement that stores them.

Knows neither the wire nor the database: client and broker each convert it once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from txmsg.message import QueueId

T = TypeVar("T")


@dataclass(slots=True)
class Columns:
    """Messages as columns of one length. ids: 16 bytes each; "", b"" and 0 are none; times in us since 1970.

    n, key, tag, headers, ordering_key, deliver_at_us, deliver_after_us and first_check_ms may be empty: no message has
    a value. A delayed message has one of deliver_at_us and deliver_after_us. queue and producer are the broker's: ids
    of its database.
    """

    ids: list[bytes] = field(default_factory=list)
    n: list[int] = field(default_factory=list)
    queue: list[QueueId] = field(default_factory=list)
    producer: list[int] = field(default_factory=list)
    key: list[str] = field(default_factory=list)
    tag: list[str] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)
    born_at_us: list[int] = field(default_factory=list)
    ordering_key: list[str] = field(default_factory=list)
    deliver_at_us: list[int] = field(default_factory=list)
    deliver_after_us: list[int] = field(default_factory=list)
    first_check_ms: list[int] = field(default_factory=list)

    def fill(self) -> None:
        """Brings the columns that end before the last row to the length of all."""
        count = len(self.ids)
        if self.n:
            _fill(self.n, count, 0)
        if self.key:
            _fill(self.key, count, "")
        if self.tag:
            _fill(self.tag, count, "")
        if self.headers:
            _fill(self.headers, count, b"")
        if self.ordering_key:
            _fill(self.ordering_key, count, "")
        if self.deliver_at_us:
            _fill(self.deliver_at_us, count, 0)
        if self.deliver_after_us:
            _fill(self.deliver_after_us, count, 0)
        if self.first_check_ms:
            _fill(self.first_check_ms, count, 0)

    def extend(self, other: Columns) -> None:
        """Appends the rows of `other`, which stays as it is."""
        count = len(self.ids)
        self.ids += other.ids
        self.queue += other.queue
        self.producer += other.producer
        self.body += other.body
        self.born_at_us += other.born_at_us
        if other.n:
            _fill(self.n, count, 0)
            self.n += other.n
        if other.key:
            _fill(self.key, count, "")
            self.key += other.key
        if other.tag:
            _fill(self.tag, count, "")
            self.tag += other.tag
        if other.headers:
            _fill(self.headers, count, b"")
            self.headers += other.headers
        if other.ordering_key:
            _fill(self.ordering_key, count, "")
            self.ordering_key += other.ordering_key
        if other.deliver_at_us:
            _fill(self.deliver_at_us, count, 0)
            self.deliver_at_us += other.deliver_at_us
        if other.deliver_after_us:
            _fill(self.deliver_after_us, count, 0)
            self.deliver_after_us += other.deliver_after_us
        if other.first_check_ms:
            _fill(self.first_check_ms, count, 0)
            self.first_check_ms += other.first_check_ms
        self.fill()

    def only(self, ids: set[bytes]) -> Columns:
        """The rows of these transactions, in order."""
        rows = [row for row, id_bytes in enumerate(self.ids) if id_bytes in ids]

        def of(column: list[T]) -> list[T]:
            return [column[row] for row in rows] if column else []

        return Columns(
            ids=of(self.ids),
            n=of(self.n),
            queue=of(self.queue),
            producer=of(self.producer),
            key=of(self.key),
            tag=of(self.tag),
            headers=of(self.headers),
            body=of(self.body),
            born_at_us=of(self.born_at_us),
            ordering_key=of(self.ordering_key),
            deliver_at_us=of(self.deliver_at_us),
            deliver_after_us=of(self.deliver_after_us),
            first_check_ms=of(self.first_check_ms),
        )


def put(column: list[T], row: int, value: T, none: T) -> None:
    """Sets the value of a row after the last one of the column that has one."""
    if len(column) < row:
        column += [none] * (row - len(column))
    column.append(value)


def _fill(column: list[T], count: int, none: T) -> None:
    column += [none] * (count - len(column))
