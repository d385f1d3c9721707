"""The consumer for asyncio, which the sync one runs, too: polls every broker and hands the messages to handlers.

Delivery is at least once: a handler that must not repeat its effects is wrapped in `idempotent`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from uuid import UUID, uuid4

from txmsg.client.channel import Brokers
from txmsg.client.inbox import AsyncIdempotentHandler, IdempotentHandler
from txmsg.client.incoming import received
from txmsg.client.link import Link, Polling
from txmsg.client.options import addresses_of, check_count, check_seconds
from txmsg.client.user_function import UserFunction
from txmsg.errors import InvalidMessage, MisuseError
from txmsg.message import ReceivedMessage, check_name, message_id
from txmsg.wire.tags import parse_tags
from txmsg.wire.v1.txmsg_pb2 import Delivered, Subscription

__all__ = ["AsyncConsumer"]

_log = logging.getLogger(__name__)

H = TypeVar("H", bound=Callable[[ReceivedMessage], Any])

FLUSH_TIMEOUT_S = 5.0
WATCH_INTERVAL_S_MAX = 5.0
CONCURRENCY_MAX = 4096
INVISIBLE_S_MAX = 12 * 3600.0
STOP_TIMEOUT_S_MAX = 24 * 3600.0

in_handler: contextvars.ContextVar[bool] = contextvars.ContextVar("txmsg_in_handler", default=False)
"""Whether a handler is being run: one that calls `stop` must not wait for itself."""


class _Job(NamedTuple):
    link: Link
    delivered: Delivered
    useless_at: float


class _Subscribed(NamedTuple):
    subscription: Subscription
    handler: UserFunction


class AsyncConsumer:
    """A member of a consumer group. Every message of its topics goes to one member; who is free takes the next.

    brokers: "host:port", several of them in a list or separated by commas. group: whose progress this is.
    concurrency: handlers at once; `def` handlers run on threads, `async def` ones on the loop. invisible_s: a message
    not settled within it is delivered again; give more than the slowest handler takes. stop_timeout_s: how long a stop
    waits for handlers. Up to twice `concurrency` messages per broker are fetched ahead.

    A handler that returns acknowledges the message. One that raises refuses it: it comes again after the group's
    back-off, in the end it becomes a dead letter, with the error's text.
    """

    def __init__(
        self,
        brokers: str | Sequence[str] = "localhost:7700",
        group: str = "default",
        *,
        concurrency: int = 16,
        invisible_s: float = 60.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        self.addresses = addresses_of(brokers)
        self.group = check_name("consumer group", group)
        self._concurrency = check_count("concurrency", concurrency, most=CONCURRENCY_MAX)
        self._invisible_s = check_seconds("invisible_s", invisible_s, least_s=1, most_s=INVISIBLE_S_MAX)
        self._stop_timeout_s = check_seconds("stop_timeout_s", stop_timeout_s, least_s=0, most_s=STOP_TIMEOUT_S_MAX)
        self._subscribed: dict[str, _Subscribed] = {}
        self._brokers: Brokers | None = None
        self._links: list[Link] = []
        self._polls: list[asyncio.Task[None]] = []
        self._workers: list[asyncio.Task[None]] = []
        self._handled: list[_Job | None] = [None] * self._concurrency
        self._threads: ThreadPoolExecutor | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    def subscribe(self, topic: str, tag: str = "*") -> Callable[[H], H]:
        """Decorates the handler of a topic: `handler(message)`, def or async def.

        tag: "*" for all, or tags such as "signup || import". One handler per topic and consumer; subscribe before
        `start`.
        """
        if callable(topic):
            raise MisuseError('@consumer.subscribe stands without its topic: write @consumer.subscribe("topic")')
        check_name("topic", topic)
        parse_tags(tag)

        def register(handler: H) -> H:
            if topic in self._subscribed:
                raise MisuseError(f"group {self.group} has a handler for topic {topic!r} already: one per consumer")
            if self._brokers is not None:
                raise MisuseError(f"subscribing to {topic!r} after the start: subscribe first, then start")
            call: Callable[[ReceivedMessage], Any] = handler
            if isinstance(handler, IdempotentHandler | AsyncIdempotentHandler):
                call = handler.bound(self.group)
            function = UserFunction(f"the handler of topic {topic!r}", call, "message")
            self._subscribed[topic] = _Subscribed(Subscription(topic=topic, tags=tag), function)
            return handler

        return register

    # ---- life

    async def start(self) -> Self:
        """Begins to receive. Does not wait for a broker: one that is away is waited for in the background."""
        if self._stopping is not None:
            raise MisuseError("the consumer was stopped: make a new one")
        if self._brokers is not None:
            return self
        if not self._subscribed:
            raise MisuseError(f"group {self.group} subscribes to nothing: use @consumer.subscribe(topic) first")
        self._brokers = Brokers(self.addresses)
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix=f"txmsg-{self.group}")
        # Bounded by the capacities of the links.
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        polling = Polling(
            group=self.group,
            client_id=uuid4().hex,
            subscriptions=tuple(each.subscription for each in self._subscribed.values()),
            invisible_s=self._invisible_s,
        )
        loop = asyncio.get_running_loop()

        def take(link: Link, delivered: Delivered) -> None:
            self._jobs.put_nowait(_Job(link, delivered, loop.time() + self._invisible_s))

        self._links = [
            Link(self._brokers, index, polling, 2 * self._concurrency, take) for index in range(len(self.addresses))
        ]
        self._polls = [asyncio.create_task(self._poll(link)) for link in self._links]
        self._workers = [asyncio.create_task(self._work(place)) for place in range(self._concurrency)]
        self._workers.append(asyncio.create_task(self._watch()))
        return self

    async def stop(self) -> None:
        """Stops receiving, lets handlers finish for up to stop_timeout_s, settles what they did. Idempotent.

        Called by a handler, it begins to stop and returns at once.
        """
        stopping = self.begin_stop()
        if not in_handler.get():
            await asyncio.shield(stopping)

    def begin_stop(self) -> asyncio.Task[None]:
        """Begins what `stop` waits for. To be called on the loop. Idempotent."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        return self._stopping

    async def run(self) -> None:
        """Starts, and returns when `stop` was called and has done its work. Cancelling it stops, too."""
        await self.start()
        try:
            await self._stopped.wait()
        finally:
            await self.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _stop(self) -> None:
        try:
            if self._brokers is None:
                return
            for link in self._links:
                link.stop()
            try:
                async with asyncio.timeout(self._stop_timeout_s):
                    await asyncio.gather(*self._polls)
                    await self._jobs.join()
            except TimeoutError:
                _log.warning(
                    "group %s: handlers still ran after %s s; their messages come again",
                    self.group,
                    self._stop_timeout_s,
                )
            for task in (*self._polls, *self._workers):
                task.cancel()
            await asyncio.gather(*self._polls, *self._workers, return_exceptions=True)
            await asyncio.gather(*(link.flush(FLUSH_TIMEOUT_S) for link in self._links))
            assert self._threads is not None
            self._threads.shutdown(wait=False, cancel_futures=True)
            await self._brokers.close()
        finally:
            self._stopped.set()

    # ---- work

    async def _poll(self, link: Link) -> None:
        while True:
            try:
                await link.run()
                return
            except Exception:  # noqa: BLE001 - a task's root
                _log.exception("group %s: polling broker %s failed unexpectedly", self.group, link.address)
                await asyncio.sleep(1)

    async def _work(self, place: int) -> None:
        while True:
            job = self._handled[place] = await self._jobs.get()
            try:
                await self._handle(job)
            finally:
                self._handled[place] = None
                self._jobs.task_done()

    async def _watch(self) -> None:
        """Says of each handler that takes too long, or hangs, that it does: nothing else would."""
        loop = asyncio.get_running_loop()
        told: list[_Job | None] = [None] * self._concurrency
        while True:
            await asyncio.sleep(min(self._invisible_s / 4, WATCH_INTERVAL_S_MAX))
            late = [job is not None and job.useless_at <= loop.time() for job in self._handled]
            for place, job in enumerate(self._handled):
                if job is not None and late[place] and told[place] is not job:
                    told[place] = job
                    _log.warning(
                        "group %s: the handler of topic %r has held message %s for longer than invisible_s=%g: it is "
                        "given to somebody else, too. %d of %d handlers are late; one that hangs is never ended: give "
                        "its calls timeouts, or raise invisible_s",
                        *(self.group, job.delivered.topic, _id_of(job.delivered), self._invisible_s),
                        *(sum(late), self._concurrency),
                    )

    async def _handle(self, job: _Job) -> None:
        link, delivered, useless_at = job
        if asyncio.get_running_loop().time() >= useless_at:
            _log.warning(
                "group %s: a message waited here for longer than invisible_s=%g and comes again: handlers hang, or "
                "are slow; raise invisible_s, or concurrency if they only wait",
                self.group,
                self._invisible_s,
            )
            link.drop()
            return
        try:
            await self._call(delivered)
        except asyncio.CancelledError:
            link.drop()
            raise
        except Exception as exc:  # noqa: BLE001 - whatever a handler raises refuses the message
            _log.warning(
                "group %s: the handler of topic %r raised for message %s, delivery %d; it comes again after a pause",
                *(self.group, delivered.topic, _id_of(delivered), delivered.attempt),
                exc_info=True,
            )
            link.refuse(delivered.receipt, _text_of(exc))
        else:
            link.ack(delivered.receipt)

    async def _call(self, delivered: Delivered) -> None:
        subscribed = self._subscribed.get(delivered.topic)
        if subscribed is None:
            raise InvalidMessage(f"group {self.group} has no handler for topic {delivered.topic!r}")
        assert self._threads is not None
        token = in_handler.set(True)
        try:
            await subscribed.handler(received(delivered), self._threads)
        finally:
            in_handler.reset(token)


def _id_of(delivered: Delivered) -> str:
    return message_id(UUID(bytes=delivered.transaction_id), delivered.n)


def _text_of(exc: Exception) -> str:
    """The error for a person, in characters that the wire and the database carry."""
    where = "".join(traceback.format_tb(exc.__traceback__, limit=-5))
    text = f"{type(exc).__name__}: {exc}\n{where}"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
