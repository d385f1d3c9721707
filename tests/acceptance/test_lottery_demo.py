"""The lottery runs small, with real processes, and each user gets exactly one ticket."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from txmsg.ops.demo.browser import has_browser

COMMAND = [sys.executable, "-m", "txmsg.ops.cli.main", "demo", "lottery"]


def play(*options: str) -> dict[str, Any]:
    """Run the demo and return the object that it prints last."""
    run = subprocess.run([*COMMAND, *options, "--json"], capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr[-5000:]
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert (result["missing"], result["duplicated"], result["phantom"], result["in_doubt"]) == (0, 0, 0, 0)
    assert result["users"] == result["tickets"]
    assert 0 < result["request_ms"]["p50"] <= result["request_ms"]["p99"]
    return result


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_user_gets_one_ticket_although_processes_are_killed(tmp_path: Path) -> None:
    drawn = tmp_path / "lottery.png"
    with_picture = ("--picture", str(drawn)) if has_browser() else ()
    result = play("--users", "200", "--seconds", "4", "--kill", *with_picture)
    assert result["users"] == 200
    assert result["kills"] == {"activity_1": 1, "printer_1": 1, "broker": 1}
    assert result["refused"] == 10
    assert result["repeated"] > 0, "nobody had to try again, so nothing was killed in time"
    assert 0 < result["backlog_max"] <= 200
    if with_picture:
        with Image.open(drawn) as picture:
            assert picture.size == (1440, 900)
            assert len(picture.convert("RGB").getcolors(1_000_000) or ()) > 50, "the page was drawn empty"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_burst_of_thousands_is_accepted_and_printed_later() -> None:
    result = play("--users", "5000", "--seconds", "8", "--kill")
    assert result["users"] == 5000
    assert result["refused"] == 250
    assert result["kills"] == {"activity_1": 1, "printer_1": 1, "broker": 1}
    assert result["repeated"] > 0, "nobody had to try again, so nothing was killed in time"
    assert result["printers"] == 4, "no printers were added"
    assert result["backlog_max"] > 0, "printers were as fast as the burst, so nothing was shown"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--users", "3"), "3 users: give 20"),
        (("--seconds", "0.05"), "0.05 seconds: give 0.1"),
        (("--seconds", "nan"), "nan seconds"),
    ],
)
def test_an_impossible_burst_is_refused_before_anything_starts(options: tuple[str, ...], why: str) -> None:
    run = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert why in run.stderr
