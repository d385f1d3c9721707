"""Log lines about conditions that last: repeated, but not at every look."""

from __future__ import annotations

import time

from txmsg.logs import EventLog

_AGAIN_S = 3600.0


class Hourly:
    """Logs each event as an error, at most once an hour."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._told_at: dict[str, float] = {}  # bounded by the events there are

    def error(self, event: str, text: str, **fields: object) -> None:
        """As `EventLog.error`, unless this event was logged within the hour."""
        now = time.monotonic()
        if now - self._told_at.get(event, -_AGAIN_S) >= _AGAIN_S:
            self._told_at[event] = now
            self._log.error(event, text, **fields)
