"""The consumer for threads: the asyncio one on the background loop of the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from txmsg.client.async_consumer import AsyncConsumer
from txmsg.client.hooks import ConsumerHooks
from txmsg.client.link import CALL_GRACE_S, POLL_WAIT_S
from txmsg.client.links import SETTLE_S_MAX
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage
from txmsg.runtime.process import LoopThread, check_not_forked, shared_loop
from txmsg.runtime.signals import signals_set
from txmsg.runtime.start import Start
from txmsg.runtime.user_function import in_handler

__all__ = ["Consumer"]

H = TypeVar("H", bound=Callable[[ReceivedMessage], Any])

START_TIMEOUT_S = 10.0


class Consumer:
    """A member of a consumer group, for programs without asyncio. Parameters and rules are AsyncConsumer's.

    `def` handlers run on threads. `async def` handlers run on txmsg's own loop and must not block it.
    """

    def __init__(
        self,
        brokers: str | Sequence[str | Sequence[str]] = "localhost:7700",
        group: str = "default",
        *,
        concurrency: int = 16,
        visibility_timeout_s: float = 60.0,
        stop_timeout_s: float = 30.0,
        start: Start | None = None,
        broadcast: bool | str = False,
        poll_wait_s: float = POLL_WAIT_S,
        hooks: ConsumerHooks | None = None,
    ) -> None:
        self._core = AsyncConsumer(
            brokers,
            group,
            concurrency=concurrency,
            visibility_timeout_s=visibility_timeout_s,
            stop_timeout_s=stop_timeout_s,
            start=start,
            broadcast=broadcast,
            poll_wait_s=poll_wait_s,
            hooks=hooks,
        )
        self.hooks = self._core.hooks
        self._stop_wait_s = float(stop_timeout_s) + SETTLE_S_MAX + POLL_WAIT_S + CALL_GRACE_S
        self._thread: LoopThread | None = None
        self._pid = 0
        self._stop_wanted = threading.Event()
        self._lock = threading.Lock()

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._core.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that have a handler."""
        return self._core.topics

    def subscribe(self, topic: str, tag: str = "*") -> Callable[[H], H]:
        """Decorates the handler of a topic: `handler(message)`, def or async def.

        tag: "*" for all, or tags such as "signup || import". One handler per topic and consumer; subscribe before
        `start`.
        """
        return self._core.subscribe(topic, tag)

    def start(self) -> Self:
        """Begins to receive, in the background. Does not wait for a broker. Idempotent; MisuseError after `stop`."""
        with self._lock:
            if self._stop_wanted.is_set():
                raise MisuseError("the consumer was stopped: make a new one")
            if self._thread is None:
                thread = shared_loop()
                thread.call(self._core.start(), timeout_s=START_TIMEOUT_S)
                thread.at_exit(self, self._core.stop)
                self._thread, self._pid = thread, os.getpid()
            check_not_forked(self._pid)
        return self

    def stop(self) -> None:
        """Stops receiving, lets handlers finish for up to stop_timeout_s, settles what they did. Idempotent.

        Called by a handler, it begins to stop and returns at once; `run` then returns when all is done.
        """
        self._stop_wanted.set()
        if in_handler.get() and self._thread is not None:  # before the lock: who holds it may wait for this handler
            self._thread.post(self._core._begin_stop)
            return
        with self._lock:
            if self._thread is not None:
                check_not_forked(self._pid)
                self._thread.call(self._core.stop(), timeout_s=self._stop_wait_s)
                self._thread.at_exit(self, None)

    def run(self) -> None:
        """Receives until `stop` is called by another thread, or SIGINT or SIGTERM comes; then stops in good order.

        Signals are caught only on the main thread. A second one acts as it did before `run`.
        """
        self.start()
        with signals_set(self._stop_wanted):
            self._stop_wanted.wait()
        self.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
