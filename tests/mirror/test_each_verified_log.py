"""Tests of the verifier on any kind of log. Modules with a fixture `copy` inherit from the class."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from tests.mirror.rows import Stored, written
from txmsg.binlog.verifier.compare import VerifierReport, verify

COUNT = 60
ROWS = [written("trade", queue, offset) for queue in (0, 1) for offset in range(COUNT)]
"""Contents of the fixture `table`."""


class Copy(Protocol):
    """A log that is compared with the table. No mirror writes it."""

    @property
    def where(self) -> Path | str:
        """Return the location, as `verify` takes it."""
        ...

    def write(self, rows: Sequence[Stored]) -> None:
        """Append these rows, each at its position."""
        ...


def found_by(report: VerifierReport) -> dict[str, int]:
    return dict(report.differing)


def without(*places: int) -> list[Stored]:
    return [each for place, each in enumerate(ROWS) if place not in places]


def _renumbered(rows: list[Stored]) -> list[Stored]:
    """Return rows with offsets equal to their positions: as a careless tailer would append them."""
    places = {queue: itertools.count() for queue in (0, 1)}
    return [each._replace(offset=next(places[each.queue])) for each in sorted(rows, key=lambda each: each.queue)]


def _moved() -> list[Stored]:
    return _renumbered([*ROWS[: COUNT - 1], *ROWS[COUNT:], ROWS[COUNT - 1]._replace(queue=1)])


def _swapped() -> list[Stored]:
    return _renumbered([*ROWS[:20], ROWS[21], ROWS[20], *ROWS[22:]])


FIELDS: list[tuple[str, dict[str, object]]] = [
    ("body", {"body": b"altered"}),
    ("key", {"key": "another"}),
    ("key", {"key": None}),
    ("tag", {"tag": "another"}),
    ("ordering key", {"ordering_key": "another"}),
    ("headers", {"headers": b""}),
    ("transaction id", {"id_bytes": bytes(16)}),
    ("n", {"n": 7}),
    ("born_at", {"born_at_us": 1}),
    ("stored_at", {"stored_at_us": 1_750_000_000_010_001}),
]

PLACES: dict[str, tuple[list[Stored], dict[str, int], str]] = {
    "missing at the end": (without(58, 59), {"missing": 2}, "missing: topic trade queue 0 offsets 58 to 59"),
    "missing altogether": (ROWS[:COUNT], {"missing": COUNT}, "missing: topic trade queue 1 offsets 0 to 59"),
    "lost in the middle": (
        _renumbered(without(30)),
        {"different": 29, "missing": 1},
        "different: topic trade queue 0 offset 30: transaction id is ",
    ),
    "doubled": (
        _renumbered([*ROWS[:31], ROWS[30], *ROWS[31:]]),
        {"different": 29, "extra": 1},
        "different: topic trade queue 0 offset 31: transaction id is ",
    ),
    "swapped": (_swapped(), {"different": 2}, "different: topic trade queue 0 offset 20: transaction id is "),
    "moved to another queue": (_moved(), {"missing": 1, "extra": 1}, "missing: topic trade queue 0 offset 59"),
    "extra at the end": (
        [*ROWS, written("trade", 1, 60), written("trade", 1, 61)],
        {"extra": 2},
        "extra: topic trade queue 1 offsets 60 to 61",
    ),
    "in a queue without messages": (
        [*ROWS, written("idle", 0, 0)],
        {"extra": 1},
        "extra: topic idle queue 0 offset 0",
    ),
    "in a queue that is not there": (
        [*ROWS, written("trade", 2, 0)],
        {"extra": 1},
        "extra: topic trade queue 2 offset 0: the database has no such queue",
    ),
}


class EachVerifiedLog:
    """A base class for test classes."""

    def test_progress_is_reported_up_to_the_end(self, table: str, copy: Copy) -> None:
        copy.write(ROWS)
        told: list[tuple[int, int]] = []
        report = verify(table, copy.where, progress=lambda done, total: told.append((done, total)))
        assert report.is_equal, report.differences
        assert told[-1] == (2 * COUNT, 2 * COUNT)

    @pytest.mark.parametrize(("name", "change"), FIELDS)
    def test_message_with_a_differing_field_is_found(
        self, table: str, copy: Copy, name: str, change: dict[str, object]
    ) -> None:
        rows = list(ROWS)
        rows[10] = rows[10]._replace(**change)  # type: ignore[arg-type]
        copy.write(rows)
        report = verify(table, copy.where)
        assert found_by(report) == {"different": 1}
        assert str(report.differences[0]).startswith(f"different: topic trade queue 0 offset 10: {name} is ")

    @pytest.mark.parametrize("name", PLACES)
    def test_message_at_a_different_position_is_found(self, table: str, copy: Copy, name: str) -> None:
        rows, kinds, first = PLACES[name]
        copy.write(rows)
        report = verify(table, copy.where)
        assert found_by(report) == kinds
        assert str(report.differences[0]).startswith(first)

    def test_only_the_selected_topics_are_compared(self, table: str, copy: Copy) -> None:
        copy.write([written("elsewhere", 0, 0)])
        report = verify(table, copy.where, topics=["id*"])
        assert (report.is_equal, report.queues, report.other_topics) == (True, 1, ["elsewhere"])
