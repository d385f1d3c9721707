"""A broker inside the test's process, for settings that the command does not offer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from txmsg.broker.config import BrokerConfig
from txmsg.broker.server import serve
from txmsg.settings.live import Given

_WAIT_S = 60.0


@contextmanager
def served(config: BrokerConfig) -> Iterator[str]:
    """Runs the broker in a thread with a loop of its own; its address. At the end it stops in order, or this fails."""
    ready: Future[str] = Future()
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()

    def work() -> None:
        try:
            loop.run_until_complete(serve(Given(config), ready.set_result, stop))
        except BaseException as exc:  # noqa: BLE001 - a thread's root: the test raises it
            if ready.done():
                ended.set_exception(exc)
            else:
                ready.set_exception(exc)
        else:
            ended.set_result(None)
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    ended: Future[None] = Future()
    thread = threading.Thread(target=work, name="broker")
    thread.start()
    try:
        yield ready.result(_WAIT_S)
    finally:
        if not ready.done() or ready.exception() is None:
            loop.call_soon_threadsafe(stop.set)
        thread.join(_WAIT_S)
    ended.result(_WAIT_S)
