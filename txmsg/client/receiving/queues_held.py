"""The queues of which a consumer has unsettled messages, whatever broker of the Notify database they came from.

Knows no connection and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class QueuesHeld:
    """Counts the deliveries of each queue with unsettled messages, and calls watchers when none is left."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._on_free: list[Callable[[int], None]] = []

    def watch(self, on_free: Callable[[int], None]) -> None:
        """Call on_free with the id of each queue once no message of it is held."""
        self._on_free.append(on_free)

    def unwatch(self, on_free: Callable[[int], None]) -> None:
        """End `watch`. Idempotent."""
        self._on_free = [each for each in self._on_free if each != on_free]

    def holds(self, queue_id: int) -> bool:
        """Return True if messages of the queue are held."""
        return queue_id in self._counts

    def add(self, queue_id: int) -> None:
        """Count a delivery of messages of a queue."""
        self._counts[queue_id] += 1

    def drop(self, queue_id: int) -> None:
        """Count a delivery down, whose messages are all settled, or given up."""
        self._counts[queue_id] -= 1
        if not self._counts[queue_id]:
            del self._counts[queue_id]
            for on_free in list(self._on_free):
                on_free(queue_id)
