"""The consumer of a log for asyncio, which the sync one runs, too: by handlers (push), or by `poll` (pull).

Delivery is at least once: after a crash, up to half a second of handled messages is redelivered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from txmsg.consumer.counts import ConsumerCounts
from txmsg.consumer.lifecycle import AsyncLifecycle
from txmsg.consumer.options import CLOSE_TIMEOUT_S, CONCURRENCY, ConsumerOptions
from txmsg.errors import BrokerUnavailable, MisuseError, TxmsgError
from txmsg.logs import EventLog
from txmsg.metaq.consumer.balance import Balance
from txmsg.metaq.consumer.fetcher import Fetcher
from txmsg.metaq.consumer.lane import Lane
from txmsg.metaq.consumer.options import LogOptions, Missing
from txmsg.metaq.consumer.polls import PolledBatch, Polls, packed_headers_of
from txmsg.metaq.consumer.retries import backoff_of
from txmsg.metaq.consumer.workers import LaneWorkers
from txmsg.metaq.group.assignment import Strategy, averaged
from txmsg.metaq.interface import LogAccess, LogQueue, offsets_of
from txmsg.metaq.location import open_log
from txmsg.metrics.figures import Figures
from txmsg.runtime.backoff import RETRIES_MAX
from txmsg.runtime.durations import Seconds, in_seconds
from txmsg.runtime.start import Start, check_start
from txmsg.runtime.threads import DaemonThreads
from txmsg.wire.credential import TokenChoice
from txmsg.wire.tls import TlsChoice

if TYPE_CHECKING:
    from txmsg.encryption import Encryption
    from txmsg.tracing import Tracing

_log = EventLog(__name__)

BALANCE_S = 0.5
"""Seconds between two looks at who is in the group; offsets are stored as often."""
RETRY_S = 5.0
"""Seconds until what failed for no reason that txmsg knows is tried again."""
_IDLE_S = 0.05


class AsyncLogConsumer(AsyncLifecycle):
    """A member of a consumer group of a log. Each queue belongs to one member, which gets its messages in order.

    log: the directory of a log, the address of its server ("host:port", "unix:/path"), or an open log of `open_log`.
    group: the group whose offsets it uses.
    concurrency: the number of queues whose handlers run at the same time, for `def` and for `async def` handlers each;
        `def` handlers run on threads, `async def` ones on the loop.
    start: where the group begins in a topic that is new to it: `Start.earliest()` (the default), `Start.latest()` or
        `Start.at(time)`. An existing group continues where it was, and new queues begin at their first message.
    broadcast: every member gets every message. True for a process that starts at the latest message each time; the
        name of an instance ("host-1") for one that continues where it was. The member is its own group, GROUP%INSTANCE.
    strategy: which member owns which queue; the same in all members. Default: `averaged`, equal shares.
    zone: where this member runs, such as a data centre. If the log's server has a zone (`--zone`), members of the same
        zone own all queues while there are any; the others stand by.
    missing: what to do if a queue's next offset is no longer kept: continue at the "earliest" one kept (default), at
        the "latest", or stop with an "error". Missed messages are counted and logged.
    close_timeout_s: how long `close` waits for handlers.
    tls, token: for the log's server, as for `AsyncConsumer`.
    tracing: with `txmsg.tracing.Tracing()`, OpenTelemetry traces handlers, and polls that return messages.
    encryption: decrypts bodies for the handlers, such as `txmsg.encryption.AesGcm`. `poll` returns bodies as stored.

    Push: a handler for each topic. If it raises, the message is retried after the group's back-off (retry_delays_s: 1 s
    5 s 10 s 30 s 1 m ... 2 h) through %RETRY%GROUP, so after later ones; after retries_max it goes to %DLQ%GROUP. With
    `ordered` its queue waits meanwhile. Pull: no handlers, but `poll` and `commit`.
    """

    pulls = True

    def __init__(
        self,
        log: str | os.PathLike[str] | LogAccess,
        group: str,
        *,
        concurrency: int = CONCURRENCY,
        ordered: bool = False,
        close_timeout_s: Seconds = CLOSE_TIMEOUT_S,
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
        options = ConsumerOptions(
            concurrency=concurrency,
            close_timeout_s=close_timeout_s,
            start=start,
            broadcast=broadcast,
            tls=tls,
            token=token,
            tracing=tracing,
            encryption=encryption,
        )
        super().__init__(group, options)
        self._where = log
        self._credential: dict[str, Any] = {"tls": tls, "token": token}
        self._is_passing = broadcast is True
        self._options = LogOptions(ordered=ordered, strategy=strategy, zone=zone, missing=missing)
        self._backoff = backoff_of(retries_max, retry_delays_s)
        self._clock: Callable[[], float] = time.time
        self._balance_s = BALANCE_S

    def _begin(self) -> None:
        super()._begin()
        self._counts = ConsumerCounts()
        self._is_paused = False
        self._access: LogAccess | None = None

    def _put_figures(self, figures: Figures) -> None:
        """For `txmsg.metrics.ClientCollector`."""
        lanes = [] if self._access is None else list(self._balance.lanes.values())
        self._counts.put(figures, self.group, held=sum(lane.held_count for lane in lanes))
        running = [] if self._access is None else self._workers.running()
        self._subscriptions.put_figures(figures, (run.handler for run in running))

    def _set_apart(self, topic: str, *, concurrency: int, list_count: int) -> None:
        """Gives the handler of a topic a concurrency of its own, and lists; for applications, before the start."""
        handler = self._subscriptions.handlers[topic]
        handler.concurrency, handler.list_count = concurrency, list_count

    # ---- life

    async def _open(self) -> None:
        self._threads = DaemonThreads(2, name=f"txmsg-log-{self.group}")
        self._member_thread = DaemonThreads(1, name=f"txmsg-member-{self.group}")
        try:
            access = await self._opened()
        except BaseException:
            self._threads.shutdown()
            self._member_thread.shutdown()
            raise
        handlers = self._subscriptions.handlers
        self._balance = Balance(
            access,
            self.group,
            self._subscriptions.wanted,
            start=self._start,
            strategy=self._options.strategy or averaged,
            zone=self._options.zone,
            reads_retries=bool(handlers),
            list_counts={topic: handler.list_count for topic, handler in handlers.items()},
            thread=self._member_thread,
            on_ready=self._on_ready,
        )
        self._balance.is_paused = self._is_paused
        self._fetcher = Fetcher(
            access,
            self._balance.lanes,
            self.group,
            missing=self._options.missing,
            are_polled=not handlers,
            thread=self._threads,
            clock=self._now,
        )
        self._workers = LaneWorkers(
            access,
            self.group,
            handlers,
            concurrency=self._concurrency,
            backoff=self._backoff,
            ordered=self._options.ordered,
            threads=self._threads,
            clock=self._now,
            counts=self._counts,
        )
        self._polls = Polls(self._balance, self._workers.room)
        self._access = access  # last: with it, other threads look at all the above for figures
        self._loops = [
            asyncio.create_task(self._repeat(self._balance_once), name=f"txmsg-balance-{self.group}"),
            asyncio.create_task(self._repeat(self._fetch_once), name=f"txmsg-fetch-{self.group}"),
        ]

    async def _opened(self) -> LogAccess:
        where = self._where
        if not isinstance(where, str | os.PathLike):
            return where
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, partial(open_log, where, **self._credential)
        )

    async def _close(self) -> None:
        assert self._access is not None
        self._workers.is_stopping = True
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._polls.is_ending = True
        self._polls.ready.set()
        self._polls.end()
        if not await self._balance.leave(self.close_timeout_s):
            _log.warning(
                "consumer.closed_early",
                "group %(group)s: handlers still ran after %(timeout_s)s s; their messages are redelivered",
                group=self.group,
                timeout_s=self.close_timeout_s,
            )
        await self._workers.close()
        await self._close_log(self._access)
        self._threads.shutdown()
        self._member_thread.shutdown()

    async def _close_log(self, access: LogAccess) -> None:
        def close() -> None:
            if self._is_passing:
                _delete_passing(access, self.group)
            if access is not self._where:
                access.close()

        await asyncio.get_running_loop().run_in_executor(self._member_thread, close)

    # ---- in the background

    def _now(self) -> float:
        return self._clock()

    async def _repeat(self, once: Callable[[], Any]) -> None:
        told = ""
        while True:
            try:
                await once()
                told = ""
            except (TxmsgError, OSError) as exc:
                self._counts.failed_calls += 1
                if str(exc) != told:
                    level = logging.WARNING if isinstance(exc, BrokerUnavailable) else logging.ERROR
                    _log.log(
                        level,
                        "member.retries",
                        "group %(group)s is interrupted, and retries: %(error)s",
                        group=self.group,
                        error=exc,
                    )
                told = str(exc)
                await asyncio.sleep(self._balance_s)
            except Exception:  # noqa: BLE001 - the root of a task, where a strategy of the user's may have failed
                self._counts.failed_calls += 1
                _log.exception("member.failed", "group %(group)s is interrupted, and retries", group=self.group)
                await asyncio.sleep(RETRY_S)

    async def _balance_once(self) -> None:
        await self._balance.step()
        for lane in list(self._balance.lanes.values()):
            self._on_ready(lane)  # what was not due before may be due
        await asyncio.sleep(self._balance_s)

    async def _fetch_once(self) -> None:
        ready = await self._fetcher.step()
        for lane in ready:
            self._on_ready(lane)
        if any(lane.error for lane in self._balance.lanes.values()):
            self._polls.ready.set()
        if not ready and not self._fetcher.has_waited:
            self._workers.room.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_S):
                    await self._workers.room.wait()

    def _on_ready(self, lane: Lane) -> None:
        if self._subscriptions.handlers:
            self._workers.put(lane)
        elif lane.has_batches:
            self._polls.ready.set()

    # ---- pull

    async def poll(self, timeout_s: Seconds = 1.0, *, count_max: int = 100) -> list[PolledBatch]:
        """The next batches, of any of the member's queues: at most count_max; none if nothing arrives in time.

        The batches of the last poll count as processed: their queues may go to other members now. Offsets are stored
        only by `commit`. Raises OffsetOutOfRange with missing="error", and CorruptLog.
        """
        begun_at_ns = time.time_ns()
        batches = await self._pulled().poll(in_seconds(timeout_s), count_max)
        if self._tracing is not None and batches:
            topics = {batch.topic for batch in batches}
            self._tracing.received(self.group, topics, partial(packed_headers_of, batches), begun_at_ns)
        return batches

    async def commit(self) -> None:
        """Stores that everything polled so far is processed."""
        await self._pulled().commit()

    async def seek(self, topic: str, queue: int, to: Start) -> None:
        """Continues at this position in a queue that this member owns, and stores it.

        To move a group whose members run elsewhere, use `txmsg group seek --log`. Raises MisuseError.
        """
        access = self._require_started()
        lane = self._lane(topic, queue)
        offsets = await asyncio.get_running_loop().run_in_executor(
            self._threads, offsets_of, access, [lane.queue], check_start(to)
        )
        self._polls.forget(lane.queue)
        await self._balance.seek(lane, offsets[lane.queue])

    def pause(self, topic: str | None = None, queue: int | None = None) -> None:
        """Delivers nothing from a queue, or from all queues of a topic that this member owns, until `resume`.

        Without a topic: nothing at all, also of queues that it gets later. Returns at once; handlers that run are
        finished. In this form, without a topic, it may be called before the start and by any thread.
        """
        self._pause_or_resume(topic, queue, True)

    def resume(self, topic: str | None = None, queue: int | None = None) -> None:
        """Ends `pause`; without a topic all pauses."""
        self._pause_or_resume(topic, queue, False)

    def _pause_or_resume(self, topic: str | None, queue: int | None, is_paused: bool) -> None:
        if topic is not None:
            self._set_paused(self._lanes(topic, queue), is_paused)
            return
        if queue is not None:
            raise MisuseError(f"queue {queue} of which topic? Give pause(topic, {queue})")
        self._is_paused = is_paused
        if self._loop is not None and self._closing is None:
            self._loop.call_soon_threadsafe(self._tell_lanes)

    def _tell_lanes(self) -> None:
        self._balance.is_paused = self._is_paused
        self._set_paused(list(self._balance.lanes.values()), self._is_paused)

    def _set_paused(self, lanes: Sequence[Lane], is_paused: bool) -> None:
        for lane in lanes:
            lane.is_paused = is_paused
            if not is_paused:
                self._on_ready(lane)
        self._workers.room.set()

    # ---- what it has

    def queues(self) -> list[tuple[str, int]]:
        """The queues that this member owns now: topic and number."""
        self._require_started()
        return sorted((topic, queue) for topic, queue in self._balance.lanes if topic in self._subscriptions.wanted)

    @property
    def missed_count(self) -> int:
        """Messages that this consumer could not fetch: deleted by retention, or marked as missing in the log."""
        return self._fetcher.missed_count if self._access is not None else 0

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

    def _require_started(self) -> LogAccess:
        if self._access is None:
            raise MisuseError(f"the consumer of group {self.group} was not started: start it first")
        return self._access

    def _pulled(self) -> Polls:
        self._require_started()
        if self._subscriptions.handlers:
            raise MisuseError(f"group {self.group} has handlers here, which get the messages: poll without handlers")
        return self._polls


def _delete_passing(access: LogAccess, group: str) -> None:
    """Deletes the group of a broadcasting member without a name, and those that killed members have left."""
    base = group.rpartition("%")[0]
    for other in access.groups():
        if re.fullmatch(re.escape(base) + "%[0-9a-f]{32}", other):
            with suppress(TxmsgError):  # it has members, or another member deletes it
                access.delete_group(other)
