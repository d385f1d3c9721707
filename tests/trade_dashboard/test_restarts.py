"""A query whose Python process did not start in time is restarted a few times; any other error ends the job."""

from __future__ import annotations

import pytest

from examples.trade_dashboard.restarts import TIMES_MAX, WITHIN_S, Restarts

SLOW = "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


def test_restart_delays_grow_until_the_job_gives_up() -> None:
    restarts = Restarts()
    assert [restarts.wait_s(SLOW, now) for now in range(TIMES_MAX)] == [1, 2, 4, 8, 16]
    assert restarts.wait_s(SLOW, TIMES_MAX) is None
    assert restarts.wait_s(SLOW, WITHIN_S - 0.1) is None


def test_old_failures_no_longer_count() -> None:
    restarts = Restarts()
    for now in range(TIMES_MAX):
        restarts.wait_s(SLOW, now)
    assert restarts.wait_s(SLOW, WITHIN_S) == 16
    assert restarts.wait_s(SLOW, WITHIN_S) is None
    assert restarts.wait_s(SLOW, 3 * WITHIN_S) == 1


@pytest.mark.parametrize(
    "error",
    [
        "",
        "the checkpoint is of generation 1 of log 7",
        "OffsetOutOfRange: retention has deleted them",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
    ],
)
def test_other_error_ends_the_job_at_once(error: str) -> None:
    restarts = Restarts()
    assert restarts.wait_s(error, 0) is None
    assert restarts.wait_s(SLOW, 0) == 1
