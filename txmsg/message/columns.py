"""The columns of a message, declared once for a producer's request and for the statement that stores it.

Knows neither the wire nor the database. The wire's columns have the same names, and client and broker each convert a
request once (txmsg.wire.columns); what is declared here also says how the broker makes arrays of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeVar

from txmsg.message import QueueId

T = TypeVar("T")


class Column(NamedTuple):
    """One of the columns of a message."""

    name: str
    array: str
    """PostgreSQL's type of the array that holds it."""
    default: Any
    """The value of a message that gives none. None: each message must give one."""
    is_null: bool
    """True if the default is stored as null."""


def _of(array: str, default: str | bytes | int | None = None, *, is_null: bool = False) -> dict[str, Any]:
    return {"array": array, "default": default, "is_null": is_null}


@dataclass(slots=True)
class Columns:
    """Messages as columns of one length. Those with a default may be empty: no message has another value.

    transaction_id: 16 bytes each. born_at_us, deliver_at_us: microseconds since 1970. A delayed message has one of
    deliver_at_us and deliver_after_us. queue and producer are the broker's: ids of its database.
    """

    transaction_id: list[bytes] = field(default_factory=list, metadata=_of("uuid[]"))
    n: list[int] = field(default_factory=list, metadata=_of("smallint[]", 0))
    queue: list[QueueId] = field(default_factory=list, metadata=_of("int[]"))
    producer: list[int] = field(default_factory=list, metadata=_of("int[]"))
    key: list[str] = field(default_factory=list, metadata=_of("text[]", "", is_null=True))
    tag: list[str] = field(default_factory=list, metadata=_of("text[]", "", is_null=True))
    headers: list[bytes] = field(default_factory=list, metadata=_of("bytea[]", b"", is_null=True))
    body: list[bytes] = field(default_factory=list, metadata=_of("bytea[]"))
    born_at_us: list[int] = field(default_factory=list, metadata=_of("timestamptz[]"))
    ordering_key: list[str] = field(default_factory=list, metadata=_of("text[]", "", is_null=True))
    deliver_at_us: list[int] = field(default_factory=list, metadata=_of("timestamptz[]", 0, is_null=True))
    deliver_after_us: list[int] = field(default_factory=list, metadata=_of("bigint[]", 0, is_null=True))
    first_check_ms: list[int] = field(default_factory=list, metadata=_of("int[]", 0, is_null=True))

    # An empty column stays empty: most messages have no key, tag or delay, and at 30,000 transactions a second a list
    # of defaults for each would cost too much (decision 0002).
    def fill(self) -> None:
        """Fill columns that end before the last row with their defaults, up to the length of all."""
        count = len(self.transaction_id)
        for name, default in _DEFAULTS:
            if column := getattr(self, name):
                _fill(column, count, default)

    def extend(self, other: Columns) -> None:
        """Append the rows of `other`, which stays as it is."""
        count = len(self.transaction_id)
        for name in _REQUIRED:
            getattr(self, name).extend(getattr(other, name))
        for name, default in _DEFAULTS:
            if added := getattr(other, name):
                column = getattr(self, name)
                _fill(column, count, default)
                column += added
        self.fill()

    def only(self, ids: set[bytes]) -> Columns:
        """Return the rows of these transactions, in order."""
        rows = [row for row, id_bytes in enumerate(self.transaction_id) if id_bytes in ids]
        kept = Columns()
        for column in COLUMNS:
            if values := getattr(self, column.name):
                setattr(kept, column.name, [values[row] for row in rows])
        return kept


COLUMNS: Final = tuple(Column(each.name, **each.metadata) for each in fields(Columns))
"""The columns of a message, in the order of the batch function's parameters."""
OF_PLAIN: Final = tuple(each for each in COLUMNS if each.name not in {"producer", "first_check_ms"})
"""The columns of plain messages, which have no transaction and so are not checked."""
OF_BROKER: Final = frozenset({"queue", "producer"})
"""Names of the columns that the broker fills."""
_REQUIRED: Final = [column.name for column in COLUMNS if column.default is None]
_DEFAULTS: Final = [(column.name, column.default) for column in COLUMNS if column.default is not None]


def put_value(column: list[T], row: int, value: T, none: T) -> None:
    """Append the value of a row to its column, after defaults for the rows before that have none."""
    if len(column) < row:
        column += [none] * (row - len(column))
    column.append(value)


def _fill(column: list[T], count: int, none: T) -> None:
    column += [none] * (count - len(column))
