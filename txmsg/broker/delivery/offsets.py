"""Sets of offsets: ranges of them, and those in flight until a deadline. Pure: the clock is an argument."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Generic, NamedTuple, TypeVar


def runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs [start, end) of offsets that need not be sorted; each offset at most once."""
    in_order = sorted(offsets)
    if not in_order:
        return
    if in_order[-1] - in_order[0] + 1 == len(in_order):  # the usual case: a delivered batch, acknowledged whole
        yield in_order[0], in_order[-1] + 1
        return
    start = end = in_order[0]
    for offset in in_order:
        if offset != end:
            yield start, end
            start = offset
        end = offset + 1
    yield start, end


class OffsetRanges:
    """Disjoint ranges [start, end), in order, neighbours merged. Adding costs a binary search."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        # Two lists instead of one of pairs: bisect compares plain integers then, in C and without a key function.
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Add [start, end), which may touch or overlap existing ranges."""
        assert start < end, f"[{start}, {end}) is empty"
        first = bisect_left(self._ends, start)  # the first range that reaches start
        last = bisect_right(self._starts, end)  # after the last range that begins by end
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def next_missing(self, offset: int) -> int:
        """Return the first offset from here on that is not in the set."""
        at = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[at]) if at >= 0 else offset

    def drop_below(self, offset: int) -> None:
        """Forget everything below an offset that does not lie inside a range."""
        count = bisect_right(self._ends, offset)
        assert count == len(self._ends) or self._starts[count] >= offset, f"{offset} lies inside a range"
        del self._starts[:count], self._ends[:count]

    def __contains__(self, offset: int) -> bool:
        return self.next_missing(offset) != offset

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._starts)

    def count(self) -> int:
        """Return the number of offsets."""
        return sum(self._ends) - sum(self._starts)


K = TypeVar("K", bound=Hashable)

_STALE_MIN = 64  # below this many, finished batches are not worth a sweep


class Expiry(Enum):
    """The consequence for a message that is not settled by its deadline."""

    COUNTED = "counted"
    """Its consumer may have failed because of it: it counts as an attempt."""
    EXACT = "exact"
    """Its consumer chose this time: it is redelivered."""
    LOST = "lost"
    """Its consumer had other messages, too, any of which may be the cause: it is unknown if this one had begun."""


class Visibility(NamedTuple):
    """The token and deadline of the messages of one delivery, and the consequence if the deadline passes."""

    token: int
    deadline: float
    deadline_max: float = math.inf
    """The latest time to which the deadline can be extended."""
    expiry: Expiry = Expiry.COUNTED


class _InFlightBatch(Generic[K]):
    """Messages delivered together, and the number of them that is still in flight."""

    __slots__ = ("deadline", "deadline_max", "expiry", "keys", "left", "token")

    def __init__(self, keys: Sequence[K], visibility: Visibility) -> None:
        self.token, self.deadline, self.deadline_max, self.expiry = visibility
        self.keys = keys
        self.left = len(keys)

    def __lt__(self, other: _InFlightBatch[K]) -> bool:
        return self.deadline < other.deadline


class Expired(NamedTuple, Generic[K]):
    """Messages that were delivered under a token and not settled by their deadline."""

    token: int
    keys: list[K]
    expiry: Expiry = Expiry.COUNTED


