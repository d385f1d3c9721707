"""Calls handlers for the messages of lanes, one at a time in each lane; stores those that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cache, partial
from typing import Final

from txmsg.consumer.counts import ConsumerCounts
from txmsg.consumer.failures import HandlerFailure
from txmsg.consumer.handler_rate import HandlerRate
from txmsg.consumer.subscriptions import Handler
from txmsg.consumer.workers import MessageRun, Workers
from txmsg.errors import TxmsgError
from txmsg.message import ReceivedMessage
from txmsg.metaq.consumer.lane import Chunk, Lane
from txmsg.metaq.consumer.retries import Tried, appends_of
from txmsg.metaq.consumer.slots import AdjustableSemaphore
from txmsg.metaq.interface import SESSION_S, LogAccess, LogGroupSettings
from txmsg.metaq.store.log import Append
from txmsg.runtime.backoff import Backoff
from txmsg.runtime.logs import EventLog
from txmsg.settings.clients import CONCURRENCY_MAX

_log = EventLog(__name__)

_BACKOFF: Final = Backoff()
"""The back-off of messages whose subscription has no policy, and the delays of retry queues."""
_KEEP_AGAIN_S: Final = 1.0
_FAILED_S_MAX: Final = 0.2
"""Seconds that a failed message may wait for more of its chunk, until it is stored."""
_PACE_S_MIN: Final = 0.01
"""Seconds between two checks of lanes that wait for the group's rate: at a high rate several messages begin after each.
"""


class ChunkRun(MessageRun):
    """The next messages of a chunk that have one topic, to the end of the chunk."""

    __slots__ = ("_chunk", "_goes_on", "_is_over", "_of", "ended")

    def __init__(self, of: LaneWorkers, chunk: Chunk, handler: Handler, goes_on: Callable[[float], bool]) -> None:
        super().__init__(handler)
        self._of = of
        self._chunk = chunk
        self._goes_on = goes_on
        self._is_over = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set at its end; cancelled if its handler was."""

    def next(self, now: float) -> ReceivedMessage | None:
        """Return the chunk's next message."""
        if self._goes_on(now) and (message := self._chunk.next).topic == self.handler.topic:
            if (pace := self._of.pace) is not None:
                # Taken when a message begins: the rate is of handlers that begin, whatever the result.
                pace.take_tokens()
            return message
        self._is_over = True
        return None

    def note(self, failure: HandlerFailure | None) -> None:
        """Record the outcome in the chunk at once: offsets are stored while a chunk is being handled."""
        if failure is None:
            self._chunk.succeeded()
        else:
            self._chunk.fail(failure)

    def leave(self) -> None:
        self._is_over = True

    def end_run(self) -> None:
        if self.ended.done():
            return  # its waiter is gone
        if self._is_over:
            self.ended.set_result(None)
        else:
            self.ended.cancel()


