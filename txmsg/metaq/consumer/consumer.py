"""The consumer of a log for threads: the asyncio one on the background loop of the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage
from txmsg.metaq.access import LogAccess
from txmsg.metaq.consumer.async_consumer import AsyncLogConsumer
from txmsg.metaq.consumer.fetching import Missing
from txmsg.metaq.consumer.polling import PolledBatch
from txmsg.metaq.group.assignment import Strategy
from txmsg.runtime.backoff import RETRIES_MAX
from txmsg.runtime.process import LoopThread, check_not_forked, shared_loop
from txmsg.runtime.signals import signals_set
from txmsg.runtime.start import Start
from txmsg.runtime.user_function import in_handler

__all__ = ["LogConsumer"]

H = TypeVar("H", bound=Callable[[ReceivedMessage], Any])

_CALL_GRACE_S = 30.0


class LogConsumer:
    """A member of a consumer group of a log, for programs without asyncio. Parameters and rules are AsyncLogConsumer's.

    `def` handlers run on threads. `async def` handlers run on txmsg's own loop and must not block it.
    """

    def __init__(
        self,
        log: str | os.PathLike[str] | LogAccess,
        group: str = "default",
        *,
        concurrency: int = 16,
        ordered: bool = False,
        stop_timeout_s: float = 30.0,
        start: Start | None = None,
        broadcast: bool | str = False,
        strategy: Strategy | None = None,
        missing: Missing = "earliest",
        retries_max: int = RETRIES_MAX,
        retry_delays_s: Sequence[float] | None = None,
    ) -> None:
        self._core = AsyncLogConsumer(
            log,
            group,
            concurrency=concurrency,
            ordered=ordered,
            stop_timeout_s=stop_timeout_s,
            start=start,
            broadcast=broadcast,
            strategy=strategy,
            missing=missing,
            retries_max=retries_max,
            retry_delays_s=retry_delays_s,
        )
        self._stop_wait_s = float(stop_timeout_s) + _CALL_GRACE_S
        self._thread: LoopThread | None = None
        self._pid = 0
        self._stop_wanted = threading.Event()
        self._lock = threading.Lock()

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._core.group

    def subscribe(self, topic: str, tag: str = "*") -> Callable[[H], H]:
        """Adds a topic, and decorates its handler: `handler(message)`, def or async def. Pull needs no handler.

        tag: "*" for all, or tags such as "signup || import". One handler per topic and consumer; subscribe before
        `start`. A topic need not be there yet.
        """
        return self._core.subscribe(topic, tag)

    # ---- life

    def start(self) -> Self:
        """Joins the group and begins to read, in the background. Idempotent; MisuseError after `stop`."""
        with self._lock:
            if self._stop_wanted.is_set():
                raise MisuseError("the consumer was stopped: make a new one")
            if self._thread is None:
                thread = shared_loop()
                thread.call(self._core.start(), timeout_s=_CALL_GRACE_S)
                thread.at_exit(self, self._core.stop)
                self._thread, self._pid = thread, os.getpid()
            check_not_forked(self._pid)
        return self

    def stop(self) -> None:
        """Stops reading, lets handlers finish for up to stop_timeout_s, stores offsets and leaves. Idempotent.

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

    # ---- pull

    def poll(self, timeout_s: float = 1.0, *, count_max: int = 100) -> list[PolledBatch]:
        """The next batches, of any of the member's queues: at most so many; none when nothing comes in time.

        What the last poll gave counts as done with: queues that it came from may go to other members now. Offsets are
        stored by `commit` only. Raises OffsetOutOfRange with missing="error", and CorruptLog.
        """
        return self._running().call(self._core.poll(timeout_s, count_max=count_max))

    def commit(self) -> None:
        """Stores that everything that was polled so far is done with."""
        self._running().call(self._core.commit())

    def seek(self, topic: str, queue: int, to: Start) -> None:
        """Goes on there in a queue that this member owns, and stores it.

        A group whose members run elsewhere is moved by `txmsg group seek --log`. Raises MisuseError.
        """
        self._running().call(self._core.seek(topic, queue, to))

    def pause(self, topic: str, queue: int | None = None) -> None:
        """Hands out nothing of a queue, or of all queues of a topic that this member owns, until `resume`."""
        self._running().call(_called(self._core.pause, topic, queue))

    def resume(self, topic: str, queue: int | None = None) -> None:
        """The end of `pause`."""
        self._running().call(_called(self._core.resume, topic, queue))

    # ---- what it has

    def queues(self) -> list[tuple[str, int]]:
        """The queues that this member owns now: topic and number."""
        return self._running().call(_called(self._core.queues))

    @property
    def missed_count(self) -> int:
        """Messages that were gone before this consumer could fetch them: by retention, or marked missing in the log."""
        return self._core.missed_count

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise MisuseError(f"the consumer of group {self.group} was not started: start it first")
        return self._thread


async def _called(function: Callable[..., Any], *args: object) -> Any:
    return function(*args)
