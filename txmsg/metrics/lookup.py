"""Slow figures: read when a scrape asks, by one reader, for a bounded share of the time.

A scrape waits for them only briefly, so that it is answered also when a database hangs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from txmsg.errors import BrokerUnavailable
from txmsg.runtime.logs import EventLog

T = TypeVar("T")

_log = EventLog(__name__)

# Decision 0055: an answer is kept for 5 s, or 50 times as long as it took to read.
FRESH_S: Final = 5.0
"""Seconds for which figures are not read again."""
SHARE_MAX: Final = 0.02
"""The largest share of the time that reading may take."""
PATIENCE_S: Final = 2.0
"""Seconds that a scrape waits."""


class Lookup(Generic[T]):
    """The last result of `read`. `run` belongs into a task of its own. what: the figures' name in the log."""

    def __init__(self, what: str, read: Callable[[], Awaitable[T]]) -> None:
        self.found: T | None = None
        """The last result; None: nothing was read yet."""
        self.took_s = 0.0
        self._what = what
        self._read = read
        self._read_at = time.monotonic()
        self._trouble = ""
        self._asked = asyncio.Event()
        self._answered = asyncio.Event()

    def age_s(self) -> float:
        """Return the seconds since `found` was read; if nothing was, since this object was made."""
        return time.monotonic() - self._read_at

    async def refresh_if_old(self) -> None:
        """Request a new read if `found` is old, and wait for it, at most PATIENCE_S. `found` stays until then."""
        if self.found is not None and self.age_s() < max(FRESH_S, self.took_s / SHARE_MAX):
            return
        self._answered.clear()
        self._asked.set()
        # After a time-out the scrape returns the previous figures; their age is a figure of its own.
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._answered.wait()

    async def run(self) -> None:
        """Read when asked, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            begun_at = time.monotonic()
            try:
                self.found = await self._read()
            except Exception as exc:  # noqa: BLE001 - the root of a task
                self._log_failure(exc)
            else:
                # From the begin of the read: figures are as old as the statement's snapshot, not as its answer.
                self._read_at, self.took_s, self._trouble = begun_at, time.monotonic() - begun_at, ""
            self._answered.set()

    def _log_failure(self, exc: Exception) -> None:
        trouble = " ".join(str(exc).split()) or type(exc).__name__
        if trouble != self._trouble:  # once, not at each scrape
            is_usual = isinstance(exc, BrokerUnavailable)
            _log.warning(
                "metrics.unreadable",
                "%(what)s cannot be read: %(error)s",
                what=self._what,
                error=trouble,
                exc_info=None if is_usual else exc,
            )
        self._trouble = trouble
