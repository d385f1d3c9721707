"""Whether a call tries the brokers first. Time is an argument; knows no network and no database."""

from __future__ import annotations

PROBE_INTERVAL_S = 1.0
"""While no broker answers, one call in so long tries; the others would wait for nothing."""


class CircuitBreaker:
    """Closed as long as brokers answer. Shared by threads: that two of them try at once does no harm."""

    __slots__ = ("_next_at", "is_away")

    def __init__(self) -> None:
        self.is_away = False
        """Whether the last one that tried met no broker."""
        self._next_at = 0.0

    def may_try(self, now: float) -> bool:
        """Whether this call is to send a half message."""
        if not self.is_away:
            return True
        if now < self._next_at:
            return False
        self._next_at = now + PROBE_INTERVAL_S
        return True

    def note_away(self, now: float) -> bool:
        """No broker has stored a half in time. Returns whether that is new."""
        is_new = not self.is_away
        self.is_away = True
        self._next_at = now + PROBE_INTERVAL_S
        return is_new

    def note_answer(self) -> None:
        """A broker has stored a half."""
        self.is_away = False
