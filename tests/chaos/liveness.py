"""What stands still although it could go on: looked at from outside, by the monotonic clock. Safety is in `judge.py`.

Whatever waits is looked at each second: for each group and queue the oldest message that it has not passed, the first
retry of each ordering key, each half message, each delayed message, and the first row of the outbox. How long it has
been just as it is, is never more than LIVE_S while consumers are there, whatever is killed or stepped. Only time counts
in which something could go on: none in which a database is away, and what the watch itself was late is not held against
those that it watches, who share its machine.
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
    """It has been as it is for so long, up to this second of the run."""

    what: str
    for_s: float
    until_s: float


class Standing:
    """For how long things have been just as they are. Pure: time is an argument.

    late_s_max: how much counts of what a look is later than a second behind the one before.
    """

    def __init__(self, *, begun: float = 0.0, late_s_max: float = 1.0) -> None:
        self.longest: dict[str, Standstill] = {}
        """By what stood."""
        self._begun = self._looked_at = begun
        self._counts_s_max = _LOOK_S + late_s_max
        self._counted_s = 0.0
        self._seen: dict[str, tuple[str, float]] = {}

    def miss(self, now: float) -> None:
        """Nothing could be looked at: the time since the look before does not count."""
        self._looked_at = now

    def look(self, waiting: Iterable[Waiting], now: float) -> None:
        """All that waits now. What is not among it has gone on."""
        self._counted_s += min(now - self._looked_at, self._counts_s_max)
        self._looked_at = now
        before, self._seen = self._seen, {}
        for what, state in waiting:
            known = before.get(what)
            since = known[1] if known is not None and known[0] == state else self._counted_s
            self._seen[what] = (state, since)
            if what not in self.longest or self._counted_s - since > self.longest[what].for_s:
                self.longest[what] = Standstill(
                    f"{what} at {state}" if state else what, self._counted_s - since, now - self._begun
                )

    def over(self, bound_s: float) -> list[Standstill]:
        """What stood for longer, the longest first."""
        return [stand for stand in self.worst() if stand.for_s > bound_s]

    def worst(self) -> list[Standstill]:
        """All, the longest first."""
        return sorted(self.longest.values(), key=lambda stand: -stand.for_s)


class Watch:
    """Looks each second, in a thread, between `begin` and `end`.

    read: all that waits. While it raises an error of a database, no time counts: what stood before goes on standing.
    """

    def __init__(self, read: Callable[[], Iterable[Waiting]]) -> None:
        self.standing = Standing(begun=time.monotonic())
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
                self.standing.miss(time.monotonic())
            else:
                self.standing.look(waiting, time.monotonic())
