"""A limit of so many per second. Pure: the clock is an argument."""

from __future__ import annotations

__all__ = ["TokenBucket"]

_BURST_S = 0.5


class TokenBucket:
    """Lets `rate` things through per second, and after a lull as many as go through in half a second, at least one.

    What must go through as a whole may be more than that: the bucket is in debt afterwards.
    """

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._burst = max(1.0, rate * _BURST_S)
        self._tokens = self._burst
        self._at = now

    def room(self, now: float) -> int:
        """How many may go through now."""
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self.rate)
            self._at = now
        return max(0, int(self._tokens))

    def wait_s(self, now: float) -> float:
        """Seconds until there is room for one."""
        return 0.0 if self.room(now) else (1 - self._tokens) / self.rate

    def debt_s(self, now: float) -> float:
        """Seconds until everything that went through is paid."""
        self.room(now)
        return max(0.0, -self._tokens / self.rate)

    def take(self, count: int) -> None:
        """So many went through."""
        self._tokens -= count
