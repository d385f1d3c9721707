"""The health file of the parts: used while it is fresh, and never a reason to exit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from txmsg.ops.page.health import Health, HealthFile

PARTS = {"broker": True, "tailer": False, "spark": None}
MEASURES = {"waiting": 12, "tailer_s": 0.5}
SAID = {"parts": PARTS, "measures": MEASURES}
NOTHING = Health(parts={}, measures={})


class World:
    """A health file with a clock set by a test."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "health.json"
        self.passed_s = 0.0
        self.file = HealthFile(self.path, clock=lambda: 100 + self.passed_s)

    def write(self, text: str) -> None:
        """Replace the file atomically: a reader sees the old file or the new one."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_fresh_health_file_is_used(world: World) -> None:
    world.write(json.dumps(SAID))
    assert world.file.read() == Health(parts=PARTS, measures=MEASURES)


def test_parts_are_unknown_while_the_health_file_is_stale(world: World) -> None:
    world.write(json.dumps(SAID))
    world.file.read()
    world.passed_s = 5.1
    assert world.file.read() == Health(parts={"broker": None, "tailer": None, "spark": None}, measures={})
    world.write(json.dumps(SAID))
    assert world.file.read().parts == PARTS


def test_file_rewritten_in_place_counts_as_new(world: World) -> None:
    world.path.write_text(json.dumps(SAID))
    world.file.read()
    world.passed_s = 5.1
    world.path.write_text(json.dumps({"parts": {"broker": False}, "measures": {}}))
    os.utime(world.path, ns=(1, 1))  # the clock of the file system may be coarse
    assert world.file.read().parts == {"broker": False}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"parts": {}}',
        '{"parts": [], "measures": {}}',
        '{"parts": {"broker": "up"}, "measures": {}}',
        '{"parts": {}, "measures": {"waiting": "many"}}',
        '{"parts": {}, "measures": {"waiting": true}}',
        '{"parts": {}, "measures": {"waiting": NaN}}',
        '{"parts": {}, "measures": {"waiting": 1e999}}',
        "[" * 65_536,
        '{"parts": {}, "measures": {}}' + " " * 65_536,
    ],
)
def test_invalid_health_file_is_logged_once_and_the_last_state_is_kept(
    world: World, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.write(json.dumps(SAID))
    known = world.file.read()
    world.write(text)
    assert [world.file.read(), world.file.read()] == [known, known]
    assert len(caplog.records) == 1
    assert str(world.path) in caplog.text


def test_missing_health_file_reports_nothing(world: World) -> None:
    assert world.file.read() == NOTHING
    world.write(json.dumps(SAID))
    assert world.file.read().parts == PARTS
