"""The newest figures and health, with their age, as a bulletin for browsers. Pure: knows neither database nor HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from txmsg.ops.page.health import Health

FIGURES_PART: Final = "figures"
"""The part that the page server itself watches: the database of the figures. It is up after a recent read."""
_READ_S_MAX: Final = 6.0
"""Seconds after the last read for which the database counts as up: it is read every two seconds at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSnapshot:
    """The figures as they were at one moment."""

    figures: Mapping[str, Any]
    """The figures of the page, as JSON values."""
    written_at: datetime | None
    """The time of the last write of figures; None before the first."""
    through_at: datetime | None
    """The time of the latest event that they count."""


class Board:
    """A combination of figures and health. `clock` is monotonic, `now` is the time of day."""

    def __init__(
        self, *, release: str, stale_after_s: float, clock: Callable[[], float], now: Callable[[], datetime]
    ) -> None:
        self._release = release
        self._stale_after_s = stale_after_s
        self._clock, self._now = clock, now
        self._snapshot: BoardSnapshot | None = None
        self._figures_json = "null"
        self._new_at: float | None = None
        self._read_at: float | None = None
        self._health = Health(parts={}, measures={})

    def show(self, snapshot: BoardSnapshot) -> None:
        """Show figures that were read just now."""
        before = None if self._snapshot is None else self._snapshot.written_at
        self._read_at = self._clock()
        if self._new_at is None or snapshot.written_at != before:
            self._new_at = self._read_at - self._age_at_start_s(snapshot)
        self._figures_json = json.dumps(snapshot.figures, ensure_ascii=False, separators=(",", ":"))
        self._snapshot = snapshot

    def show_health(self, health: Health) -> None:
        """Show a health that was read just now."""
        self._health = health

    def bulletin(self) -> bytes:
        """Return the message to browsers: a JSON object in one line."""
        snapshot = self._snapshot
        age_ms = None
        if self._new_at is not None and snapshot is not None and snapshot.written_at is not None:
            age_ms = int((self._clock() - self._new_at) * 1000)
        facts = {
            "release": self._release,
            "sent_at": self._now().isoformat(),
            "written_at": snapshot and _text(snapshot.written_at),
            "through_at": snapshot and _text(snapshot.through_at),
            "age_ms": age_ms,
            "stale_after_ms": int(self._stale_after_s * 1000),
            "parts": {**self._health.parts, FIGURES_PART: self._is_database_up()},
            "measures": self._health.measures,
        }
        head = json.dumps(facts, ensure_ascii=False, separators=(",", ":"))
        # Figures are long, and bulletins come between them, too: they are encoded once. "replace": what others
        # call a part may hold half of a surrogate pair.
        return f'{head[:-1]},"figures":{self._figures_json}}}'.encode(errors="replace")

    def _is_database_up(self) -> bool:
        return self._read_at is not None and self._clock() - self._read_at <= _READ_S_MAX

    def _age_at_start_s(self, snapshot: BoardSnapshot) -> float:
        """Return the age of figures at the start, which may be old. Later ones are new when they are seen, whatever the
        clocks say.
        """
        if self._new_at is not None or snapshot.written_at is None:
            return 0.0
        return max(0.0, (self._now() - snapshot.written_at).total_seconds())


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
