"""The event loop that servers and the background thread of the sync classes use: uvloop's where it is installed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from txmsg.runtime.threads import DaemonThreads

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop, not running."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


def new_application_loop() -> asyncio.AbstractEventLoop:
    """A loop for the user's code, not running.

    At its end nothing waits for what that code runs on threads (`asyncio.to_thread`), perhaps for ever: it was given
    time before, and to wait for more would keep a process that was told to end.
    """
    loop = new_loop()
    # As many as asyncio's own executor has.
    loop.set_default_executor(DaemonThreads(min(32, (os.cpu_count() or 1) + 4), name="txmsg-to-thread"))
    return loop


def run_application(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on such a loop."""
    with asyncio.Runner(loop_factory=new_application_loop) as runner:
        return runner.run(main)


def is_running() -> bool:
    """Whether a loop runs on this thread, so that what blocks it blocks all else there."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
