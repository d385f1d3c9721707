"""Decides if and when a failed query is restarted. Pure: knows neither Spark nor a clock.

Spark waits 10 s for a Python process of its own to start. On a machine that is busier than that the query fails, with
nothing wrong with it: its checkpoint says where to go on. Any other error is for a person.
"""

from __future__ import annotations

from collections import deque
from typing import Final

TIMES_MAX: Final = 5
"""Restarts in WITHIN_S seconds; one more failure ends the job."""
WITHIN_S: Final = 600.0
_FIRST_WAIT_S: Final = 1.0
_PASSING: Final = ("Python worker failed to connect back",)
"""Spark's error for a process that did not start in time."""


class Restarts:
    """Counts the restarts of a job."""

    def __init__(self) -> None:
        self._at: deque[float] = deque()

    def wait_s(self, error: str, now: float) -> float | None:
        """Return seconds until the query is restarted, doubling each time; None: it is not restarted.

        error: everything that is said of it. now: of a clock that only goes forward.
        """
        while self._at and self._at[0] <= now - WITHIN_S:
            self._at.popleft()
        if not any(each in error for each in _PASSING) or len(self._at) == TIMES_MAX:
            return None
        self._at.append(now)
        return _FIRST_WAIT_S * (1 << (len(self._at) - 1))
