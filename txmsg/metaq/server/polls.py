"""Long polls: fetches that wait for queues."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from txmsg.metaq.interface import LogQueue


class WaitingPolls:
    """Waiting fetches. Belongs to one loop. A wait costs an entry in a table, no thread and no read of the log."""

    def __init__(self) -> None:
        self.count = 0
        """The number of waiting fetches."""
        self._waiting: dict[LogQueue, set[asyncio.Event]] = {}

    @contextmanager
    def watching(self, queues: Collection[LogQueue]) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever one of these queues has got messages.

        The caller clears it before it reads.
        """
        grown = asyncio.Event()
        for queue in queues:
            self._waiting.setdefault(queue, set()).add(grown)
        self.count += 1
        try:
            yield grown
        finally:
            self.count -= 1
            for queue in queues:
                others = self._waiting[queue]
                others.discard(grown)
                if not others:
                    del self._waiting[queue]

    def wake(self, queues: Iterable[LogQueue]) -> None:
        """Wake the fetches that wait for these queues."""
        for queue in queues:
            for grown in self._waiting.get(queue, ()):
                grown.set()

    def wake_all(self) -> None:
        """Wake all waiting fetches, as when the server stops."""
        self.wake(list(self._waiting))
