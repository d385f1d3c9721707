"""A subscription as the handler of a consumer, with its dependencies, lists, processes, rate and middleware."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Any

from txmsg.client.app.batches import Batches, BatchesOfQueues
from txmsg.client.app.dependencies import Injected, Overrides
from txmsg.client.app.middleware import within_lists
from txmsg.client.app.processes import HandlerProcesses
from txmsg.client.app.router import Middleware, Subscription, injected_of, payloads_of
from txmsg.client.app.transactions import NO_DATABASE, Transactions
from txmsg.client.receiving.idempotent import Idempotent
from txmsg.consumer.handler_rate import HandlerRate
from txmsg.consumer.subscriptions import GroupHandler, Subscriptions
from txmsg.message import ReceivedMessage
from txmsg.message.typed.topic import Topic
from txmsg.runtime.threads import DaemonThreads
from txmsg.runtime.user_function import NotBegun, UserFunction, is_coroutine

Handle = Callable[[ReceivedMessage], Any]


class Handling:
    """The handler that a consumer gets for a subscription. Belongs to one loop; closed when the consumer is.

    transactions: makes handlers that ask for a session, or for `tx`. threads: where `def` handlers of lists run;
    default: on threads of its own. group: whose progress it is, if it is not the subscription's: that of a consumer
    that broadcasts. begins: asked before a list is handled, or a message that has waited for `rate=`; if it returns
    False, the messages are redelivered. Raises MisuseError for a handler that cannot be made.
    """

    def __init__(
        self,
        subscription: Subscription,
        overrides: Overrides,
        transactions: Transactions = NO_DATABASE,
        *,
        threads: Executor | None = None,
        group: str | None = None,
        begins: Callable[[], bool] = lambda: True,
    ) -> None:
        self.of = subscription
        self._group = group or subscription.group or ""
        self._transactions = transactions
        self._given_threads = threads
        self._begins = begins
        self._batches: Batches | BatchesOfQueues | None = None
        self._processes: HandlerProcesses | None = None
        self._threads: DaemonThreads | None = None
        self._closed = threading.Event()
        injected = injected_of(subscription, overrides)
        self.payloads = payloads_of(subscription, injected)
        """By topic: the Topic if it knows its payloads, the type that the handler asks for, or None."""
        pace = None if subscription.rate is None else HandlerRate(subscription.rate)
        handle = self._innermost(injected, pace)
        if pace is not None and self._batches is None:
            handle = _paced(handle, pace, self._closed, begins)
        # Lists of `def` handlers have their middleware inside, on the handler's thread (middleware.py). Around `add`,
        # it would be entered on the loop and might block it.
        if subscription.middleware and (subscription.batch is None or injected.is_coroutine):
            handle = _within(handle, subscription.middleware)
        self.handle = handle

    def _innermost(self, injected: Injected, pace: HandlerRate | None) -> Handle:
        subscription = self.of
        handler, is_list = subscription.handler, subscription.batch is not None
        if isinstance(handler, GroupHandler):
            bound = handler.bound(self._group)
            if not injected.is_plain:
                bound.handler = injected.on_loop if is_coroutine(bound) else injected.on_thread
            return self._in_lists(bound.handle_list, pace) if isinstance(bound, Idempotent) and is_list else bound
        if injected.is_in_transaction:
            return self._transactions.handler(handler, injected, self._group)
        call: Callable[..., Any] = injected.on_loop if injected.is_coroutine else injected.on_thread
        if is_list:
            return self._in_lists(call, pace)
        if subscription.runs_in == "processes":
            self._processes = HandlerProcesses(handler, subscription.payload_types, injected.overridden)
            return self._processes
        return handler if injected.is_plain else call

    def _in_lists(self, call: Callable[[list[ReceivedMessage]], Any], pace: HandlerRate | None) -> Handle:
        subscription = self.of
        assert subscription.batch is not None, "who calls this has looked"
        if subscription.middleware and not is_coroutine(call):
            call = within_lists(call, subscription.middleware)
        threads = self._given_threads
        if threads is None:
            threads = self._threads = DaemonThreads(subscription.concurrency, name=f"txmsg-{subscription.group}")
        function = UserFunction(f"the handler of {subscription.title}", call, "messages")
        kind = BatchesOfQueues if subscription.source == "log" else Batches
        self._batches = kind(
            subscription.batch,
            subscription.concurrency,
            lambda messages: function(messages, threads),
            name=", ".join(subscription.topics),
            pace=pace,
            begins=self._begins,
        )
        return self._batches.add

    def subscribe(self, subscriptions: Subscriptions) -> None:
        """Have a consumer's subscriptions pass their messages to `handle`."""
        for topics, payload in self.payloads.items():
            of_topics = payload if isinstance(payload, Topic) else topics
            payload_type = payload if isinstance(payload, type) else None
            subscriptions.add(of_topics, self.of.tag, self.of.retry, payload_type=payload_type)(self.handle)

    async def close(self) -> None:
        """End the work that the consumer has not waited for."""
        self._closed.set()
        if self._batches is not None:
            await self._batches.close()
        if self._threads is not None:
            self._threads.shutdown()
        if self._processes is not None:
            await asyncio.to_thread(self._processes.close)


def _paced(handle: Handle, pace: HandlerRate, closed: threading.Event, begins: Callable[[], bool]) -> Handle:
    if is_coroutine(handle):

        async def handle_on_loop(message: ReceivedMessage) -> Any:
            if wait_s := pace.take_tokens():
                await asyncio.sleep(wait_s)
                if not begins():
                    raise NotBegun
            return await handle(message)

        return handle_on_loop

    def handle_on_thread(message: ReceivedMessage) -> Any:
        if wait_s := pace.take_tokens():
            if closed.wait(wait_s):
                raise RuntimeError("the application has ended, and another consumer gets what waited for its turn")
            if not begins():
                raise NotBegun
        return handle(message)

    return handle_on_thread


def _within(handle: Handle, middleware: tuple[Middleware, ...]) -> Handle:
    if is_coroutine(handle):

        async def handle_on_loop(message: ReceivedMessage) -> Any:
            with ExitStack() as entered:
                for around in middleware:
                    entered.enter_context(around(message))
                return await handle(message)

        return handle_on_loop

    def handle_on_thread(message: ReceivedMessage) -> Any:
        with ExitStack() as entered:
            for around in middleware:
                entered.enter_context(around(message))
            return handle(message)  # if that is a coroutine, the consumer awaits it
        return None

    return handle_on_thread
