"""Log lines about conditions that last: repeated, but not at every look."""

from __future__ import annotations

import logging
import time

_AGAIN_S = 3600.0


class Hourly:
    """Logs each kind of line as an error, at most once an hour."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._told_at: dict[str, float] = {}  # bounded by the kinds there are

    def tell(self, kind: str, text: str) -> None:
        """Logs the text, unless one of this kind was logged within the hour."""
        now = time.monotonic()
        if now - self._told_at.get(kind, -_AGAIN_S) >= _AGAIN_S:
            self._told_at[kind] = now
            self._logger.error("%s", text)
