"""Refused logins of the last minutes, to slow down who guesses. Bounded, however many addresses there are."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

KEYS_MAX: Final = 10_000
FREE: Final = 5
"""Failures that are answered at once."""
DELAY_S_MAX: Final = 5.0
_DELAY_S: Final = 0.25
_FORGET_S: Final = 10.0
"""A failure is forgotten after so long."""


class Failures:
    """By address and by token. What was not heard of for longest is forgotten first."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """How many, and when that was."""

    def __len__(self) -> int:
        return len(self._known)

    def delay_s(self, now: float, *keys: str) -> float:
        """Notes a failure of an address and a token; for how long its answer waits: twice as long each time."""
        return max(self._note(now, key) for key in keys)

    def _note(self, now: float, key: str) -> float:
        count, at = self._known.pop(key, (0.0, now))
        count = max(0.0, count - (now - at) / _FORGET_S) + 1
        self._known[key] = (count, now)
        if len(self._known) > self._keys_max:
            self._known.popitem(last=False)
        return 0.0 if count <= FREE else min(DELAY_S_MAX, _DELAY_S * 2 ** min(count - FREE, 10))
