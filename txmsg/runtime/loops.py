"""The event loop that servers and the background thread of the sync classes use: uvloop's where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

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
