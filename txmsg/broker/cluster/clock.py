"""Notices when the database's clock is set, and which brokers are silent. Pure: times are arguments.

Times in tables are by the database's clock. When that is set, waits for a stored time end too early or too late, and
the ages of heartbeats are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Final

STEP_S_MIN: Final = 1.0
"""Seconds; smaller steps are ignored."""


class DatabaseClock:
    """Compares readings of the database's clock with the monotonic clock of this process."""

    def __init__(self) -> None:
        self.read_s: float | None = None
        """The latest reading, in s since 1970."""
        self._ahead_s = (-math.inf, math.inf)
        self._forward_at = -math.inf
        self.forward_s: float | None = None
        """The first reading after it was set forward, as long as it was not set back since."""

    def note(self, now_s: float, asked_at: float, answered_at: float) -> float:
        """Return the seconds by which the clock was set since the last reading; 0.0 if it was not.

        now_s: the database's time in s since 1970, read between asked_at and answered_at of the monotonic clock. Drift
        is not a step: each reading is compared with the one before.
        """
        # An interval, since the moment of the reading is only known to lie between question and answer: a slow answer
        # widens it, and is not taken for a step.
        least, most = now_s - answered_at, now_s - asked_at
        before_least, before_most = self._ahead_s
        self._ahead_s, self.read_s = (least, most), now_s
        step_s = 0.0
        if least > before_most + STEP_S_MIN:
            step_s = least - before_most
            self._forward_at, self.forward_s = answered_at, now_s
        elif most < before_least - STEP_S_MIN:
            step_s, self.forward_s = most - before_least, None
        return step_s

    def was_set_forward(self, now: float, within_s: float) -> bool:
        """Return True if the clock was set forward within the last within_s: noted ages from before are too high."""
        return now - self._forward_at < within_s


class Heartbeats:
    """The time for which the rows of brokers have not changed, by the monotonic clock."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._seen: dict[str, tuple[datetime, float]] = {}

    def note(self, beats: Iterable[tuple[str, datetime]], now: float) -> None:
        """Note all rows as read now: ids and last heartbeats. Forgets brokers that are not among them."""
        before, self._seen = self._seen, {}
        for broker_id, beat_at in beats:
            known = before.get(broker_id)
            self._seen[broker_id] = known if known is not None and known[0] == beat_at else (beat_at, now)

    def silent(self, now: float) -> dict[str, datetime]:
        """Return the brokers whose rows have not changed for silent_s, with their last heartbeats."""
        return {id_: beat_at for id_, (beat_at, since) in self._seen.items() if now - since > self._silent_s}
