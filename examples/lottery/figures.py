"""The figures of the lottery in PostgreSQL, a row for each second: the table, writing and reading.

Knows neither who measures them nor the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

CHANNEL: Final = "figures"
"""Channel that is notified of each written second once it can be read."""
_SHOWN_S: Final = 600

_CREATE: Final = """
create table if not exists moment (
    second  timestamptz primary key,
    entered int not null,  -- until the end of that second
    printed int not null,
    p50_ms  int,           -- what those waited who were let in during it
    p99_ms  int,
    at      timestamptz not null default clock_timestamp()
)
"""
_WRITE: Final = """
insert into moment (second, entered, printed, p50_ms, p99_ms)
values (date_trunc('second', clock_timestamp()), %(entered)s, %(printed)s, %(p50_ms)s, %(p99_ms)s)
on conflict (second) do update
set entered = excluded.entered, printed = excluded.printed, p50_ms = excluded.p50_ms, p99_ms = excluded.p99_ms,
    at = excluded.at
"""
_READ: Final = """
select second, entered, printed, p50_ms, p99_ms, at from moment
where second > (select max(second) from moment) - make_interval(secs => %s) order by second
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The figures of a second."""

    second: datetime
    entered: int
    """Users entered until its end; those without a ticket yet are waiting."""
    printed: int
    p50_ms: int | None
    """Median waiting time of users admitted during it; None: there were none."""
    p99_ms: int | None
    at: datetime
    """Time of the last write."""


def create_tables(connection: psycopg.Connection[Any]) -> None:
    connection.execute(_CREATE)


def write(
    connection: psycopg.Connection[Any], *, entered: int, printed: int, p50_ms: int | None, p99_ms: int | None
) -> None:
    """Write the current second. p50_ms, p99_ms: waiting times of users admitted during the last second."""
    with connection.transaction():
        connection.execute(_WRITE, {"entered": entered, "printed": printed, "p50_ms": p50_ms, "p99_ms": p99_ms})
        connection.execute(f"notify {CHANNEL}")


def read(connection: psycopg.Connection[Any]) -> list[Moment]:
    """Return the last ten minutes."""
    return connection.cursor(row_factory=class_row(Moment)).execute(_READ, (_SHOWN_S,)).fetchall()
