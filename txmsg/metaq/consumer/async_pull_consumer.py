"""The pull consumer of a log for asyncio, which the one for threads runs, too."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from txmsg.consumer.options import ConsumerOptions
from txmsg.errors import MisuseError
from txmsg.message.typed.topic import Topic
from txmsg.metaq.consumer.lane import Lane
from txmsg.metaq.consumer.member import AsyncMember, LogChoice
from txmsg.metaq.consumer.options import LogOptions, Missing
from txmsg.metaq.consumer.polls import LanePolls, PolledBatch, packed_headers_of
from txmsg.metaq.group.assignment import Strategy
from txmsg.metaq.interface import LogAccess, LogGroupSettings, LogQueue, offsets_of
from txmsg.metrics.figures import Figures
from txmsg.runtime.durations import Seconds, in_seconds
from txmsg.runtime.logs import EventLog
from txmsg.wire.credential import TokenChoice
from txmsg.wire.start import Start, check_start
from txmsg.wire.tls import TlsChoice

if TYPE_CHECKING:
    from txmsg.tracing import Tracing

_log = EventLog(__name__)


class AsyncPullConsumer(AsyncMember):
    """A member of a consumer group of a log that polls batches, and stores its offsets by `commit`.

    For handlers use `@app.subscribe(..., source="log")`. Each queue belongs to one member, which gets its messages in
    order. log: the directory of a log, the address of its server ("host:port", "unix:/path"), a log in Kafka
    ("kafka://host:port"), or an open log of `open_log`.
    group: the group whose offsets it uses.
    start: where the group begins in a topic that is new to it: `Start.earliest()` (the default), `Start.latest()` or
        `Start.at(time)`. An existing group continues where it was, and new queues begin at their first message.
    broadcast: every member gets every message. True for a process that starts at the latest message each time; the
        name of an instance ("host-1") for one that continues where it was. The member is its own group, GROUP%INSTANCE.
    strategy: which member owns which queue; the same in all members. Default: `averaged`, equal shares.
    zone: where this member runs, such as a data centre. If the log's server has a zone (`--zone`), members of the same
        zone own all queues while there are any; the others stand by.
    missing: what to do if a queue's next offset is no longer kept: continue at the "earliest" one kept (default), at
        the "latest", or raise an "error" at `poll`. Missed messages are counted and logged.
    tls, token: for the log's server, as for `AsyncConsumer`.
    tracing: with `txmsg.tracing.Tracing()`, OpenTelemetry traces polls that return messages.
    """

    def __init__(
        self,
        log: LogChoice,
        group: str,
        *,
        start: Start | None = None,
        broadcast: bool | str = False,
        strategy: Strategy | None = None,
        zone: str = "",
        missing: Missing = "earliest",
        tls: TlsChoice = None,
        token: TokenChoice = None,
        tracing: Tracing | None = None,
    ) -> None:
        options = ConsumerOptions(start=start, broadcast=broadcast, tls=tls, token=token, tracing=tracing)
        super().__init__(log, group, options, LogOptions(strategy=strategy, zone=zone, missing=missing))

    def subscribe(self, topic: str | Topic[Any], tag: str = "*") -> None:
        """Subscribe to this topic, too. tag: "*" for all, or tags such as "signup || import". Call it before
        `start`.
        """
        self._subscriptions.add(topic, tag)

    async def poll(self, timeout_s: Seconds = 1.0, *, count_max: int = 100) -> list[PolledBatch]:
        """Return the next batches, of any of the member's queues: at most count_max; none if nothing arrives in time.

        The batches of the last poll count as processed: their queues may go to other members now. Offsets are stored
        only by `commit`. Bodies are as they are stored. Raises OffsetOutOfRange with missing="error", and CorruptLog.
        """
        begun_at_ns = time.time_ns()
        self._require_started()
        batches = await self._polls.poll(in_seconds(timeout_s), count_max)
        if self._tracing is not None and batches:
            topics = {batch.topic for batch in batches}
            self._tracing.received(self.group, topics, partial(packed_headers_of, batches), begun_at_ns)
        return batches

    async def commit(self) -> None:
        """Store the offsets after everything polled so far: it counts as processed."""
        self._require_started()
        await self._polls.commit()

    async def seek(self, topic: str, queue: int, to: Start) -> None:
        """Continue at this position in a queue that this member owns, and store it.

        To move a group whose members run elsewhere, use `txmsg group seek --log`. Raises MisuseError for a queue that
        it does not own, and the errors of the log, such as BrokerUnavailable: then the queue continues where it was.
        """
        access = self._require_started()
        lane = self._lane(topic, queue)
        offsets = await asyncio.get_running_loop().run_in_executor(
            self._threads, offsets_of, access, [lane.queue], check_start(to)
        )
        self._polls.forget_queue(lane.queue)
        await self._balance.seek(lane, offsets[lane.queue])

    async def close(self) -> None:
        """Leave the group, so that others take its queues, and end a `poll`. Commits nothing. Idempotent."""
        await super().close()

    def pause(self, topic: str | None = None, queue: int | None = None) -> None:
        """Deliver nothing from a queue, or from all queues of a topic that this member owns, until `resume`.

        Without a topic: nothing at all, also of queues that it gets later. Returns at once. In this form, without a
        topic, it may be called before the start and by any thread.
        """
        self._pause_or_resume_some(topic, queue, True)

    def resume(self, topic: str | None = None, queue: int | None = None) -> None:
        """End `pause`; without a topic all pauses."""
        self._pause_or_resume_some(topic, queue, False)

    def _pause_or_resume_some(self, topic: str | None, queue: int | None, is_paused: bool) -> None:
        if topic is not None:
            self._set_paused(self._lanes(topic, queue), is_paused)
            return
        if queue is not None:
            raise MisuseError(f"queue {queue} of which topic? Give pause(topic, {queue})")
        self._pause_or_resume(is_paused)

    def _lanes(self, topic: str, queue: int | None) -> list[Lane]:
        self._require_started()
        if queue is not None:
            return [self._lane(topic, queue)]
        return [lane for queue_id, lane in self._balance.lanes.items() if queue_id.topic == topic]

    def _lane(self, topic: str, queue: int) -> Lane:
        lane = self._balance.lanes.get(LogQueue(topic, queue))
        if lane is None:
            raise MisuseError(
                f"topic {topic} queue {queue} is not owned by this member of group {self.group}: `consumer.queues()` "
                "lists its queues"
            )
        return lane

    def _put_figures(self, figures: Figures) -> None:
        """Add its metrics, for `txmsg.metrics.ClientCollector`."""
        self._counts.put_figures(figures, self.group, held=0)

    def _log_started(self, topics: str) -> None:
        _log.info("member.polls", "group %(group)s polls %(topics)s", group=self.group, topics=topics)

    def _open_reader(self, access: LogAccess) -> None:
        self._polls = LanePolls(self._balance, self._room)

    async def _close_reader(self) -> None:
        """Do nothing: polls have no tasks to end."""

    def _stop_reading(self) -> None:
        self._polls.is_ending = True
        self._polls.ready.set()
        self._polls.end_poll()

    def _apply_settings(self, settings: LogGroupSettings) -> None:
        self._polls.is_group_stopped = settings.stopped

    def _on_ready(self, lane: Lane) -> None:
        if lane.has_batches:
            self._polls.ready.set()

    def _on_error(self) -> None:
        self._polls.ready.set()
