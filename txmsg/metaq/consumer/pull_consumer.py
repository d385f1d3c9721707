"""The pull consumer of a log for threads: the asyncio one on the background loop of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txmsg.consumer.lifecycle import Lifecycle
from txmsg.consumer.options import made_as
from txmsg.errors import MisuseError
from txmsg.message.typed.topic import Topic
from txmsg.metaq.consumer.async_pull_consumer import AsyncPullConsumer
from txmsg.metaq.consumer.polls import PolledBatch
from txmsg.metrics.figures import Figures
from txmsg.runtime.durations import Seconds
from txmsg.runtime.process import LoopThread
from txmsg.wire.start import Start


class PullConsumer(Lifecycle[AsyncPullConsumer]):
    """A member of a group of a log that polls, for programs without asyncio. Parameters are AsyncPullConsumer's."""

    @made_as(AsyncPullConsumer)
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(AsyncPullConsumer(*args, **options))

    def subscribe(self, topic: str | Topic[Any], tag: str = "*") -> None:
        """Subscribe to this topic, too. tag: "*" for all, or tags such as "signup || import". Call it before
        `start`.
        """
        self._core.subscribe(topic, tag)

    def poll(self, timeout_s: Seconds = 1.0, *, count_max: int = 100) -> list[PolledBatch]:
        """Return the next batches, of any of the member's queues: at most count_max; none if nothing arrives in time.

        The batches of the last poll count as processed: their queues may go to other members now. Offsets are stored
        only by `commit`. Bodies are as they are stored. Raises OffsetOutOfRange with missing="error", and CorruptLog.
        """
        return self._running().call(self._core.poll(timeout_s, count_max=count_max))

    def commit(self) -> None:
        """Store the offsets after everything polled so far: it counts as processed."""
        self._running().call(self._core.commit())

    def seek(self, topic: str, queue: int, to: Start) -> None:
        """Continue at this position in a queue that this member owns, and store it.

        To move a group whose members run elsewhere, use `txmsg group seek --log`. Raises MisuseError for a queue that
        it does not own, and the errors of the log, such as BrokerUnavailable: then the queue continues where it was.
        """
        self._running().call(self._core.seek(topic, queue, to))

    def close(self) -> None:
        """Leave the group, so that others take its queues, and end a `poll`. Commits nothing. Idempotent."""
        super().close()

    def pause(self, topic: str | None = None, queue: int | None = None) -> None:
        """Deliver nothing from a queue, or from all queues of a topic that this member owns, until `resume`.

        Without a topic: nothing at all, also of queues that it gets later. Returns at once. In this form, without a
        topic, it may be called before the start.
        """
        if topic is None:
            self._core.pause(None, queue)
        else:
            self._running().call(_called(self._core.pause, topic, queue))

    def resume(self, topic: str | None = None, queue: int | None = None) -> None:
        """End `pause`; without a topic all pauses."""
        if topic is None:
            self._core.resume(None, queue)
        else:
            self._running().call(_called(self._core.resume, topic, queue))

    # ---- what it has

    def _put_figures(self, figures: Figures) -> None:
        """Add its metrics, for `txmsg.metrics.ClientCollector`."""
        self._core._put_figures(figures)

    def queues(self) -> list[tuple[str, int]]:
        """Return the queues that this member owns now: topic and number."""
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
