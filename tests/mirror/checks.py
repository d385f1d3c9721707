"""Checks of a mirror into any log: all messages are there, also after its tailer was killed at any moment."""

from __future__ import annotations

import random
from pathlib import Path

from tests.mirror.load import Load
from tests.mirror.tailer_process import TailerProcess
from tests.waiting import until
from txmsg.binlog.verifier.compare import VerifierReport, verify

WAIT_S_MAX = 60.0


def require_equal(url: str, log: Path | str, messages: int) -> VerifierReport:
    """Wait for the mirror, and check that log and table have the same messages."""
    report = verify(url, log, wait_s=WAIT_S_MAX)
    assert report.is_equal, "\n".join(map(str, report.differences))
    assert report.messages == messages
    return report


def kill_at_any_moment(tailer: TailerProcess, load: Load) -> None:
    """Kill the tailer at random moments under load; in the end it runs."""
    rng = random.Random(load.count)
    with load.going_on():
        for round_number in range(3):
            tailer.start()
            seen = load.count
            until(lambda: load.count > seen + rng.randrange(300))  # noqa: B023 - called at once
            tailer.kill()
            if round_number % 2:
                tailer.launch()
                until(lambda: rng.random() < 0.1)
                tailer.kill()  # twice in a row: before it has begun, or soon after
        tailer.start()
