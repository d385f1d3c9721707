"""Long polls: who waits for which queue."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from txmsg.metaq.interface import LogQueue


class WaitingPolls:
    """Belongs to one loop. A wait costs an entry in a table, no thread and no look at the log."""

    def __init__(self) -> None:
        self.count = 0
        """Fetches that wait."""
        self._waiting: dict[LogQueue, set[asyncio.Event]] = {}

    @contextmanager
    def watching(self, queues: Collection[LogQueue]) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of these queues has got something. The caller clears it before it looks."""
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
        """These queues have got something."""
        for queue in queues:
            for grown in self._waiting.get(queue, ()):
                grown.set()

    def wake_all(self) -> None:
        """Wakes all fetches that wait, as when the server stops."""
        self.wake(list(self._waiting))
