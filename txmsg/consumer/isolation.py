"""Lets a handler run alone in its process: one that perhaps kills it would take the messages of others along.

Of the process, not of a consumer, for those of all consumers would be lost. Knows handlers only: what else a process
does goes on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol
from weakref import WeakSet

from txmsg.runtime.forks import renew_in_children

_LOOK_S: Final = 0.005


class Runner(Protocol):
    """What runs handlers. It begins none while `isolation.is_closed`; may be asked by any thread."""

    @property
    def has_waiting(self) -> bool:
        """Whether it has messages that have not begun."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether one of its handlers runs."""
        ...

    def wake(self) -> None:
        """Handlers may begin again. Called by any thread."""
        ...


class Isolation:
    """Which handlers of this process may begin."""

    def __init__(self) -> None:
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self._turn = threading.Lock()
        """Held while a handler runs alone. Not a lock of asyncio: consumers have loops of their own."""
        self._lock = threading.Lock()  # of the next two
        self._runners: WeakSet[Runner] = WeakSet()
        self._wanted_count = 0
        self.is_closed = False
        """Whether no handler may begin."""
        self.opened = threading.Event()
        """The opposite, for threads."""
        self.opened.set()

    def add(self, runner: Runner) -> None:
        """From now on its handlers count."""
        with self._lock:
            self._runners.add(runner)

    def remove(self, runner: Runner) -> None:
        """It begins nothing more, and what it runs is not waited for."""
        with self._lock:
            self._runners.discard(runner)

    @property
    def is_wanted(self) -> bool:
        """Whether a message waits that is to be handled alone: nothing more should be fetched."""
        return self._wanted_count > 0

    def want(self, count: int) -> None:
        """So many more messages wait for that, or fewer."""
        with self._lock:
            self._wanted_count += count

    @asynccontextmanager
    async def alone(self, within_s: float) -> AsyncIterator[bool]:
        """No other handler begins within the block. Gives whether none runs, for which it waits up to within_s.

        In the first half of this time those begin, too, whose messages are here already.
        """
        while not self._turn.acquire(blocking=False):  # noqa: ASYNC110 - it is released by any thread
            await asyncio.sleep(_LOOK_S)
        try:
            await _until(lambda: not any(each.has_waiting or each.is_running for each in self._all()), within_s / 2)
            self.opened.clear()
            self.is_closed = True
            yield await _until(lambda: not any(each.is_running for each in self._all()), within_s / 2)
        finally:
            self.is_closed = False
            self.opened.set()
            self._turn.release()
            for runner in self._all():
                runner.wake()

    def _all(self) -> list[Runner]:
        with self._lock:
            return list(self._runners)


async def _until(is_so: Callable[[], bool], within_s: float) -> bool:
    """Returns when it is so, True, or when the time is over. There is no event for it: threads end handlers."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while not is_so():
        if loop.time() >= until:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


isolation: Final = Isolation()
