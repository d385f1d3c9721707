"""Duration of each fuzz test."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import settings

Fuzz = Callable[[Callable[[], None]], None]


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Run a hypothesis test once; with --fuzz-s, repeatedly with new examples for so many seconds."""
    seconds: float = 0.0 if settings().derandomize else request.config.getoption("--fuzz-s")

    def again(test: Callable[[], None]) -> None:
        end = time.monotonic() + seconds
        while True:
            test()
            if time.monotonic() >= end:
                return

    return again
