"""How long each fuzz test goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import settings

Fuzz = Callable[[Callable[[], None]], None]


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Calls a hypothesis test once; with new examples, again and again for the seconds of --fuzz-s."""
    seconds: float = 0.0 if settings().derandomize else request.config.getoption("--fuzz-s")

    def again(test: Callable[[], None]) -> None:
        end = time.monotonic() + seconds
        while True:
            test()
            if time.monotonic() >= end:
                return

    return again
