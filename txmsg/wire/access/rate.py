"""A rate limit. Pure: time is an argument."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from txmsg.errors import Overloaded

_BURST_S = 0.5


class TokenBucket:
    """Admits `rate` items per second, and after a pause a burst of half a second's worth, at least one.

    A larger number of items may be admitted at once: the bucket is in debt afterwards.
    """

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._burst = max(1.0, rate * _BURST_S)
        self._tokens = self._burst
        self._at = now

    def room(self, now: float) -> int:
        """Return the number of items that may be admitted now."""
        # A clock that goes back adds no tokens, and must not move the reference point into the past either.
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self.rate)
            self._at = now
        return max(0, int(self._tokens))

    def wait_s(self, now: float) -> float:
        """Return the seconds until there is room for one item."""
        return 0.0 if self.room(now) else (1 - self._tokens) / self.rate

    def debt_s(self, now: float) -> float:
        """Return the seconds until the debt is paid."""
        self.room(now)
        return max(0.0, -self._tokens / self.rate)

    def take_tokens(self, count: int) -> None:
        """Count admitted items. A negative count gives back items that were not sent after all."""
        self._tokens = min(self._burst, self._tokens - count)


async def admitted(
    bucket: TokenBucket, count: int, *, now: float, wait_s_max: float, refusal: Callable[[], Overloaded]
) -> None:
    """Return when `count` items may pass: once the items before them are paid for. The next ones wait for these.

    Raises what `refusal` gives, at once, if that is longer than wait_s_max.
    """
    wait_s = bucket.debt_s(now)
    if wait_s > wait_s_max:
        raise refusal()
    # Taken before waiting, so callers queue in the order of their arrival without a lock: each one's wait covers the
    # debt of those before it.
    bucket.take_tokens(count)
    if wait_s:
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            bucket.take_tokens(-count)  # who waited has given up: others may pass instead
            raise