class ListedRun(MessageRun):
    """One message of a list. Those of the list run side by side; their handler is called when it has all of them."""

    __slots__ = ("_begins", "_message", "ended", "failure", "is_left", "is_noted")

    def __init__(self, handler: Handler, message: ReceivedMessage, begins: Callable[[], bool]) -> None:
        super().__init__(handler)
        self._message: ReceivedMessage | None = message
        self._begins = begins
        self.failure: HandlerFailure | None = None
        self.is_noted = False
        """True if it was handled, or has failed; False if its handler was cancelled."""
        self.is_left = False
        """True if its handler has not begun."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next(self, now: float) -> ReceivedMessage | None:
        message, self._message = self._message, None
        return message if message is not None and self._begins() else None

    def note(self, failure: HandlerFailure | None) -> None:
        self.failure, self.is_noted = failure, True

    def leave(self) -> None:
        self.is_left = True

    def end_run(self) -> None:
        if not self.ended.done():  # else its waiter is gone
            self.ended.set_result(None)


class LaneWorkers:
    """A task for each lane that has something to do; handlers are called by the workers of the consumer.

    concurrency: of all handlers together, but for those that have their own. room: set when a lane has handled
    something, so that more of it may be fetched. Operators may lower it, limit the rate, and stop the group:
    `apply_settings`.
    """

    def __init__(
        self,
        access: LogAccess,
        group: str,
        handlers: Mapping[str, Handler],
        *,
        concurrency: int,
        ordered: bool,
        threads: Executor,
        clock: Callable[[], float],
        counts: ConsumerCounts,
        room: asyncio.Event,
    ) -> None:
        self._access = access
        self._group = group
        self._handlers = handlers
        self._concurrency = concurrency
        self._shared = self._new_workers(concurrency)
        shares = {handler.share: handler.list_count for handler in handlers.values() if handler.share is not None}
        self._own = {share: self._new_workers(share.concurrency) for share in shares}
        """Workers of handlers that have a concurrency of their own."""
        self._slots = {share: AdjustableSemaphore(share.concurrency) for share, count in shares.items() if count > 1}
        """Semaphores of handlers that get lists: the number of lists handled at once, of any length.

        No bound before an operator sets one: lists that are not full wait for more while others are handled.
        """
        self._list_counts = shares
        self._counts = counts
        self._ordered = ordered
        self._threads = threads
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_stopping = False
        self.is_group_stopped = False
        """True if an operator has stopped the group: no handler begins."""
        self.pace: HandlerRate | None = None
        """The rate that an operator has set for the group; every message that begins counts."""
        self._settings = LogGroupSettings()
        self._paced: dict[Lane, None] = {}
        """Lanes that wait for that rate, in the order of their turns."""
        self._timer: asyncio.TimerHandle | None = None
        self._room = room

    def apply_settings(self, settings: LogGroupSettings) -> None:
        """Apply the settings of operators. Running handlers finish. The caller puts all lanes after that."""
        most = settings.concurrency or CONCURRENCY_MAX
        self._shared.resize(min(most, self._concurrency))
        for share, workers in self._own.items():
            slots = self._slots.get(share)
            if slots is None:
                workers.resize(min(most, share.concurrency))
            else:
                lists = share.concurrency // self._list_counts[share]
                # An operator's number counts lists here, and applies only if it is below the number of full lists.
                slots.resize(most if most < lists else share.concurrency)
        if settings.rate_per_s != self._settings.rate_per_s:
            self.pace = None if settings.rate_per_s is None else HandlerRate(settings.rate_per_s)
            self._paced.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self.is_group_stopped = settings.stopped
        self._settings = settings

    def put_lane(self, lane: Lane) -> None:
        """Start handling a lane's messages, if there are any and none are being handled. Call it on the loop."""
        if not self._may_go_on(lane) or not lane.idle.is_set() or not lane.has_work or self._waits(lane):
            return
        lane.idle.clear()
        task = asyncio.create_task(self._work(lane), name=f"txmsg-lane-{lane.queue.topic}-{lane.queue.queue}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def running(self) -> list[ChunkRun | ListedRun]:
        """Return the runs that are being handled. Any thread may read it."""
        return [run for workers in (self._shared, *self._own.values()) for run in workers.running()]

    async def close(self) -> None:
        """Cancel what still runs. Does not wait for a handler that ignores the cancellation."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(self._shared.close(), *(workers.close() for workers in self._own.values()))

    def _new_workers(self, concurrency: int) -> Workers[ChunkRun | ListedRun]:
        return Workers(concurrency, name=f"txmsg-log-{self._group}", blocked=self._note_blocked)

    def _may_go_on(self, lane: Lane) -> bool:
        if self.is_stopping or self.is_group_stopped or lane.is_stopping or lane.is_paused:
            return False
        return lane.blocked_until <= self._clock()

    def _waits(self, lane: Lane) -> bool:
        """Return True if the group's rate lets nothing begin now; the lane is put again when it does."""
        if self.pace is None or not (wait_s := self.pace.wait_s()):
            return False
        self._paced[lane] = None
        if self._timer is None:
            self._timer = self._loop.call_later(max(wait_s, _PACE_S_MIN), self._put_paced)
        return True

    def _put_paced(self) -> None:
        """Put as many lanes as messages may begin: each continues while there is room, and then waits as the last."""
        self._timer = None
        count = 1 if self.pace is None else max(1, self.pace.room())
        for lane in list(self._paced)[:count]:
            del self._paced[lane]
            self.put_lane(lane)
        if self._paced and self._timer is None:
            self._timer = self._loop.call_later(_PACE_S_MIN, self._put_paced)

    async def _work(self, lane: Lane) -> None:
        try:
            while (
                self._may_go_on(lane)
                and not self._waits(lane)
                and (chunk := lane.next_chunk(round(self._clock() * 1_000_000))) is not None
            ):
                lane.chunk = chunk
                await self._handle(lane, chunk)
                await self._settle(lane, chunk)
                self._room.set()
        except Exception as exc:  # noqa: BLE001 - the root of a task: the lane stands still, and says why
            _log.exception(
                "member.queue_stopped",
                "group %(group)s: reading topic %(topic)s queue %(queue)d has stopped",
                group=self._group,
                topic=lane.queue.topic,
                queue=lane.queue.queue,
            )
            # The lane stands still and keeps its queue: another member is likely to fail at the same message.
            lane.error, lane.is_paused = exc, True
        finally:
            lane.chunk = None
            lane.idle.set()

    async def _handle(self, lane: Lane, chunk: Chunk) -> None:
        """Handle a chunk, one run for each topic: a queue of retries holds several topics."""
        goes_on = partial(self._goes_on, lane, chunk)
        while goes_on(self._loop.time()):
            handler = self._handlers.get(chunk.next.topic)
            if handler is None:
                chunk.fail(
                    HandlerFailure(
                        f"no handler for this topic in group {self._group}, in the process that had the message"
                    )
                )
            elif handler.list_count > 1:
                async with self._slots_of(handler):
                    if goes_on(self._loop.time()):  # it may have waited for the slot
                        await self._handle_list(lane, chunk, handler)
            else:
                run = ChunkRun(self, chunk, handler, goes_on)
                self._workers_of(handler).put_runs([run])
                await run.ended

    def _workers_of(self, handler: Handler) -> Workers[ChunkRun | ListedRun]:
        return self._shared if handler.share is None else self._own[handler.share]

    def _slots_of(self, handler: Handler) -> AbstractAsyncContextManager[None]:
        slots = None if handler.share is None else self._slots.get(handler.share)
        return nullcontext() if slots is None else slots

    async def _handle_list(self, lane: Lane, chunk: Chunk, handler: Handler) -> None:
        """Handle the chunk's next messages together; record each when all of them have ended, in their order.

        Nothing of the list is handled if its lane is paused, or must end, when its first message could begin, or if it
        is so when the handler could be called with all of them.
        """
        begins = cache(lambda: not self._stands(lane))  # asked once: a list is not split
        runs = [ListedRun(handler, message, begins) for message in chunk.together(handler.topic, handler.list_count)]
        if self.pace is not None:
            self.pace.take_tokens(len(runs))
        self._workers_of(handler).put_runs(runs)
        await asyncio.gather(*(run.ended for run in runs))
        if not begins():
            return
        for run in runs:
            if run.is_left:
                return
            if not run.is_noted:
                raise asyncio.CancelledError  # as its handler was: it is redelivered with those after it
            if run.failure is None:
                chunk.succeeded()
            else:
                chunk.fail(run.failure)

    def _goes_on(self, lane: Lane, chunk: Chunk, now: float) -> bool:
        """Return True if the chunk's next message is handled before its failed ones are stored."""
        if chunk.is_done or self._stands(lane):
            return False
        if (pace := self.pace) is not None and pace.wait_s():
            return False
        if not chunk.failed:
            return True
        if chunk.keep_at is None:
            chunk.keep_at = now + _FAILED_S_MAX
        return not self._ordered and now < chunk.keep_at

    def _note_blocked(self, run: MessageRun, time_s: float) -> None:
        """Log a handler that has blocked the loop, which also keeps this member from renewing its session at the
        server.
        """
        if time_s >= SESSION_S / 2:
            _log.warning(
                "member.blocked_loop",
                "group %(group)s: the handler of topic %(topic)r blocked the event loop for %(blocked_s).1f s. A "
                "member of which the log's server does not hear for %(session_s)g s loses its queues, and others "
                "handle the same messages: write the handler as def, for a thread, or call what blocks by "
                "asyncio.to_thread",
                group=self._group,
                topic=run.handler.topic,
                blocked_s=time_s,
                session_s=SESSION_S,
            )

    def _stands(self, lane: Lane) -> bool:
        """Return True if no message of the lane may begin: it must end, or is paused, or its group is stopped."""
        return self.is_stopping or self.is_group_stopped or lane.is_stopping or lane.is_paused

    def _must_end(self, lane: Lane) -> bool:
        return self.is_stopping or lane.is_stopping

    async def _settle(self, lane: Lane, chunk: Chunk) -> None:
        self._counts.received += chunk.done
        self._counts.refused += len(chunk.failed)
        self._counts.acknowledged += chunk.done - len(chunk.failed)
        if chunk.failed and self._ordered:
            await self._retry_in_place(lane, chunk)
        else:
            if chunk.failed:
                await self._store_failed(lane, chunk)
            # The dead letter is on disk before the lane continues: a crash in between delivers the message again, or
            # stores it twice.
            lane.settle(chunk)
        lane.chunk = None

    async def _store_failed(self, lane: Lane, chunk: Chunk) -> None:
        """Store failed messages for their next attempt, or as dead letters for an operator; then the lane may continue
        after them.
        """
        dead = [tried for tried in chunk.failed if self._is_dead(tried)]
        # Dead letters and retries are in logs of their own, so they are two appends. The first one is not repeated if
        # the second one fails.
        for part in (dead, [tried for tried in chunk.failed if not self._is_dead(tried)]):
            # The lane waits rather than going past a message that is stored nowhere: a full disk stops the queue, and
            # loses nothing.
            while part and not await self._appended(part):  # stored messages are not appended twice
                await asyncio.sleep(_KEEP_AGAIN_S)
                if self._must_end(lane):
                    return  # the lane stays before the first failure: it is redelivered
        chunk.first_failed = None

    def _is_dead(self, failed: Tried) -> bool:
        """Return True if it has no retry left, or must not be retried."""
        return failed.delay_s(_BACKOFF) is None

    async def _retry_in_place(self, lane: Lane, chunk: Chunk) -> None:
        """Deliver the failed message again after a pause, as the next one; or, if its retries are used up, continue
        after it.
        """
        [failed] = chunk.failed
        delay_s = failed.delay_s(_BACKOFF)
        if delay_s is None and await self._appended([failed]):
            chunk.first_failed = None
            lane.settle(chunk)
            return
        lane.settle(chunk)  # the failed message stays its first
        attempt = failed.message.attempt + (delay_s is not None)
        lane.replace_first(Tried(failed.message._replace(attempt=attempt), failed.errors))
        lane.blocked_until = self._clock() + (_KEEP_AGAIN_S if delay_s is None else delay_s)

    async def _appended(self, failed: Sequence[Tried]) -> bool:
        """Append these copies, and return True if they are on disk. All of them are dead, or none is."""
        now_us = round(self._clock() * 1_000_000)
        try:
            retries, dead = appends_of(self._group, failed, _BACKOFF, now_us)
            await self._append(dead or retries)
        except (TxmsgError, OSError) as exc:
            _log.error(
                "member.retries_unwritten",
                "group %(group)s: %(messages)d messages that failed cannot be kept: %(error)s",
                group=self._group,
                messages=len(failed),
                error=exc,
            )
            return False
        for tried in failed:
            if self._is_dead(tried):
                _log.error(
                    "message.dead",
                    "group %(group)s: message %(message_id)s of topic %(topic)r queue %(queue)s offset %(offset)s is "
                    "a dead letter after %(attempt)d deliveries",
                    group=self._group,
                    message_id=tried.message.id,
                    topic=tried.message.topic,
                    queue=tried.message.queue,
                    offset=tried.message.offset,
                    attempt=tried.message.attempt,
                )
        return True

    async def _append(self, appends: Sequence[Append]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._access.append, appends)
