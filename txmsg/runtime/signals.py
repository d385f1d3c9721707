"""SIGINT and SIGTERM end what runs in the foreground, in good order; SIGHUP has it read its settings again."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType


@contextmanager
def signals_set(event: threading.Event) -> Iterator[None]:
    """Has the signals set the event; a second one acts as it did before. Only on the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        event.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_on_signals() -> asyncio.Event:
    """An event that the signals set from now on. On the event loop of the main thread."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


def call_on_hangup(call: Callable[[], None]) -> None:
    """Has SIGHUP call this on the event loop of the main thread, which the caller is on."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, call)


def call_on_hangup_by_thread(call: Callable[[], None]) -> None:
    """Has SIGHUP call this on a thread of its own. On the main thread, of a process without an event loop."""
    asked: SimpleQueue[None] = SimpleQueue()  # a signal may come while a handler of it runs: `put` allows that

    def work() -> None:
        while True:
            asked.get()
            call()

    threading.Thread(target=work, name="txmsg-hangup", daemon=True).start()
    signal.signal(signal.SIGHUP, lambda *_: asked.put(None))
