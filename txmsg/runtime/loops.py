"""Event loops of servers and of the sync classes' background thread: uvloop's where it is installed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from txmsg.runtime.threads import DaemonThreads

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop, not running."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as asyncio.run does, on a loop of `new_loop`."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


def new_application_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop for the user's code, not running.

    Its end does not wait for functions on threads (`asyncio.to_thread`), which may hang: they were given time before,
    and a longer wait would keep alive a process that was told to end.
    """
    loop = new_loop()
    # As many as asyncio's own executor has.
    loop.set_default_executor(DaemonThreads(min(32, (os.cpu_count() or 1) + 4), name="txmsg-to-thread"))
    return loop


def run_application(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as asyncio.run does, on a loop of `new_application_loop`."""
    with asyncio.Runner(loop_factory=new_application_loop) as runner:
        return runner.run(main)


def is_running() -> bool:
    """Return True if a loop runs on this thread: a blocking call would block everything else on it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
