"""Contents of a bulletin: the figures, their age, and the parts that are up."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from txmsg.ops.page.board import Board, BoardSnapshot
from txmsg.ops.page.health import Health

NOON = datetime(2026, 11, 11, 12, tzinfo=UTC)


class World:
    """A board with clocks set by a test; its bulletin after `passed_s`."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.board = Board(
            release="r1",
            stale_after_s=5,
            clock=lambda: 1000 + self.passed_s,
            now=lambda: NOON + timedelta(seconds=self.passed_s),
        )

    def read(self, written_at: datetime | None, orders: int = 0) -> None:
        self.board.show(BoardSnapshot(figures={"orders": orders}, written_at=written_at, through_at=written_at))

    def bulletin(self) -> dict[str, Any]:
        bulletin = self.board.bulletin()
        assert b"\n" not in bulletin
        found: dict[str, Any] = json.loads(bulletin)
        return found


def test_figures_are_absent_and_database_is_down_before_the_first_read() -> None:
    bulletin = World().bulletin()
    assert (bulletin["figures"], bulletin["age_ms"], bulletin["written_at"]) == (None, None, None)
    assert bulletin["parts"] == {"figures": False}


def test_unwritten_figures_have_no_age() -> None:
    world = World()
    world.read(None)
    world.passed_s = 3
    bulletin = world.bulletin()
    assert (bulletin["age_ms"], bulletin["figures"], bulletin["parts"]) == (None, {"orders": 0}, {"figures": True})


def test_age_is_counted_from_the_first_read_of_new_figures() -> None:
    world = World()
    world.read(NOON)
    world.passed_s = 2
    world.read(NOON)
    world.passed_s = 3.5
    assert world.bulletin()["age_ms"] == 3500
    world.read(NOON + timedelta(seconds=3))
    assert world.bulletin()["age_ms"] == 0


def test_figures_found_at_the_start_have_the_age_of_their_timestamp() -> None:
    world = World()
    world.read(NOON - timedelta(minutes=2))
    assert world.bulletin()["age_ms"] == 120_000


def test_new_figures_are_fresh_even_if_the_clock_of_their_writer_is_wrong() -> None:
    world = World()
    world.read(NOON + timedelta(hours=1))
    assert world.bulletin()["age_ms"] == 0
    world.passed_s = 1
    world.read(NOON - timedelta(hours=1))
    assert world.bulletin()["age_ms"] == 0


def test_bulletin_has_the_newest_figures_their_timestamps_and_the_release() -> None:
    world = World()
    world.read(NOON, orders=1)
    world.read(NOON + timedelta(seconds=1), orders=2)
    bulletin = world.bulletin()
    assert bulletin["figures"] == {"orders": 2}
    assert bulletin["written_at"] == bulletin["through_at"] == "2026-11-11T12:00:01+00:00"
    assert (bulletin["release"], bulletin["stale_after_ms"], bulletin["sent_at"]) == (
        "r1",
        5000,
        "2026-11-11T12:00:00+00:00",
    )


def test_database_not_read_for_a_while_is_down() -> None:
    world = World()
    world.read(NOON)
    world.passed_s = 6
    assert world.bulletin()["parts"]["figures"] is True
    world.passed_s = 6.1
    assert world.bulletin()["parts"]["figures"] is False


def test_bulletin_has_the_reported_parts_and_measures() -> None:
    world = World()
    world.board.show_health(Health(parts={"broker": True, "tailer": None}, measures={"waiting": 3}))
    bulletin = world.bulletin()
    assert bulletin["parts"] == {"broker": True, "tailer": None, "figures": False}
    assert bulletin["measures"] == {"waiting": 3}


def test_part_with_an_unencodable_name_is_shown_with_replacement() -> None:
    world = World()
    world.board.show_health(Health(parts={"half \ud800": False}, measures={}))
    assert world.bulletin()["parts"] == {"half ?": False, "figures": False}
