"""Refused logins of the last minutes, by which the answers to guessed tokens are delayed. Bounded for any number of
addresses."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

KEYS_MAX: Final = 10_000
FREE: Final = 5
"""Failures that are answered without a delay."""
DELAY_S_MAX: Final = 5.0
_DELAY_S: Final = 0.25
_FORGET_S: Final = 10.0
"""Seconds after which one failure is forgotten."""


class Failures:
    """Failures by address and by token id. The key that failed least recently is forgotten first."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By key: the number of failures, which decreases with time, and the time of the last one."""

    def __len__(self) -> int:
        return len(self._known)

    def delay_s(self, now: float, *keys: str) -> float:
        """Count a failure of an address and a token; return the seconds by which to delay its answer, doubled each
        time."""
        return max(self._note(now, key) for key in keys)

    def _note(self, now: float, key: str) -> float:
        # Popped and stored again below, so the dict is ordered by the last failure and popitem drops the oldest.
        count, at = self._known.pop(key, (0.0, now))
        count = max(0.0, count - (now - at) / _FORGET_S) + 1
        self._known[key] = (count, now)
        if len(self._known) > self._keys_max:
            self._known.popitem(last=False)
        return 0.0 if count <= FREE else min(DELAY_S_MAX, _DELAY_S * 2 ** min(count - FREE, 10))
