"""Runs handlers of a test on the thread of the test, so that they may use its open transactions and patches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Work = tuple["Future[Any]", Callable[[], Any]]


class CallingThread(Executor):
    """Runs a coroutine on a loop of another thread, and submitted functions on the thread that called `run`."""

    def __init__(self) -> None:
        self._submitted: SimpleQueue[_Work | None] = SimpleQueue()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Let the thread in `run` call the function. A function that raises does not end `run`."""
        future: Future[T] = Future()
        self._submitted.put((future, partial(function, *args, **kwargs)))
        return future

    def run(
        self, work: Callable[[Executor], Coroutine[Any, Any, T]], loop: asyncio.AbstractEventLoop | None = None
    ) -> T:
        """Run the coroutine that `work` makes, and return its result. Interrupted (Ctrl-C), it cancels the coroutine.

        loop: one that runs on another thread; default: a new one.
        """
        begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

        async def main() -> T:
            task = asyncio.ensure_future(work(self))
            begun.set_result((asyncio.get_running_loop(), task))
            return await task

        with ThreadPoolExecutor(1, thread_name_prefix="txmsg-handle") as other:
            ended: Future[T]
            if loop is None:
                ended = other.submit(lambda: asyncio.run(main()))
            else:
                ended = asyncio.run_coroutine_threadsafe(main(), loop)
            ended.add_done_callback(lambda _: self._submitted.put(None))
            try:
                while (submitted := self._submitted.get()) is not None:
                    _run(*submitted)
            except BaseException:
                its_loop, task = begun.result()
                its_loop.call_soon_threadsafe(task.cancel)
                wait((ended,))
                raise
            return ended.result()


def _run(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as exc:  # noqa: BLE001 - it is the future's
        future.set_exception(exc)
        # Ctrl-C, pytest.fail() and the like end the test, also where UserFunction has turned them into a RuntimeError.
        left = exc.__cause__ if isinstance(exc, RuntimeError) and exc.__cause__ is not None else exc
        if not isinstance(left, Exception):
            raise left from None
    else:
        future.set_result(result)
