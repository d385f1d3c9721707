"""The number of messages that a subscription, or a member of a group, may handle per second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from txmsg.wire.access.rate import TokenBucket


class HandlerRate:
    """Limits the beginning of messages, or of lists, to a number of messages per second. For any thread."""

    def __init__(self, rate: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._bucket = TokenBucket(rate, monotonic())
        self._lock = threading.Lock()

    def take_tokens(self, count: int = 1) -> float:
        """Take tokens; return the seconds until the last of these messages may begin."""
        with self._lock:
            now = self._monotonic()
            self._bucket.room(now)
            self._bucket.take_tokens(count)
            return self._bucket.debt_s(now)

    def room(self) -> int:
        """Return the number of messages that may begin now."""
        with self._lock:
            return self._bucket.room(self._monotonic())

    def wait_s(self) -> float:
        """Return the seconds until there is room for one. A list may be longer than the room: the next one waits for
        it."""
        with self._lock:
            return self._bucket.wait_s(self._monotonic())
