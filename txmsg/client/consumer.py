"""The consumer for threads: the asyncio one on the background loop of the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txmsg.client.async_consumer import AsyncConsumer
from txmsg.client.hooks import ConsumerHooks
from txmsg.client.receiving.room import OUT_SIZE_BYTES_MAX
from txmsg.consumer.lifecycle import Lifecycle
from txmsg.metrics.figures import Figures
from txmsg.runtime.durations import Seconds
from txmsg.runtime.process import shared_loop
from txmsg.runtime.start import Start
from txmsg.wire.credential import TokenChoice
from txmsg.wire.tls import TlsChoice

if TYPE_CHECKING:
    from txmsg.encryption import Encryption
    from txmsg.tracing import Tracing


class Consumer(Lifecycle[AsyncConsumer]):
    """A member of a consumer group, for programs without asyncio. Parameters and rules are AsyncConsumer's.

    `def` handlers run on threads. `async def` handlers run on txmsg's own loop and must not block it.
    """

    def __init__(
        self,
        brokers: str | Sequence[str | Sequence[str]] | None = None,
        *,
        group: str,
        concurrency: int = 16,
        visibility_timeout_s: Seconds = 60.0,
        close_timeout_s: Seconds = 30.0,
        prefetch_bytes: int = OUT_SIZE_BYTES_MAX,
        start: Start | None = None,
        broadcast: bool | str = False,
        tls: TlsChoice = None,
        token: TokenChoice = None,
        hooks: ConsumerHooks | None = None,
        tracing: Tracing | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        super().__init__(
            AsyncConsumer(
                brokers,
                group=group,
                concurrency=concurrency,
                visibility_timeout_s=visibility_timeout_s,
                close_timeout_s=close_timeout_s,
                prefetch_bytes=prefetch_bytes,
                start=start,
                broadcast=broadcast,
                tls=tls,
                token=token,
                hooks=hooks,
                tracing=tracing,
                encryption=encryption,
            )
        )
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
