"""Delays before a failed message is redelivered. Knows no database and no clock."""

from __future__ import annotations

from dataclasses import dataclass

_MINUTE_S = 60.0
_HOUR_S = 60 * _MINUTE_S

DELAYS_S: tuple[float, ...] = (
    *(1.0, 5.0, 10.0, 30.0),
    *(minutes * _MINUTE_S for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(1 * _HOUR_S, 2 * _HOUR_S),
)
"""Delays by attempt: 1 s 5 s 10 s 30 s, 1 to 10 minutes, 20 and 30 minutes, 1 h 2 h."""

RETRIES_MAX = 16
"""Retries before a message is a dead letter: 17 deliveries in all."""

_DELAY_S_MAX = 7 * 24 * _HOUR_S  # what a consumer may ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The delay before each retry, and the number of retries. Beyond the last delay, the last one repeats."""

    delays_s: tuple[float, ...] = DELAYS_S
    retries_max: int = RETRIES_MAX

    def __post_init__(self) -> None:
        if not self.delays_s or min(self.delays_s) < 0:
            raise ValueError(f"delays_s={self.delays_s!r} must hold at least one delay, none below 0")
        if self.retries_max < 0:
            raise ValueError(f"retries_max={self.retries_max} must be at least 0 (0: dead letter at the first failure)")

    def delay_s(self, attempt: int, asked_s: float | None = None, *, is_least: bool = False) -> float | None:
        """Return seconds from the failure of delivery `attempt` (from 1) to the next; None if it becomes a dead letter.

        asked_s: the delay that the consumer asked for instead, bounded by 0 and 7 days; it does not change the number
        of retries. is_least: it asked for at least this delay.
        """
        assert attempt >= 1, f"attempt {attempt}: deliveries count from 1"
        if attempt > self.retries_max:
            return None
        own_s = self.delays_s[min(attempt, len(self.delays_s)) - 1]
        if asked_s is None:
            return own_s
        return max(min(asked_s, _DELAY_S_MAX), own_s if is_least else 0.0)
