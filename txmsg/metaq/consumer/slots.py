"""The number of lists of a subscription that are handled at once, which can change while they are. Belongs to
one loop.
"""

from __future__ import annotations

import asyncio
from collections import deque


class AdjustableSemaphore:
    """A semaphore whose count can be changed. Holders of a slot keep it when the count decreases."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken_count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def resize(self, count: int) -> None:
        """Set the number of slots from now on."""
        self._count = count
        self._wake()

    @property
    def has_waiting(self) -> bool:
        """True if a caller waits for a slot."""
        return bool(self._waiting)

    async def __aenter__(self) -> None:
        while self._taken_count >= self._count:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                self._wake()  # another waiter takes the slot
                raise
        self._taken_count += 1
        self._wake()

    async def __aexit__(self, *_: object) -> None:
        self._taken_count -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._taken_count < self._count:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
