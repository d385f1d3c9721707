"""Lets a handler run alone in its process: if it kills the process, the messages of other handlers must not be lost
with it.

Of the process, not of a consumer, because those of all consumers would be lost. Knows handlers only: all other work of
the process continues.
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
    """An object that runs handlers. It begins none while `isolation.is_closed`; may be asked by any thread."""

    @property
    def has_waiting(self) -> bool:
        """True if it has messages that have not begun."""
        ...

    @property
    def is_running(self) -> bool:
        """True if one of its handlers runs."""
        ...

    def wake(self) -> None:
        """Let handlers begin again. Called by any thread."""
        ...


class Isolation:
    """Permission of this process's handlers to begin."""

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
        """True while no handler may begin."""
        self.opened = threading.Event()
        """The opposite of `is_closed`, for threads."""
        self.opened.set()

    def add(self, runner: Runner) -> None:
        """Let a runner's handlers count from now on."""
        with self._lock:
            self._runners.add(runner)

    def remove(self, runner: Runner) -> None:
        """Forget a runner: it begins nothing more, and its running handlers are not waited for."""
        with self._lock:
            self._runners.discard(runner)

    @property
    def is_wanted(self) -> bool:
        """True if a message waits that is to be handled alone: nothing more should be fetched."""
        return self._wanted_count > 0

    def want(self, count: int) -> None:
        """Count messages that wait to be handled alone; negative when they no longer wait."""
        with self._lock:
            self._wanted_count += count

    @asynccontextmanager
    async def alone(self, within_s: float) -> AsyncIterator[bool]:
        """Let no other handler begin within the block. Yields True if none runs, for which it waits up to within_s.

        In the first half of this time, messages that are here already may still begin.
        """
        # Polled, not awaited: the holder may be on another loop, and a blocking acquire would stop this one.
        while not self._turn.acquire(blocking=False):  # noqa: ASYNC110 - it is released by any thread
            await asyncio.sleep(_LOOK_S)
        try:
            await _until(lambda: not any(each.has_waiting or each.is_running for each in self._all()), within_s / 2)
            # Before is_closed: a thread that sees the flag must find the event cleared, or it would not wait.
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
    """Return True when it is so, False when the time is over. There is no event to wait for: threads end handlers."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while not is_so():
        if loop.time() >= until:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


isolation: Final = Isolation()
