"""How long each fuzz test goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

Fuzz = Callable[[Callable[[], None]], None]


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Calls a hypothesis test again and again, with new examples, for the seconds of --fuzz-s; at least once."""
    seconds: float = request.config.getoption("--fuzz-s")

    def again(test: Callable[[], None]) -> None:
        end = time.monotonic() + seconds
        while True:
            test()
            if time.monotonic() >= end:
                return

    return again
