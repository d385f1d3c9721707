"""Waiting, in plain code, for what gives no sign but can be looked at."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]


def until(condition: Callable[[], bool], *, within_s: float = 120.0) -> None:
    """Returns when the condition holds; fails loudly when it does not come to hold in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
