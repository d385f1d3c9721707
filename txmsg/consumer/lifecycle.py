"""The life of a consumer: of the asynchronous kind, and of the one for threads, which runs the former on a loop.

What it receives, and from where, is in the classes made of these.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final, Generic, Self, TypeVar, overload

from txmsg.consumer.failures import Retry
from txmsg.consumer.options import ConsumerOptions
from txmsg.consumer.subscriptions import Subscriptions
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage
from txmsg.message.typed.topic import Topic
from txmsg.runtime.durations import in_seconds
from txmsg.runtime.forks import check_fork_was_told, renew_in_children
from txmsg.runtime.logs import EventLog
from txmsg.runtime.process import LoopThread, shared_loop
from txmsg.runtime.signals import stopped_by_signals
from txmsg.runtime.user_function import in_handler

P = TypeVar("P")
R = TypeVar("R")
H = TypeVar("H", bound=Callable[[ReceivedMessage], Any])
C = TypeVar("C", bound="AsyncLifecycle")

_log = EventLog(__name__)

_GRACE_S: Final = 30.0
"""Seconds beyond its own limits that a call on the loop's thread is waited for."""


class AsyncLifecycle(ABC):
    """A consumer on the loop that starts it. A subclass opens what it receives from, and closes it.

    In a forked child it is as it was when it was made: not started. Started there, it is another member of its group.
    """

    _has_handlers = False
    """True if each topic needs a handler."""
    takes_patterns = True
    """True if it may subscribe to topics that do not exist yet, by a pattern."""

    def __init__(self, group: str, options: ConsumerOptions) -> None:
        self.group = options.group_of_member(group)
        """The consumer group; for a broadcasting member, its own."""
        self._start = options.start or options.start_by_default
        self._concurrency = options.concurrency
        self.close_timeout_s = in_seconds(options.close_timeout_s)
        """Seconds that `close` waits for handlers."""
        self._tracing = options.tracing
        self._subscriptions = Subscriptions(
            self.group, options.tracing, options.encryption, takes_patterns=self.takes_patterns
        )
        self._is_lone = options.broadcast is True
        self._is_copy = False
        self._begin()
        renew_in_children(self)

    def _begin(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_wanted = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._subscriptions.reset_figures()

    def _renew(self) -> None:
        self._is_copy = True
        self._begin()

    async def start(self) -> Self:
        """Start receiving in the background. Does not wait for a server that cannot be reached. Idempotent.

        Raises MisuseError after `close`, and without subscriptions; Unauthenticated if a broker does not let us in.
        """
        self._require_not_closed()
        if self._is_lone and self._is_copy:
            raise MisuseError(
                f"the consumer of group {self.group} was made with broadcast=True before this process was forked, so "
                "both would share the messages: make it after forking, or give each process an instance's name"
            )
        if self._loop is None:
            # Before anything is open, so that a mistake raises and leaves no member behind in the group.
            self._subscriptions.close(need_handlers=self._has_handlers)
            with nullcontext() if self._tracing is None else self._tracing.untraced():
                await self._knock()
                self._require_not_closed()
                if self._loop is None:  # another task may have started it meanwhile
                    await self._open()
                    self._log_started(
                        ", ".join(
                            topic if tag == "*" else f"{topic} ({tag})"
                            for topic, tag in self._subscriptions.tags.items()
                        )
                    )
            self._loop = asyncio.get_running_loop()
        return self

    async def close(self) -> None:
        """Stop receiving, let handlers finish for up to close_timeout_s, settle their messages, disconnect.

        Idempotent. Called by a handler, it begins to close and returns at once.
        """
        closing = self._begin_close()
        if not in_handler.get():
            # Shielded: a caller that is cancelled leaves a close that still settles messages, instead of one that
            # stopped halfway.
            await asyncio.shield(closing)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begin_close(self) -> asyncio.Task[None]:
        """Begin the close that `close` waits for. To be called on the loop. Idempotent."""
        if self._closing is None:
            self._stop_wanted.set()
            self._closing = asyncio.create_task(self._close_if_open(), name=f"txmsg-close-{self.group}")
        return self._closing

    def _require_not_closed(self) -> None:
        if self._closing is not None:
            raise MisuseError("the consumer is closed: make a new one")

    async def _close_if_open(self) -> None:
        if self._loop is not None:
            await self._close()
            _log.info("consumer.stopped", "group %(group)s: this consumer has ended", group=self.group)

    @abstractmethod
    def _log_started(self, topics: str) -> None:
        """Log the topics that it receives."""

    async def _knock(self) -> None:  # noqa: B027 - not every consumer asks before it opens
        """Raise the error that a start would only log: a server refuses our credential. Nothing is open yet."""

    @abstractmethod
    async def _open(self) -> None:
        """Begin to receive. Called once."""

    @abstractmethod
    async def _close(self) -> None:
        """End what `_open` began. Called once, after it."""


class WithHandlers(AsyncLifecycle):
    """A consumer whose messages are handled by functions that are subscribed to topics."""

    _has_handlers = True

    @overload
    def subscribe(
        self, topic: Topic[P], tag: str = "*", *, retry: Retry | None = None
    ) -> Callable[[Callable[[ReceivedMessage[P]], R]], Callable[[ReceivedMessage[P]], R]]: ...
    @overload
    def subscribe(self, topic: str, tag: str = "*", *, retry: Retry | None = None) -> Callable[[H], H]: ...
    def subscribe(self, topic: str | Topic[Any], tag: str = "*", *, retry: Retry | None = None) -> Callable[[Any], Any]:
        """Subscribe to a topic, and decorate its handler: `handler(message)`, def or async def.

        topic: its name, or a Topic: then messages have payloads, and an invalid one is a dead letter at once; from
        brokers also a pattern, a prefix and `*`, of which topics may be created later.
        tag: "*" for all, or tags such as "signup || import". retry: when a message whose handler raised is redelivered;
        default: the group's back-off. One handler per topic and consumer; subscribe before `start`.
        """
        return self._subscriptions.add(topic, tag, retry)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, and patterns of topics, that have a handler."""
        return self._subscriptions.handled

    async def run(self) -> None:
        """Start, receive until `stop` is called or until SIGINT or SIGTERM, and close. Cancelling it closes, too.

        Signals are caught only on the main thread, and only if nothing else handles them: a web server's handler stays,
        and what it ends must stop or cancel this. A second signal acts as it did before `run`.
        """
        with stopped_by_signals(self.stop):
            await self.start()
            try:
                await self._stop_wanted.wait()
            finally:
                await self.close()

    def stop(self) -> None:
        """End `run`. Returns at once. May be called anywhere, also by a handler, by another thread, and before `run`.

        Without `run` it has no effect: `close` is what ends a consumer that was started.
        """
        if self._loop is None:
            self._stop_wanted.set()
        elif self._closing is None:
            self._loop.call_soon_threadsafe(self._stop_wanted.set)

    def _log_started(self, topics: str) -> None:
        _log.info(
            "consumer.started",
            "group %(group)s reads %(topics)s, with up to %(concurrency)d handlers at once",
            group=self.group,
            topics=topics,
            concurrency=self._concurrency,
        )


class Lifecycle(Generic[C]):
    """A consumer for threads: an asynchronous one on the background loop of the process."""

    def __init__(self, core: C) -> None:
        self._core = core
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self._thread: LoopThread | None = None
        self._stop_wanted = threading.Event()
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._core.group

    def start(self) -> Self:
        """Start receiving in the background. Does not wait for a server that cannot be reached. Idempotent.

        Raises MisuseError after `close`, and without subscriptions; Unauthenticated if a broker does not let us in.
        """
        with self._lock:
            if self._is_closed:
                raise MisuseError("the consumer is closed: make a new one")
            if self._thread is None:
                thread = shared_loop()
                thread.call(self._core.start(), timeout_s=_GRACE_S)
                thread.at_exit(self, self._core.close)
                self._thread = thread
            check_fork_was_told()
        return self

    def close(self) -> None:
        """Stop receiving, let handlers finish for up to close_timeout_s, settle their messages, disconnect.

        Idempotent. Called by a handler, it begins to close and returns at once.
        """
        self._stop_wanted.set()
        self._is_closed = True
        if in_handler.get() and self._thread is not None:  # before the lock: its owner may wait for this handler
            self._thread.post(self._core._begin_close)
            return
        with self._lock:
            if self._thread is not None:
                self._thread.call(self._core.close(), timeout_s=self._core.close_timeout_s + _GRACE_S)
                self._thread.at_exit(self, None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