class InFlight(Generic[K]):
    """Keys of messages that consumers have, under a token, until a deadline.

    An exact deadline can be brought forward; any other only moves back. The deadline heap has one entry per batch, not
    per message. A finished batch drops its keys at once, and its entry is removed when half of the heap is finished, so
    that long visibility timeouts cost no memory.
    """

    def __init__(self) -> None:
        self._batch_of: dict[K, _InFlightBatch[K]] = {}
        self._heap: list[_InFlightBatch[K]] = []
        self._finished = 0

    def __len__(self) -> int:
        return len(self._batch_of)

    def __contains__(self, key: K) -> bool:
        return key in self._batch_of

    def give(self, keys: Sequence[K], visibility: Visibility) -> None:
        """Record that these keys are in flight. Keeps `keys`: do not change it."""
        if not keys:
            return
        batch = _InFlightBatch(keys, visibility)
        self._batch_of.update(dict.fromkeys(keys, batch))
        heapq.heappush(self._heap, batch)

    def renew(self, keys: Iterable[K], token: int, deadline: float, *, is_exact: bool = False) -> list[K]:
        """Extend the deadline of keys in flight under this token. Returns the keys that are not.

        is_exact: the deadline may also move earlier.
        """
        renewed, late = self._by_batch(keys, token)
        for batch, its_keys in renewed.items():
            until = min(deadline, batch.deadline_max)
            if is_exact:
                self._move(batch, its_keys, until, Expiry.EXACT)
            elif until > batch.deadline:
                self._move(batch, its_keys, until, Expiry.COUNTED if batch.expiry is Expiry.EXACT else batch.expiry)
        return late

    def expire_as(self, expiry: Expiry, keys: Iterable[K], token: int) -> list[K]:
        """Set the consequence of expiry of keys in flight under this token. Returns the keys that are not."""
        found, late = self._by_batch(keys, token)
        for batch, its_keys in found.items():
            self._move(batch, its_keys, batch.deadline, expiry)
        return late

    def _by_batch(self, keys: Iterable[K], token: int) -> tuple[dict[_InFlightBatch[K], dict[K, None]], list[K]]:
        """Return the keys in flight under this token by batch, each once; and the keys that are not."""
        found: dict[_InFlightBatch[K], dict[K, None]] = {}
        late: list[K] = []
        for key in keys:
            batch = self._batch_of.get(key)
            if batch is None or batch.token != token:
                late.append(key)
            else:
                found.setdefault(batch, {})[key] = None
        return found, late

    def _move(self, batch: _InFlightBatch[K], keys: Iterable[K], deadline: float, expiry: Expiry) -> None:
        """Move keys of a batch, each once, into a batch of their own."""
        # A new batch with a heap entry of its own: the order of a heap does not survive a changed deadline. The old
        # entry is skipped when it comes up.
        moved = list(keys)
        batch.left -= len(moved)
        self.give(moved, Visibility(batch.token, deadline, batch.deadline_max, expiry))
        if not batch.left:
            self._finish(batch)

    def give_back(self, keys: Iterable[K], token: int) -> tuple[list[K], list[K]]:
        """Remove keys in flight under this token. Returns the keys that were, and those that were not."""
        # A local name: this loop runs once per message.
        batch_of = self._batch_of
        done: list[K] = []
        late: list[K] = []
        for key in keys:
            batch = batch_of.get(key)
            if batch is None or batch.token != token:
                late.append(key)
                continue
            del batch_of[key]
            done.append(key)
            batch.left -= 1
            if not batch.left:
                self._finish(batch)
        return done, late

    def _finish(self, batch: _InFlightBatch[K]) -> None:
        batch.keys = ()
        self._finished += 1
        if self._finished > _STALE_MIN and self._finished * 2 > len(self._heap):
            self._heap = [batch for batch in self._heap if batch.left]
            heapq.heapify(self._heap)
            self._finished = 0

    def forget_keys(self, keys: Iterable[K]) -> None:
        """Remove these keys, under any token; those that are not in flight are ignored."""
        for key in keys:
            batch = self._batch_of.pop(key, None)
            if batch is not None:
                batch.left -= 1
                if not batch.left:
                    self._finish(batch)

    def deadline_last(self) -> float:
        """Return the last deadline; minus infinity if nothing is in flight."""
        return max((batch.deadline for batch in self._heap if batch.left), default=-math.inf)

    def expire(self, now: float) -> list[Expired[K]]:
        """Remove and return the keys whose deadline has passed, by token."""
        late: list[Expired[K]] = []
        while self._heap and self._heap[0].deadline <= now:
            batch = heapq.heappop(self._heap)
            if not batch.left:
                self._finished -= 1
                continue
            # A key may have been settled and delivered again in another batch since.
            gone = [key for key in batch.keys if self._batch_of.get(key) is batch]
            for key in gone:
                del self._batch_of[key]
            batch.left = 0
            if gone:
                late.append(Expired(batch.token, gone, batch.expiry))
        return late
