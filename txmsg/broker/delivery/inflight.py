"""What is in the hands of consumers, and until when. Knows no database; the clock is an argument."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

__all__ = ["InFlight"]

K = TypeVar("K", bound=Hashable)

_STALE_MIN = 64  # below this many, finished batches are not worth a sweep


class _Batch(Generic[K]):
    """Messages given at once: one token, one deadline, the latest it may become, and a count of those still out."""

    __slots__ = ("deadline", "deadline_max", "keys", "left", "token")

    def __init__(self, token: int, deadline: float, deadline_max: float, keys: Sequence[K]) -> None:
        self.token = token
        self.deadline = deadline
        self.deadline_max = deadline_max
        self.keys = keys
        self.left = len(keys)

    def __lt__(self, other: _Batch[K]) -> bool:
        return self.deadline < other.deadline


class InFlight(Generic[K]):
    """Keys given to consumers under a token until a deadline.

    One entry of the deadline heap per batch, not per message. A finished batch lets go of its keys at once and
    its entry is swept when half of the heap is finished, so that long visibility timeouts cost no memory.
    """

    def __init__(self) -> None:
        self._batch_of: dict[K, _Batch[K]] = {}
        self._heap: list[_Batch[K]] = []
        self._finished = 0

    def __len__(self) -> int:
        return len(self._batch_of)

    def __contains__(self, key: K) -> bool:
        return key in self._batch_of

    def give(self, keys: Sequence[K], token: int, deadline: float, deadline_max: float = math.inf) -> None:
        """Records that these keys are in somebody's hands until the deadline, which can be put off up to deadline_max.

        `keys` is kept: do not change it.
        """
        if not keys:
            return
        batch = _Batch(token, deadline, deadline_max, keys)
        self._batch_of.update(dict.fromkeys(keys, batch))
        heapq.heappush(self._heap, batch)

    def renew(self, keys: Iterable[K], token: int, deadline: float) -> list[K]:
        """Puts off the deadline of what is still held under this token. Returns the keys that are not."""
        renewed: dict[_Batch[K], dict[K, None]] = {}
        late: list[K] = []
        for key in keys:
            batch = self._batch_of.get(key)
            if batch is None or batch.token != token:
                late.append(key)
            else:
                renewed.setdefault(batch, {})[key] = None
        for batch, held in renewed.items():
            if min(deadline, batch.deadline_max) > batch.deadline:
                batch.left -= len(held)
                self.give(list(held), token, min(deadline, batch.deadline_max), batch.deadline_max)
                if not batch.left:
                    self._finish(batch)
        return late

    def give_back(self, keys: Iterable[K], token: int) -> tuple[list[K], list[K]]:
        """Takes back what was out under this very token: the keys that were, and those that were not."""
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

    def _finish(self, batch: _Batch[K]) -> None:
        batch.keys = ()
        self._finished += 1
        if self._finished > _STALE_MIN and self._finished * 2 > len(self._heap):
            self._heap = [b for b in self._heap if b.left]
            heapq.heapify(self._heap)
            self._finished = 0

    def forget(self, keys: Iterable[K]) -> None:
        """These are nobody's any more; those that are not out are passed over."""
        for key in keys:
            batch = self._batch_of.pop(key, None)
            if batch is not None:
                batch.left -= 1
                if not batch.left:
                    self._finish(batch)

    def deadline_last(self) -> float:
        """When nothing is out any more, if nothing is renewed; minus infinity: now already."""
        return max((batch.deadline for batch in self._heap if batch.left), default=-math.inf)

    def expire(self, now: float) -> list[tuple[int, list[K]]]:
        """The keys whose deadline has come, by token; they are out no more."""
        late: list[tuple[int, list[K]]] = []
        while self._heap and self._heap[0].deadline <= now:
            batch = heapq.heappop(self._heap)
            if not batch.left:
                self._finished -= 1
                continue
            gone = [key for key in batch.keys if self._batch_of.get(key) is batch]
            for key in gone:
                del self._batch_of[key]
            batch.left = 0
            if gone:
                late.append((batch.token, gone))
        return late
