"""The consumer of a log for threads: the asyncio one on the background loop of the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from txmsg.consumer.lifecycle import Lifecycle
from txmsg.errors import MisuseError
from txmsg.metaq.consumer.async_consumer import AsyncLogConsumer
from txmsg.metaq.consumer.options import Missing
from txmsg.metaq.consumer.polls import PolledBatch
from txmsg.metaq.group.assignment import Strategy
from txmsg.metaq.interface import LogAccess
from txmsg.metrics.figures import Figures
from txmsg.runtime.backoff import RETRIES_MAX
from txmsg.runtime.durations import Seconds
from txmsg.runtime.process import LoopThread
from txmsg.runtime.start import Start
from txmsg.wire.credential import TokenChoice
from txmsg.wire.tls import TlsChoice

if TYPE_CHECKING:
    from txmsg.encryption import Encryption
    from txmsg.tracing import Tracing


class LogConsumer(Lifecycle[AsyncLogConsumer]):
    """A member of a consumer group of a log, for programs without asyncio. Parameters and rules are AsyncLogConsumer's.

    `def` handlers run on threads. `async def` handlers run on txmsg's own loop and must not block it.
    """

    def __init__(
        self,
        log: str | os.PathLike[str] | LogAccess,
        group: str,
        *,
        concurrency: int = 16,
        ordered: bool = False,
        close_timeout_s: Seconds = 30.0,
        start: Start | None = None,
        broadcast: bool | str = False,
        strategy: Strategy | None = None,
        zone: str = "",
        missing: Missing = "earliest",
        retries_max: int = RETRIES_MAX,
        retry_delays_s: Sequence[Seconds] | None = None,
        tls: TlsChoice = None,
        token: TokenChoice = None,
        tracing: Tracing | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        super().__init__(
            AsyncLogConsumer(
                log,
                group,
                concurrency=concurrency,
                ordered=ordered,
                close_timeout_s=close_timeout_s,
                start=start,
                broadcast=broadcast,
                strategy=strategy,
                zone=zone,
                missing=missing,
                retries_max=retries_max,
                retry_delays_s=retry_delays_s,
                tls=tls,
                token=token,
                tracing=tracing,
                encryption=encryption,
            )
        )

    # ---- pull

    def poll(self, timeout_s: Seconds = 1.0, *, count_max: int = 100) -> list[PolledBatch]:
        """The next batches, of any of the member's queues: at most count_max; none if nothing arrives in time.

        The batches of the last poll count as processed: their queues may go to other members now. Offsets are stored
        only by `commit`. Raises OffsetOutOfRange with missing="error", and CorruptLog.
        """
        return self._running().call(self._core.poll(timeout_s, count_max=count_max))

    def commit(self) -> None:
        """Stores that everything polled so far is processed."""
        self._running().call(self._core.commit())

    def seek(self, topic: str, queue: int, to: Start) -> None:
        """Continues at this position in a queue that this member owns, and stores it.

        To move a group whose members run elsewhere, use `txmsg group seek --log`. Raises MisuseError.
        """
        self._running().call(self._core.seek(topic, queue, to))

    def pause(self, topic: str | None = None, queue: int | None = None) -> None:
        """Delivers nothing from a queue, or from all queues of a topic that this member owns, until `resume`.

        Without a topic: nothing at all, also of queues that it gets later. Returns at once; handlers that run are
        finished. In this form, without a topic, it may be called before the start.
        """
        if topic is None:
            self._core.pause(None, queue)
        else:
            self._running().call(_called(self._core.pause, topic, queue))

    def resume(self, topic: str | None = None, queue: int | None = None) -> None:
        """Ends `pause`; without a topic all pauses."""
        if topic is None:
            self._core.resume(None, queue)
        else:
            self._running().call(_called(self._core.resume, topic, queue))

    # ---- what it has

    def _put_figures(self, figures: Figures) -> None:
        """For `txmsg.metrics.ClientCollector`."""
        self._core._put_figures(figures)

    def queues(self) -> list[tuple[str, int]]:
        """The queues that this member owns now: topic and number."""
        return self._running().call(_called(self._core.queues))

    @property
    def missed_count(self) -> int:
        """Messages that this consumer could not fetch: deleted by retention, or marked as missing in the log."""
        return self._core.missed_count

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise MisuseError(f"the consumer of group {self.group} was not started: start it first")
        return self._thread


async def _called(function: Callable[..., Any], *args: object) -> Any:
    return function(*args)
