"""Who is read next: the groups by turns, so that one with a thousand queues keeps none of the others waiting. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Turns"]

T = TypeVar("T")


class Turns(Generic[T]):
    """A queue of things that belong to somebody. Each owner's stay in order; owners come by turns."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, owner: Hashable, thing: T) -> None:
        """It comes when everything of its owner that was put before has come."""
        self._waiting.setdefault(owner, deque()).append(thing)

    def pop(self) -> T:
        """The next one. IndexError when there is none."""
        if not self._waiting:
            raise IndexError("nothing waits")
        owner, things = next(iter(self._waiting.items()))
        thing = things.popleft()
        if things:
            self._waiting.move_to_end(owner)
        else:
            del self._waiting[owner]
        return thing
