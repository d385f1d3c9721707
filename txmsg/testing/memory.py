"""Messages that were sent to "memory:", and their delivery to handlers. Without a broker or a server."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar, overload

from txmsg.client.app.application import Txmsg
from txmsg.client.app.router import Subscription
from txmsg.client.memory import memory
from txmsg.consumer.failures import Reject, Skip
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage
from txmsg.message.typed.topic import Topic, name_of
from txmsg.runtime import loops
from txmsg.runtime.threads import DaemonThreads
from txmsg.testing.applications import Overrides, handle_on
from txmsg.testing.calling_thread import CallingThread
from txmsg.wire.brokers import MEMORY
from txmsg.wire.tags import parse_tags

P = TypeVar("P")

# Handlers that send to each other's topics would otherwise never end.
_ROUNDS_MAX = 100


class Memory:
    """The messages that producers and applications of this process have sent to "memory:". A new one is empty.

    For tests of services that send: transactions run in the real database, and take no longer than without txmsg.
    Retries, back-off, delays and crashes of processes need tests with a broker.
    """

    address = MEMORY
    """The value for brokers=, or TXMSG_BROKERS."""

    def __init__(self) -> None:
        self._handled: set[tuple[str | None, str]] = set()
        memory().clear()

    def clear(self) -> None:
        """Forget all messages sent and handled."""
        self._handled.clear()
        memory().clear()

    @overload
    def sent(self, topic: Topic[P]) -> list[ReceivedMessage[P]]: ...
    @overload
    def sent(self, topic: str | None = None) -> list[ReceivedMessage]: ...
    def sent(self, topic: str | Topic[Any] | None = None) -> list[ReceivedMessage[Any]]:
        """Return the messages of a topic, or of all, in the order of their commits, including delayed ones.

        Their bodies are as they were sent, so perhaps encrypted. Those of a `Topic` have their payload; raises
        InvalidMessage for one that is not valid.
        """
        found = [each for each in memory().sent() if topic is None or each.topic == name_of(topic)]
        return [topic.received(each) for each in found] if isinstance(topic, Topic) else found

    def undecided(self) -> list[ReceivedMessage]:
        """Return the half messages of transactions without an outcome."""
        return memory().undecided()

    def deliver(self, app: Txmsg, *, overrides: Overrides | None = None) -> int:
        """Deliver the messages to an application's handlers, with those that these send, until none is left.

        Each group handles each message once, in the order of commits; a handler with batch= gets lists. A handler's
        exception is raised, and its message, or its list, is handled again by the next call: not after Reject, nor
        after Skip, which is not raised. `def` handlers run on this thread. Returns how many messages were handled.
        overrides: as of `handle`. Hooks of the application are not called.
        """
        if loops.is_running():
            raise MisuseError("deliver() blocks, and was called by a coroutine: write await deliver_async(...)")
        return CallingThread().run(partial(self._deliver, app, overrides), app._loop)

    async def deliver_async(self, app: Txmsg, *, overrides: Overrides | None = None) -> int:
        """The same for a coroutine; `def` handlers run on a thread."""
        threads = DaemonThreads(1, name="txmsg-handle")
        try:
            return await self._deliver(app, overrides, threads)
        finally:
            threads.shutdown()

    async def _deliver(self, app: Txmsg, overrides: Overrides | None, threads: Executor) -> int:
        count = 0
        for _ in range(_ROUNDS_MAX):
            handled = sum([await self._deliver_to(app, each, overrides, threads) for each in app._chosen()])
            if not handled:
                return count
            count += handled
        raise MisuseError(f"handlers send on without end: {count} messages were handled, in {_ROUNDS_MAX} rounds")

    async def _deliver_to(
        self, app: Txmsg, subscription: Subscription, overrides: Overrides | None, threads: Executor
    ) -> int:
        tags = parse_tags(subscription.tag)
        fresh = [
            each
            for each in self.sent()
            if subscription.takes(each.topic)
            and tags.matches(each.tag)
            and (subscription.group, each.id) not in self._handled
        ]
        size = subscription.batch or 1
        for at in range(0, len(fresh), size):
            part = fresh[at : at + size]
            try:
                await handle_on(app, part, subscription.group, overrides, threads)
            except Skip:  # a broker would take it as acknowledged
                pass
            except Reject:  # and this for a dead letter
                self._note(subscription, part)
                raise
            self._note(subscription, part)
        return len(fresh)

    def _note(self, subscription: Subscription, handled: Sequence[ReceivedMessage]) -> None:
        self._handled.update((subscription.group, each.id) for each in handled)
