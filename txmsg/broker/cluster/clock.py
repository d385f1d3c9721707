"""What a broker knows of the database's clock by its own monotonic one. Pure: both times are arguments.

Times in tables are the database's. Somebody may set that clock: then what was to happen at a time of before happens too
early or too late, and a heartbeat of before says nothing about who lives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Final

STEP_S_MIN: Final = 1.0
"""A smaller difference is no step: nothing waits noticeably longer by it."""


class DatabaseClock:
    """Compares readings of the database's clock with the monotonic clock of this process."""

    def __init__(self) -> None:
        self.is_known = False
        """Whether there was a reading, with which the next one is compared."""
        self._ahead_s = (-math.inf, math.inf)
        self._forward_at = -math.inf

    def note(self, now_s: float, asked_at: float, answered_at: float) -> float:
        """By how many seconds the clock was set since the last reading; 0.0: it was not.

        now_s: the database's time, read between asked_at and answered_at of the monotonic clock. What a clock loses
        or gains little by little is no step, since each reading is compared with the one before.
        """
        least, most = now_s - answered_at, now_s - asked_at
        before_least, before_most = self._ahead_s
        self._ahead_s, self.is_known = (least, most), True
        step_s = 0.0
        if least > before_most + STEP_S_MIN:
            step_s = least - before_most
            self._forward_at = answered_at
        elif most < before_least - STEP_S_MIN:
            step_s = most - before_least
        return step_s

    def was_set_forward(self, now: float, within_s: float) -> bool:
        """Whether the clock was set forward so recently: times of before seem to be long over, and are not."""
        return now - self._forward_at < within_s


class Heartbeats:
    """For how long brokers have sent no heartbeat, by the monotonic clock: whatever times their rows say."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._seen: dict[str, tuple[datetime, float]] = {}

    def note(self, beats: Iterable[tuple[str, datetime]], now: float) -> None:
        """The rows as read now: ids, and when each says that its last heartbeat was. Forgets brokers that are gone."""
        before, self._seen = self._seen, {}
        for broker_id, beat_at in beats:
            known = before.get(broker_id)
            self._seen[broker_id] = known if known is not None and known[0] == beat_at else (beat_at, now)

    def silent(self, now: float) -> dict[str, datetime]:
        """The brokers whose rows have not changed for silent_s, with the heartbeat that these say."""
        return {id_: beat_at for id_, (beat_at, since) in self._seen.items() if now - since > self._silent_s}
