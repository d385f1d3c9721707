"""Delays before a process or server that ended by itself is restarted. Pure: time is an argument."""

from __future__ import annotations

from typing import Final

_DELAY_S_MIN: Final = 0.5
DELAY_S_MAX: Final = 60.0
HEALTHY_S: Final = 60.0
"""Seconds of a run after which its end does not count as a failed start."""


class Restarts:
    """The delays of one place: 0.5 s, 1 s, 2 s ... 60 s, as long as each run ends soon after its start."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def delay_s(self, ran_s: float) -> float:
        """Return the seconds until the next start, after a run of `ran_s` seconds."""
        self._in_a_row = 1 if ran_s >= HEALTHY_S else self._in_a_row + 1
        return float(min(DELAY_S_MAX, _DELAY_S_MIN * 2 ** min(self._in_a_row - 1, 10)))
