"""The consumer for threads: the asyncio one on the background loop of the process."""

from __future__ import annotations

from typing import Any

from txmsg.client.async_consumer import AsyncConsumer
from txmsg.consumer.lifecycle import Lifecycle
from txmsg.consumer.options import made_as
from txmsg.metrics.figures import Figures
from txmsg.runtime.process import shared_loop


class Consumer(Lifecycle[AsyncConsumer]):
    """A member of a consumer group, for programs without asyncio. Parameters and rules are AsyncConsumer's.

    `def` handlers run on threads. `async def` handlers run on txmsg's own loop and must not block it.
    """

    @made_as(AsyncConsumer)
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(AsyncConsumer(*args, **options))
        self.hooks = self._core.hooks

    def pause(self) -> None:
        """Stops receiving until `resume`; received messages are still handled. Returns at once. From any thread.

        Other members of the group continue; `stop_group` stops them all.
        """
        self._core.pause()

    def resume(self) -> None:
        """Ends `pause`."""
        self._core.resume()

    def stop_group(self) -> None:
        """Stops delivery to its group, in all processes, until `start_group`; as `txmsg group stop` does.

        Received messages are still handled. Brokers stop within two seconds. The user must be allowed to administer the
        group. Raises MisuseError before `start`, and the errors of a call.
        """
        shared_loop().call(self._core.stop_group())

    def start_group(self) -> None:
        """Ends `stop_group`, or `txmsg group stop`."""
        shared_loop().call(self._core.start_group())

    def _put_figures(self, figures: Figures) -> None:
        """For `txmsg.metrics.ClientCollector`."""
        self._core._put_figures(figures)
