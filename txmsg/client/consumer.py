"""The consumer for threads: the asyncio one on the background loop of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from txmsg.client.async_consumer import AsyncConsumer
from txmsg.consumer.failures import Retry
from txmsg.consumer.lifecycle import Lifecycle
from txmsg.consumer.options import made_as
from txmsg.message import ReceivedMessage
from txmsg.message.typed.topic import Topic
from txmsg.metrics.figures import Figures
from txmsg.runtime.process import shared_loop
from txmsg.runtime.signals import stopped_by_signals, wait_for

P = TypeVar("P")
R = TypeVar("R")
H = TypeVar("H", bound=Callable[[ReceivedMessage], Any])


class Consumer(Lifecycle[AsyncConsumer]):
    """A member of a consumer group, for programs without asyncio. Parameters and rules are AsyncConsumer's.

    `def` handlers run on threads. `async def` handlers run on txmsg's own loop and must not block it.
    """

    @made_as(AsyncConsumer)
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(AsyncConsumer(*args, **options))
        self.hooks = self._core.hooks

    @overload
    def subscribe(
        self, topic: Topic[P], tag: str = "*", *, retry: Retry | None = None
    ) -> Callable[[Callable[[ReceivedMessage[P]], R]], Callable[[ReceivedMessage[P]], R]]: ...
    @overload
    def subscribe(self, topic: str, tag: str = "*", *, retry: Retry | None = None) -> Callable[[H], H]: ...
    def subscribe(self, topic: str | Topic[Any], tag: str = "*", *, retry: Retry | None = None) -> Callable[[Any], Any]:
        """Subscribe to a topic, and decorate its handler: `handler(message)`, def or async def.

        topic: its name, or a Topic: then messages have payloads, and an invalid one is a dead letter at once.
        tag: "*" for all, or tags such as "signup || import". retry: when a message whose handler raised is redelivered;
        default: the group's back-off. One handler per topic and consumer; subscribe before `start`.
        """
        return self._core.subscribe(topic, tag, retry=retry)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that have a handler."""
        return self._core.topics

    def run(self) -> None:
        """Start, receive until `stop` is called or until SIGINT or SIGTERM, and close.

        Signals are caught only on the main thread, and only if nothing else handles them. A second one acts as it did
        before `run`.
        """
        with stopped_by_signals(self.stop):
            self.start()
            wait_for(self._stop_wanted)
        self.close()

    def stop(self) -> None:
        """End `run`. Returns at once. May be called by any thread, also by a handler, and before `run`.

        Without `run` it has no effect: `close` is what ends a consumer that was started.
        """
        self._stop_wanted.set()

    def pause(self) -> None:
        """Stop receiving until `resume`; received messages are still handled. Returns at once. From any thread.

        Other members of the group continue; `stop_group` stops them all.
        """
        self._core.pause()

    def resume(self) -> None:
        """End `pause`."""
        self._core.resume()

    def stop_group(self) -> None:
        """Stop delivery to its group, in all processes, until `start_group`; as `txmsg group stop` does.

        Received messages are still handled. Brokers stop within two seconds. The user must be allowed to administer the
        group. Raises MisuseError before `start`, and the errors of a call.
        """
        shared_loop().call(self._core.stop_group())

    def start_group(self) -> None:
        """End `stop_group`, or `txmsg group stop`."""
        shared_loop().call(self._core.start_group())

    def _put_figures(self, figures: Figures) -> None:
        """Add its figures; for `txmsg.metrics.ClientCollector`."""
        self._core._put_figures(figures)
