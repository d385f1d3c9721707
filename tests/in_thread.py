"""Servers within the test's process, in a thread with its own event loop, for settings that commands do not offer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

_WAIT_S = 60.0

Serve = Callable[[Callable[[str], None], asyncio.Event], Coroutine[Any, Any, None]]
"""Runs the server: gets a function to call with its address, and an event at which to stop."""


@contextmanager
def served_in_thread(serve: Serve, *, thread_name: str) -> Iterator[str]:
    """Run a server and yield its address. Fails unless it stops cleanly at the end; raises what the server raises."""
    ready: Future[str] = Future()
    ended: Future[None] = Future()
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()

    def work() -> None:
        try:
            loop.run_until_complete(serve(ready.set_result, stop))
        except BaseException as exc:  # noqa: BLE001 - a thread's root: the test raises it
            (ended if ready.done() else ready).set_exception(exc)
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            if not ended.done():
                ended.set_result(None)

    thread = threading.Thread(target=work, name=thread_name)
    thread.start()
    try:
        yield ready.result(_WAIT_S)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(_WAIT_S)
        assert not thread.is_alive(), "the server did not stop"
        loop.close()
    ended.result()
