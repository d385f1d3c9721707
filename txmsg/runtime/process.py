"""The background loop of a process, one for all. A forked child has its own.

The sync classes run the asyncio core on this loop. One per process is enough, and costs one thread however many of
them there are. Knows nothing of producers and consumers.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import multiprocessing.util
import os
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from txmsg.errors import MisuseError
from txmsg.runtime.forks import check_fork_was_told, keep
from txmsg.runtime.logs import EventLog
from txmsg.runtime.loops import new_application_loop

_log = EventLog(__name__)

T = TypeVar("T")

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0

_lock = threading.Lock()
_shared: LoopThread | None = None


def check_not_patched() -> None:
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
        check_not_patched()
        self.pid = os.getpid()
        self.loop = Context().run(new_application_loop)  # its callbacks would keep the context of who asks first
        self._ready = threading.Event()
        self._closers: dict[object, Callable[[], Awaitable[None]]] = {}
        self._closing: set[asyncio.Future[None]] = set()
        self._thread = threading.Thread(target=self._run, name="txmsg-loop", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise MisuseError(f"the txmsg loop thread did not start within {START_TIMEOUT_S} s")

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._ready.set)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run `work` on the loop and wait for its result. A timeout cancels it and raises TimeoutError."""
        try:
            check_fork_was_told()
            if threading.current_thread() is self._thread:
                raise MisuseError(
                    "a blocking txmsg call was made on the txmsg loop itself: use the async classes there"
                )
        except MisuseError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Schedule a call of `function` on the loop. Returns at once."""
        self.loop.call_soon_threadsafe(function, *args)

    def at_exit(self, owner: object, closer: Callable[[], Awaitable[None]] | None) -> None:
        """Register `closer`, which is awaited for `owner` before the process ends; None removes it."""
        if closer is None:
            self._closers.pop(owner, None)
        else:
            self._closers[owner] = closer

    def close_dropped(self, owner: object, what: str, source: object) -> None:
        """Close a dropped object soon, and warn; for finalizers. Does nothing after `at_exit(owner, None)`.

        what, source: the dropped object in words (empty: no warning) and itself.
        """
        closer = self._closers.pop(owner, None)
        if closer is None or self.pid != os.getpid() or not self._thread.is_alive():
            return
        self.post(self._close_soon, closer, what)
        if what:
            warnings.warn(f"unclosed {what}", ResourceWarning, source=source, stacklevel=2)

    def _close_soon(self, closer: Callable[[], Awaitable[None]], what: str) -> None:
        if what:  # here, as a finalizer may run while a lock of logging is held
            _log.warning("client.dropped", "unclosed %(client)s: it is closed now", client=what)
        closing = asyncio.ensure_future(closer())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def close(self) -> None:
        """Close open objects, then stop the loop and its thread. For the end of the process."""
        with contextlib.suppress(TimeoutError, concurrent.futures.CancelledError):
            self.call(self._close_all(), timeout_s=STOP_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self.loop.close()

    async def _close_all(self) -> None:
        closers, self._closers = list(self._closers.values()), {}
        await asyncio.gather(*self._closing, *(closer() for closer in closers), return_exceptions=True)
        # After the closers: they may still need tasks of the loop to send what is left.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.loop.shutdown_asyncgens()


def shared_loop() -> LoopThread:
    """Return the background loop of this process, started at the first call."""
    global _shared  # noqa: PLW0603 - one per process is the point
    with _lock:
        if _shared is None:
            _shared = LoopThread()
            _at_exit(_shared)
        return _shared


def _at_exit(thread: LoopThread) -> None:
    atexit.register(_close_at_exit, thread)
    if multiprocessing.parent_process() is not None:  # of its children, forked ones end without atexit
        multiprocessing.util.Finalize(None, _close_at_exit, (thread,), exitpriority=0)


def _close_at_exit(thread: LoopThread) -> None:
    if thread.pid == os.getpid() and not thread.loop.is_closed():  # spawned children come here by both ways
        thread.close()


def _forget_in_child() -> None:
    global _lock, _shared
    keep(_shared)
    _lock, _shared = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_in_child)
