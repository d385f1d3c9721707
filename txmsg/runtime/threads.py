"""Threads for the user's functions. Knows nothing of these, but that one of them may hang for ever."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Work = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(ThreadPoolExecutor):
    """A pool of at most `count` daemon threads, started when they are needed.

    A subclass of ThreadPoolExecutor only because loops require that class: its own threads are waited for when a loop
    or the interpreter ends, so a function that hangs would keep alive a process that was told to end. The queue has no
    bound: callers bound what they submit.
    """

    def __init__(self, count: int, *, name: str) -> None:
        super().__init__(count)
        self._count = count
        self._name = name
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._started = 0
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the function on a thread when one is free."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot submit after shutdown")
            self._work.put((future, lambda: function(*args, **kwargs)))
            if self._started < self._count:
                threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()
                self._started += 1
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Accept no more work and cancel what has not begun. Never waits. May be called twice."""
        with self._lock:
            self._closed = True
            with suppress(queue.Empty):
                while cancel_futures:
                    work = self._work.get_nowait()
                    if work is not None:
                        work[0].cancel()
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as exc:  # noqa: BLE001 - the future passes it on
                future.set_exception(exc)
            else:
                future.set_result(result)
            del work, future, call  # not to be kept alive until the next one comes
        self._work.put(None)  # for the next thread
