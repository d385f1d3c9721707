"""Group commit for appends of many callers: while one append is written and synced, the next callers gather.

Callers that wait for the disk, for other members of a group, and for nothing gather apart: none delays another kind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace

from txmsg.errors import Overloaded, StorageError, TxmsgError
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.server.placement import AppendCall, Outcome, Placer, WaitsFor
from txmsg.metaq.server.producers import CallId, RememberedAppends
from txmsg.metrics.counts import ITEMS, SECONDS, Histogram
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_TOGETHER_SIZE_BYTES_MAX = 16 * 1024 * 1024
_TOGETHER_MAX = 1024
_SAY_AGAIN_S = 60.0


class AppendCounts:
    """Counters of appends since the server started. Calls that are carried out together count once."""

    __slots__ = ("bytes", "calls", "errors", "messages", "seconds")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        """Bytes as stored, without headers of frames."""
        self.errors = 0
        """Calls of which nothing was appended."""
        self.calls = Histogram(ITEMS)
        self.seconds = Histogram(SECONDS)


class _AppendQueue:
    """Calls that are carried out one after the other; all that wait at a time go together."""

    def __init__(self, placer: Placer) -> None:
        self.placer = placer
        self.waiting: deque[AppendCall] = deque()
        self.is_busy = False
        """True if a thread carries out calls, or is about to."""

    def gathered(self) -> list[AppendCall]:
        """Return the next calls to be carried out together."""
        calls = [self.waiting.popleft()]
        size_bytes = calls[0].size_bytes
        # Bounded, so that one append does not delay all that gather behind it.
        while self.waiting and len(calls) < _TOGETHER_MAX:
            size_bytes += self.waiting[0].size_bytes
            if size_bytes > _TOGETHER_SIZE_BYTES_MAX:
                break
            calls.append(self.waiting.popleft())
        return calls


class AppendExecutor:
    """Takes calls on the loop and has threads carry them out. Callers wait for the disk, as their topics promise.

    threads: three are used at once. size_bytes_max: of calls under way; more are refused. on_appended: called with the
    queues that have got messages.
    """

    def __init__(
        self,
        new_placer: Callable[[], Placer],
        threads: Executor,
        *,
        size_bytes_max: int,
        on_appended: Callable[[Iterable[LogQueue]], None],
        clock: Callable[[], float],
    ) -> None:
        self.counts = AppendCounts()
        self.size_bytes = 0
        """Bytes of calls under way."""
        self.failure = ""
        """The reason why the log's last append failed; empty if it succeeded. Logs of groups do not count."""
        self._refused_at: float | None = None
        """The time of the log's last refusal."""
        self._is_said = False
        """True if the last logged event is that refusal."""
        self._lanes = {kind: _AppendQueue(new_placer()) for kind in WaitsFor}
        self._threads = threads
        self._size_bytes_max = size_bytes_max
        self._on_appended = on_appended
        self._clock = clock
        self._producers = RememberedAppends()
        self._under_way: dict[CallId, asyncio.Future[tuple[int, ...]]] = {}

    async def recover(self) -> None:
        """Read the appends noted before this process began. Call it before the first append."""
        # Before the first append: a repeat of a call from before a crash must find its answer, or its messages would be
        # doubled.
        placer = self._lanes[WaitsFor.DISK].placer
        found = await asyncio.get_running_loop().run_in_executor(self._threads, placer.recovered)
        for note, bases in found:
            self._producers.note(note.call, note.settled, bases, self._clock())

    async def append(self, call: AppendCall) -> tuple[int, ...]:
        """Return the offsets of the batches. A caller that is cancelled does not end the append."""
        return await asyncio.shield(self.begin_append(call))

    def begin_append(self, call: AppendCall) -> asyncio.Future[tuple[int, ...]]:
        """Return a future of the batches' offsets. A call that is under way or was carried out is not begun again.

        Raises Overloaded for a call that is not begun. Waiting for the result is optional.
        """
        answer = self._under_way.get(call.id)
        if answer is not None:
            return answer
        if not call.is_placed:
            # Calls whose batches name their offsets are not remembered: the log itself tells whether they are there.
            done = self._producers.answer_of(call.id, call.settled, self._clock()) or ()
            if len(done) == len(call.appends):
                answer = asyncio.get_running_loop().create_future()
                answer.set_result(done)
                return answer
            if done:
                call = replace(call, done=done)
        self.reserve(call.size_bytes)
        return self._queue_append(call)

    def reserve(self, size_bytes: int) -> None:
        """Count these bytes as under way, until `release`. Raises Overloaded for too many, but not for a single
        call.
        """
        if self.size_bytes and self.size_bytes + size_bytes > self._size_bytes_max:
            raise Overloaded(f"appends of {self.size_bytes} bytes are pending: nothing was appended; try again")
        self.size_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Stop counting these bytes."""
        self.size_bytes -= size_bytes

    def _queue_append(self, call: AppendCall) -> asyncio.Future[tuple[int, ...]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[int, ...]] = loop.create_future()
        answer.add_done_callback(lambda done: done.exception())  # retrieved even without caller
        # From here on a repeat of the call waits for the same future, so it is appended once even if the first caller
        # is gone.
        self._under_way[call.id] = answer
        lane = self._lanes[self._lanes[WaitsFor.DISK].placer.waits_for(call)]
        lane.waiting.append(call)
        if not lane.is_busy:
            lane.is_busy = True
            loop.call_soon(self._go_on, lane)  # not at once: others may have come in the same turn of the loop
        return answer

    async def finished(self) -> None:
        """Return when everything begun is carried out. Call it once no more calls come."""
        while self._under_way:
            await asyncio.wait(self._under_way.values())

    def _go_on(self, lane: _AppendQueue) -> None:
        """Pass waiting calls to a thread: a future and a task for each turn would cost as much as the append."""
        lane.is_busy = bool(lane.waiting)
        if lane.is_busy:
            self._threads.submit(self._place, lane, lane.gathered(), asyncio.get_running_loop())

    def _place(self, lane: _AppendQueue, calls: list[AppendCall], loop: asyncio.AbstractEventLoop) -> None:
        """Place the calls, on a thread."""
        begun_at = loop.time()
        try:
            outcomes = lane.placer.place(calls)
        except Exception as exc:  # noqa: BLE001 - whatever it is, callers are told and the next ones are tried
            _log.exception("append.failed", "appending failed")
            told = StorageError(f"appending failed: {type(exc).__name__}; the server's log says more")
            outcomes = [told] * len(calls)
        loop.call_soon_threadsafe(self._placed, lane, calls, outcomes, loop.time() - begun_at)

    def _placed(self, lane: _AppendQueue, calls: list[AppendCall], outcomes: list[Outcome], seconds: float) -> None:
        self.counts.calls.observe(len(calls))
        self.counts.seconds.observe(seconds)
        # The next append begins before these callers are told: the disk does not wait for the loop.
        self._go_on(lane)
        for call, outcome in zip(calls, outcomes, strict=True):
            self._finish(call, outcome)

    def _fails(self, failure: str) -> None:
        now = self._clock()
        # Not for each caller that tries again, nor for each large append between small ones, which have room.
        if not self._is_said and (self._refused_at is None or now - self._refused_at >= _SAY_AGAIN_S):
            self._is_said, self._refused_at = True, now
            _log.error(
                "append.refused",
                "the log accepts no appends: %(error)s; on a full disk free space, enlarge it, or keep "
                "less (--retention, --retention-size); the next append is tried again",
                error=failure,
            )
        self.failure = failure

    def _finish(self, call: AppendCall, outcome: Outcome) -> None:
        self.release(call.size_bytes)
        answer = self._under_way.pop(call.id)
        if isinstance(outcome, Exception):
            self.counts.errors += 1
            if isinstance(outcome, StorageError) and not call.is_of_group:
                self._fails(str(outcome))
            answer.set_exception(outcome)
            return
        self.counts.messages += sum(append.payload.count for append in call.appends)
        self.counts.bytes += call.size_bytes
        if not call.is_of_group and self.failure:
            self.failure = ""
            if self._is_said:
                self._is_said = False
                _log.info("append.works_again", "the log accepts appends again")
        if not call.is_placed:
            try:
                self._producers.note(call.id, call.settled, outcome, self._clock())
            except TxmsgError:
                _log.exception("append.forgotten", "append %(sequence)d is not remembered", sequence=call.id.sequence)
        self._on_appended({LogQueue(append.topic, append.queue) for append in call.appends})
        answer.set_result(outcome)
