"""Groups of outcomes that no caller waits for: the first leaves at once, those of the next milliseconds together.

Each request of outcomes costs the client's loop, the broker and its database about as much with one as with ten, and
that time is missing for the calls that follow. Knows no network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from txmsg.client.sending.batch import EndEntry

GROUP_S: Final = 0.005
"""Seconds between two groups. An outcome may be delivered this much later; after a crash a waiting one is left to a
check-back."""


class OutcomeQueue:
    """The unsent outcomes of one producer.

    send: queues the outcome of a transaction whose halves are in this Notify database; called on the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[bytes, EndEntry], None]) -> None:
        self._loop = loop
        self._send = send
        self._waiting: deque[tuple[bytes, EndEntry]] = deque()
        self._is_flush_due = False
        self._pause_s = GROUP_S
        self._next_flush_at = loop.time()

    def close(self) -> None:
        """Send everything that waits, and from now on each outcome at once: lanes close next. On the loop."""
        self._pause_s = 0.0
        self.flush()

    def add(self, shard: bytes, entry: EndEntry) -> None:
        """Return at once; the entry leaves within GROUP_S. For any thread."""
        self._waiting.append((shard, entry))
        # No lock: a flush says that none is due before it looks at what waits, so it either sees this entry or lets
        # this thread ask for another flush.
        if self._is_flush_due:
            return
        try:
            self._is_flush_due = True
            self._loop.call_soon_threadsafe(self._flush_in_time)
        except BaseException:
            # A signal, say. Another thread may have added an entry meanwhile and relied on this flush.
            self._is_flush_due = False
            self._loop.call_soon_threadsafe(self.flush)
            raise

    def _flush_in_time(self) -> None:
        # The first outcome after a pause leaves at once, so a lone caller's message is not delivered later than without
        # groups (0108).
        if self._loop.time() < self._next_flush_at:
            self._loop.call_at(self._next_flush_at, self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        """Send everything that waits. On the loop."""
        self._is_flush_due = False
        self._next_flush_at = self._loop.time() + self._pause_s
        # After the flag is cleared: see `add`.
        while self._waiting:
            self._send(*self._waiting.popleft())
