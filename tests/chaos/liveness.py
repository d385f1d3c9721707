"""Finds items that could progress and do not, observed from outside by the monotonic clock. Safety: `judge.py`.

Whatever waits is looked at each second: for each group and queue the oldest message that it has not passed, the first
retry of each ordering key, each half message, each delayed message, and the first row of the outbox. How long it has
been just as it is, is never more than its bound while consumers are there, whatever is killed or stepped. Only time
counts in which something could go on: none in which a database is away, and what the watch itself was late is not held
against those that it watches, who share its machine.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import psycopg

LIVE_S = 40.0
"""Longer than consecutive faults can block one queue; shorter than the patience at the end."""
LIVE_ORDERED_S = 120.0
"""The same for ordering keys during faults.

A broker that gets such a queue joins for 5 s, and delivers nothing of it for the 14 s in which a dead consumer may
still be at work. A minute of the plan has six faults of the whole database, after each of which all of that may begin
again: 20 s in one piece without one may take two minutes to come. Waits that began again at every broker, instead of
going on, stood for 146 and 237 s.
"""
_LOOK_S = 1.0


class Waiting(NamedTuple):
    """A waiting item: its name, and all state that changes when it progresses."""

    what: str
    state: str
    is_ordered: bool = False


class Standstill(NamedTuple):
    """An item unchanged for so long, until this second of the run."""

    what: str
    for_s: float
    until_s: float
    bound_s: float = LIVE_S

    @property
    def over_s(self) -> float:
        return self.for_s - self.bound_s


class StandstillTracker:
    """Times for which items have been unchanged. Pure: time is an argument.

    late_s_max: how much counts of what a look is later than a second behind the one before.
    """

    def __init__(self, *, begun: float = 0.0, late_s_max: float = 1.0) -> None:
        self.longest: dict[str, Standstill] = {}
        """By name of the item."""
        self._begun = self._looked_at = begun
        self._counts_s_max = _LOOK_S + late_s_max
        self._counted_s = 0.0
        self._seen: dict[str, tuple[str, float]] = {}
        self._calm_since_s = math.inf

    def calm(self) -> None:
        """Count all standstills from now on, by the shorter bound: faults are over."""
        self._calm_since_s = self._counted_s

    def miss(self, now: float) -> None:
        """Skip an observation: the time since the last one does not count."""
        self._looked_at = now

    def look(self, waiting: Iterable[Waiting], now: float) -> None:
        """Record all items that wait now. Items that are missing have progressed."""
        self._counted_s += min(now - self._looked_at, self._counts_s_max)
        self._looked_at = now
        before, self._seen = self._seen, {}
        for what, state, is_ordered in waiting:
            known = before.get(what)
            since = known[1] if known is not None and known[0] == state else self._counted_s
            is_calm = self._calm_since_s < math.inf
            if is_calm:
                since = max(since, self._calm_since_s)
            self._seen[what] = (state, since)
            stand = Standstill(
                f"{what} at {state}" if state else what,
                self._counted_s - since,
                now - self._begun,
                LIVE_ORDERED_S if is_ordered and not is_calm else LIVE_S,
            )
            if what not in self.longest or stand.over_s > self.longest[what].over_s:
                self.longest[what] = stand

    def over(self, more_s: float = 0.0) -> list[Standstill]:
        """Return the standstills that exceed their bound by more than more_s, the longest first."""
        return [stand for stand in self.worst() if stand.over_s > more_s]

    def worst(self) -> list[Standstill]:
        """Return all standstills, the longest first."""
        return sorted(self.longest.values(), key=lambda stand: -stand.for_s)


class Watch:
    """Observes each second in a thread, between `begin` and `end`.

    read: all that waits. While it raises an error of a database, no time counts: what stood before goes on standing.
    """

    def __init__(self, read: Callable[[], Iterable[Waiting]]) -> None:
        self.standing = StandstillTracker(begun=time.monotonic())
        self._read = read
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop observing and wait for the thread. Idempotent."""
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
