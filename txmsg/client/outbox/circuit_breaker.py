"""The decision of calls to try the brokers first, or not. Time is an argument; knows no network and no database."""

from __future__ import annotations

PROBE_INTERVAL_S = 1.0
"""Seconds between two calls that try, while no broker answers; the others would wait for nothing."""


class CircuitBreaker:
    """Closed as long as brokers answer. Shared by threads: that two of them try at once does no harm."""

    __slots__ = ("_next_at", "is_away")

    def __init__(self) -> None:
        self.is_away = False
        """True if the last call that tried met no broker."""
        self._next_at = 0.0

    def may_try(self, now: float) -> bool:
        """Return True if this call should send a half message."""
        if not self.is_away:
            return True
        if now < self._next_at:
            return False
        self._next_at = now + PROBE_INTERVAL_S
        return True

    def note_away(self, now: float) -> bool:
        """Note that no broker has stored a half message in time. Returns True if that is new."""
        is_new = not self.is_away
        self.is_away = True
        self._next_at = now + PROBE_INTERVAL_S
        return is_new

    def note_answer(self) -> None:
        """Note that a broker has stored a half message."""
        self.is_away = False
