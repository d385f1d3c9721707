"""Applications under test: they run at the test's broker, or get messages without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from txmsg.client.app.application import Txmsg
from txmsg.client.app.handling import Handling
from txmsg.client.app.router import Subscription
from txmsg.client.async_consumer import AsyncConsumer
from txmsg.consumer.subscriptions import Subscriptions
from txmsg.errors import MisuseError, shown
from txmsg.message import Message, ReceivedMessage, new_transaction_id_bytes
from txmsg.runtime import loops
from txmsg.runtime.threads import DaemonThreads
from txmsg.testing.calling_thread import CallingThread
from txmsg.wire.tags import parse_tags

if TYPE_CHECKING:
    from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
    from txmsg.testing.broker import Broker
    from txmsg.testing.progress import Progress

Overrides = Mapping[Callable[..., Any], Callable[..., Any]]


class AppRun:
    """An application that runs with the broker of a test: `with` or `async with` starts and ends it.

    Afterwards its brokers and dependencies are restored.
    """

    def __init__(self, app: Txmsg, broker: Broker, *, overrides: Overrides | None = None) -> None:
        self.app = app
        self._broker = broker
        self._overrides = overrides or {}
        self._before: tuple[Any, dict[Any, Any]] | None = None

    def __enter__(self) -> Self:
        with self._restored_if_it_fails():
            self.app.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.app.__exit__()
        finally:
            self._restore()

    async def __aenter__(self) -> Self:
        with self._restored_if_it_fails():
            await self.app.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.app.close()
        finally:
            self._restore()

    def wait_until_idle(self, *, dead: int = 0, timeout_s: float | None = None, jump: bool = False) -> None:
        """Wait until its groups have acknowledged all messages of their topics; otherwise fail with a list.

        This includes messages that handlers send to topics of other handlers. dead: the expected number of dead letters
        of all groups. timeout_s, jump: as in `Broker.delivered`; retries of groups that read the log are waited for.
        """
        from txmsg.testing.broker import wait

        __tracebackhide__ = True
        wait(self._looks(dead, timeout_s, jump))

    async def wait_until_idle_async(self, *, dead: int = 0, timeout_s: float | None = None, jump: bool = False) -> None:
        """The same for a coroutine."""
        from txmsg.testing.broker import wait_async

        __tracebackhide__ = True
        await wait_async(self._looks(dead, timeout_s, jump))

    def _looks(self, dead: int, timeout_s: float | None, jump: bool) -> Iterator[None]:
        wanted: list[tuple[str, str]] = []
        of_log: list[tuple[AsyncPushConsumer, list[str]]] = []
        for each in self.app._receivers:
            if isinstance(each.consumer, AsyncConsumer):
                wanted += [(each.consumer.group, topic) for topic in each.topics]
            else:
                of_log.append((each.consumer, each.topics))

        def of_groups_of_log() -> list[Progress]:
            from txmsg.testing.log_progress import progress_of_log  # needs txmsg[metaq]

            return [
                progress
                for consumer, topics in of_log
                for progress in progress_of_log(consumer._require_started(), consumer.group, topics)
            ]

        return self._broker._until_idle(wanted, dead, timeout_s, jump, elsewhere=of_groups_of_log if of_log else list)

    @contextmanager
    def _restored_if_it_fails(self) -> Iterator[None]:
        overrides = self.app.dependency_overrides
        self._before = (self.app.brokers, dict(overrides))
        self.app.brokers = self._broker.address
        overrides.update(self._overrides)
        try:
            yield
        except BaseException:
            self._restore()
            raise

    def _restore(self) -> None:
        assert self._before is not None, "it was entered"
        self.app.brokers, overrides = self._before
        self.app.dependency_overrides.clear()
        self.app.dependency_overrides.update(overrides)


# ---- without a broker


def handle(
    app: Txmsg, *messages: Message | ReceivedMessage, group: str | None = None, overrides: Overrides | None = None
) -> None:
    """Pass messages to the handler of their topic, one after the other, without a broker. `def` handlers run here.

    Uses its middleware, dependencies, payloads and database; a handler with batch= gets lists. Rates and hooks of the
    application are not used; a handler that sends by `tx` needs "memory:", or an application that runs. Raises the
    handler's exceptions, also Reject, Skip and RetryAfter, and Reject for an invalid body. group: needed if several
    groups have a handler of the topic. overrides: replacements of functions of Depends, in addition to
    `app.dependency_overrides`. Raises MisuseError if no handler gets such a message.
    """
    if loops.is_running():
        raise MisuseError("handle() blocks, and was called by a coroutine: write await handle_async(...)")
    CallingThread().run(partial(handle_on, app, messages, group, overrides), app._loop)


async def handle_async(
    app: Txmsg, *messages: Message | ReceivedMessage, group: str | None = None, overrides: Overrides | None = None
) -> None:
    """The same for a coroutine; `def` handlers run on a thread."""
    threads = DaemonThreads(1, name="txmsg-handle")
    try:
        await handle_on(app, messages, group, overrides, threads)
    finally:
        threads.shutdown()


async def handle_on(
    app: Txmsg,
    messages: Sequence[Message | ReceivedMessage],
    group: str | None,
    overrides: Overrides | None,
    threads: Executor,
) -> None:
    """Handle messages as `handle_async` does. threads: run `def` handlers."""
    received = [_received(each) for each in messages]
    subscriptions = [_subscription_of(app, each, group) for each in received]
    if not subscriptions or subscriptions.count(subscriptions[0]) < len(subscriptions):
        topics = ", ".join(sorted({each.topic for each in received})) or "none"
        raise MisuseError(f"handle() is given messages of these topics: {topics}; give it those of one handler")
    subscription = replace(subscriptions[0], rate=None)
    handling = Handling(
        subscription, {**app.dependency_overrides, **(overrides or {})}, app._transactions, threads=threads
    )
    of_group = Subscriptions(str(subscription.group))
    handling.subscribe(of_group)
    functions = [found.function for each in received if (found := of_group.handler_of(each.topic)) is not None]
    try:
        if app._database is not None:
            await app._database.create_tables_by(threads)
        if subscription.batch is None:
            for each, function in zip(received, functions, strict=True):
                await function(each, threads)
        else:
            calls = [function(each, threads) for each, function in zip(received, functions, strict=True)]
            # With return_exceptions, so that all calls have ended before the handling is closed.
            ends = await asyncio.gather(*calls, return_exceptions=True)
            for end in ends:
                if end is not None:
                    raise end
    finally:
        await handling.close()


def _received(message: Message | ReceivedMessage) -> ReceivedMessage:
    """Return the message as a consumer gets it at its first delivery."""
    if isinstance(message, ReceivedMessage):
        return message
    return ReceivedMessage(
        message.topic,
        message.body,
        key=message.key,
        tag=message.tag,
        headers=message.headers,
        queue=0,
        offset=0,
        id_bytes=new_transaction_id_bytes(),
        ordering_key=message.ordering_key,
    )


def _subscription_of(app: Txmsg, message: ReceivedMessage, group: str | None) -> Subscription:
    of_topic = [each for each in app.subscriptions if each.takes(message.topic)]
    found = [
        each
        for each in of_topic
        if (group is None or each.group == group) and parse_tags(each.tag).matches(message.tag)
    ]
    if len(found) == 1:
        return found[0]
    what = f"a message of topic {message.topic!r} with tag {shown(message.tag)}"
    if found:
        groups = ", ".join(sorted(str(each.group) for each in found))
        raise MisuseError(f"{what} is for several groups, {groups}: say which one by group=")
    if of_topic:
        there = ", ".join(sorted(f"{each.group} (tag {each.tag})" for each in of_topic))
    else:
        topics = ", ".join(sorted({topic for each in app.subscriptions for topic in each.topics})) or "none"
        there = f"none of this topic; topics are {topics}"
    raise MisuseError(f"no handler gets {what}{'' if group is None else f' in group {group!r}'}: there are {there}")
