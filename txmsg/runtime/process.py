"""The one background loop of a process, and the rule that a process using txmsg does not survive a fork.

The sync classes run the asyncio core on this loop. One per process is enough, and costs one thread however many of
them there are. Knows nothing of producers and consumers.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from txmsg.errors import MisuseError
from txmsg.runtime.loops import new_loop

T = TypeVar("T")

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0

_lock = threading.Lock()
_claimed_by_pid: int | None = None
_shared: LoopThread | None = None


def claim_process() -> int:
    """Marks this process as one that uses txmsg, and returns its pid.

    Threads do not survive a fork, and a connection must not be used by two processes. Raises MisuseError in the child
    of a process that has used txmsg, and where gevent has replaced what this module waits by.
    """
    _check_not_patched()
    global _claimed_by_pid  # noqa: PLW0603 - one per process is the point
    pid = os.getpid()
    if _claimed_by_pid is None:
        _claimed_by_pid = pid
    check_not_forked(_claimed_by_pid)
    return pid


def check_not_forked(pid: int) -> None:
    """Raises MisuseError unless this process is still the one with this pid."""
    if os.getpid() != pid:
        raise MisuseError(
            f"process {os.getpid()} was forked from process {pid}, which already used txmsg; its threads and "
            "connections do not survive a fork. Make the first call (send, start, run) after forking: in gunicorn's "
            "post_fork hook, or with multiprocessing's start method 'spawn'. Merely constructing a Producer or "
            "Consumer before is fine"
        )


def _check_not_patched() -> None:
    """Raises MisuseError if gevent runs threads as greenlets, or waits by its own hub: the first call would hang."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is None:
        return
    patched = [module for module in ("threading", "select") if gevent.is_module_patched(module)]
    if patched:
        raise MisuseError(
            f"gevent has patched {' and '.join(patched)} in this process, so txmsg would block forever: patch by "
            "gevent.monkey.patch_all(thread=False, select=False), or use txmsg in a process without gevent, such as "
            "a gunicorn worker of class gthread"
        )


class LoopThread:
    """An asyncio loop on a daemon thread of its own. `call` and `post` are for other threads."""

    def __init__(self) -> None:
        self.pid = claim_process()
        self.loop = new_loop()
        self._ready = threading.Event()
        self._closers: dict[object, Callable[[], Awaitable[None]]] = {}
        self._thread = threading.Thread(target=self._run, name="txmsg-loop", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise MisuseError(f"the txmsg loop thread did not start within {START_TIMEOUT_S} s")

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._ready.set)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Runs `work` on the loop and waits for its result. A timeout cancels it and raises TimeoutError."""
        check_not_forked(self.pid)
        if threading.current_thread() is self._thread:
            work.close()
            raise MisuseError("a blocking txmsg call was made on the txmsg loop itself: use the async classes there")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Has the loop call `function` soon. Returns at once."""
        self.loop.call_soon_threadsafe(function, *args)

    def at_exit(self, owner: object, closer: Callable[[], Awaitable[None]] | None) -> None:
        """What is to be awaited before the process ends for `owner`; None forgets it."""
        if closer is None:
            self._closers.pop(owner, None)
        else:
            self._closers[owner] = closer

    def close(self) -> None:
        """Closes what is still open, then stops the loop and its thread. For the end of the process."""
        with contextlib.suppress(TimeoutError, concurrent.futures.CancelledError):
            self.call(self._close_all(), timeout_s=STOP_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self.loop.close()

    async def _close_all(self) -> None:
        closers, self._closers = list(self._closers.values()), {}
        await asyncio.gather(*(closer() for closer in closers), return_exceptions=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.loop.shutdown_asyncgens()


def shared_loop() -> LoopThread:
    """The background loop of this process, started at the first call."""
    global _shared  # noqa: PLW0603 - one per process is the point
    with _lock:
        if _shared is None or _shared.pid != os.getpid():
            _shared = LoopThread()
            atexit.register(_close_at_exit, _shared)
        return _shared


def _close_at_exit(thread: LoopThread) -> None:
    if thread.pid == os.getpid():
        thread.close()
