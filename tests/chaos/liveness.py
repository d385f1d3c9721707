"""What stands still although it could go on: looked at from outside, by the monotonic clock. Safety is in `judge.py`.

Whatever waits is looked at each second: for each group and queue the oldest message that it has not passed, the first
retry of each ordering key, each half message, each delayed message, and the first row of the outbox. How long it has
been just as it is, is never more than LIVE_S while consumers are there, whatever is killed or stepped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import psycopg

LIVE_S = 40.0
"""Longer than faults that follow each other keep one queue from being delivered; shorter than patience at the end."""
_LOOK_S = 1.0


class Waiting(NamedTuple):
    """Something that waits: what it is, and all that changes when it goes on."""

    what: str
    state: str


class Standstill(NamedTuple):
    """It has been as it is for so long."""

    what: str
    for_s: float


class Standing:
    """For how long things have been just as they are. Pure: time is an argument."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        """By what stood, for how long at most."""
        self._seen: dict[str, tuple[str, float]] = {}

    def look(self, waiting: Iterable[Waiting], now: float) -> None:
        """All that waits now. What is not among it has gone on."""
        before, self._seen = self._seen, {}
        for what, state in waiting:
            known = before.get(what)
            since = known[1] if known is not None and known[0] == state else now
            self._seen[what] = (state, since)
            self.longest[what] = max(now - since, self.longest.get(what, 0.0))

    def over(self, bound_s: float) -> list[Standstill]:
        """What stood for longer, the longest first."""
        found = [Standstill(what, for_s) for what, for_s in self.longest.items() if for_s > bound_s]
        return sorted(found, key=lambda stand: -stand.for_s)


class Watch:
    """Looks each second, in a thread, between `begin` and `end`.

    read: all that waits. What it raises of a database that is away is passed over: what stood before goes on standing.
    """

    def __init__(self, read: Callable[[], Iterable[Waiting]]) -> None:
        self.standing = Standing()
        self._read = read
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Returns when it looks no more. Idempotent."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(_LOOK_S):
            try:
                waiting = list(self._read())
            except psycopg.Error:
                continue
            self.standing.look(waiting, time.monotonic())
