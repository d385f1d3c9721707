"""Waiting entries, and the choice of those that leave together. Pure, except that it fails late entries: time is an
argument.

Knows no network, no loop and no locks: `Coalescer` drives it on a loop, `ThreadLane` from threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from txmsg.client.sending.batch import RequestEntry
from txmsg.errors import BrokerUnavailable
from txmsg.wire.codec import REQUEST_SIZE_BYTES_MAX

ITEMS_MAX = 1000
"""Items of a request, at most."""
ITEMS_SPLIT = 128
"""From twice as many waiting callers on, requests take half of them: if all moved in step in one request, the client
would idle while the broker works and the broker while the callers work (ran: 256 callers 22,000/s instead of 15,000/s;
a further split costs more per request than it gains)."""
IN_FLIGHT_MAX = 2
"""Requests in progress, at most."""
PENDING_ITEMS_MAX = 20_000
PENDING_SIZE_BYTES_MAX = 64 * 1024 * 1024

E = TypeVar("E", bound=RequestEntry)


class WaitingEntries(Generic[E]):
    """Entries in the order of their deadlines. items: the number of their messages or outcomes."""

    def __init__(self) -> None:
        self.items = 0
        self._size_bytes = 0
        self._entries: deque[E] = deque()

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def is_full(self) -> bool:
        """True if no more entries should be added."""
        return self.items >= PENDING_ITEMS_MAX or self._size_bytes >= PENDING_SIZE_BYTES_MAX

    def add(self, entry: E) -> None:
        """Add the newest entry."""
        self._entries.append(entry)
        self.items += entry.items
        self._size_bytes += entry.size_bytes

    def add_older(self, entries: Iterable[E]) -> None:
        """Add entries that have waited elsewhere. They may exceed the bounds."""
        self._entries = deque(sorted([*self._entries, *entries], key=lambda entry: entry.deadline))
        self._count()

    def first(self) -> E:
        """Return the oldest entry."""
        return self._entries[0]

    def release(self, may_leave: Callable[[E], bool]) -> list[E]:
        """Remove and return the entries that may leave: none of them was ever sent."""
        entries = list(self._entries)
        self._entries = deque(entry for entry in entries if not may_leave(entry))
        self._count()
        return [entry for entry in entries if may_leave(entry)]

    def move_to(self, batch: list[E], crowd: int) -> None:
        """Move the entries of the next request to `batch`: the oldest that fit.

        crowd: the number of items that wait or are in progress and have the same callers. A thread that is interrupted
        here may leave entries in both, but none in neither.
        """
        items_max = min(ITEMS_MAX, max(ITEMS_SPLIT, (crowd + 1) // 2))
        if self.items <= items_max and self._size_bytes <= REQUEST_SIZE_BYTES_MAX:
            batch += self._entries
            self._entries.clear()
            self.items = self._size_bytes = 0
            return
        items = size_bytes = 0
        entries = self._entries
        while entries:
            entry = entries[0]
            # The first entry is always taken: one message may be larger than a request, and would wait forever.
            if batch and (items + entry.items > items_max or size_bytes + entry.size_bytes > REQUEST_SIZE_BYTES_MAX):
                break
            # Appended before it is removed: a thread that a signal interrupts in between leaves the entry in both
            # places, and it may be sent twice under one id. The other order could lose it.
            batch.append(entry)
            entries.popleft()
            items += entry.items
            size_bytes += entry.size_bytes
        self.items -= items
        self._size_bytes -= size_bytes

    def _count(self) -> None:
        self.items = sum([entry.items for entry in self._entries])
        self._size_bytes = sum([entry.size_bytes for entry in self._entries])


def worth_sending(batch: list[E], now: float, timeout_s: float) -> list[E]:
    """Return the entries to send: late ones fail here, and those whose callers have gone are dropped."""
    if batch and batch[0].deadline <= now:  # the oldest comes first
        for entry in batch:
            if entry.deadline <= now:
                entry.fail(BrokerUnavailable(f"not sent within {timeout_s} s: earlier requests still wait"))
        batch = [entry for entry in batch if entry.deadline > now]
    return [entry for entry in batch if not entry.abandoned()]
