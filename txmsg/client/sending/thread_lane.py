"""The lane of threads: the first waiting thread leads, and sends for all of them; its reply wakes the others.

While a leader waits for the reply, the next request fills, so requests grow with the number of threads, and a lone
thread writes and reads by itself. Only the first attempt is made like this. Everything unusual goes to the lane's
coalescer on the loop: failed requests, threads that were interrupted or no longer wait, and all new entries until those
are settled. So the rules of retries are in one place. Knows neither connections nor messages.

A signal may raise anything at any point of the main thread. So a thread only posts to the loop that it leaves; the
loop, which no signal interrupts, takes over its entries. Each step of a thread can be interrupted and repeated.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from txmsg.client.channel import KnownBroker
from txmsg.client.sending.batch import RequestEntry
from txmsg.client.sending.coalescer import Coalescer
from txmsg.client.sending.waiting import IN_FLIGHT_MAX, WaitingEntries, worth_sending
from txmsg.errors import MisuseError, OutcomeUnknown, TxmsgError

E = TypeVar("E", bound=RequestEntry)


@dataclass(frozen=True, slots=True)
class FailedRequest(Generic[E]):
    """A request that was not answered well: the entries that are not settled, and the error."""

    entries: list[E]
    error: TxmsgError
    broker: KnownBroker | None = None
    """The broker that is to blame."""


class ThreadWaiter(Generic[E]):
    """A thread's wait for the result of its entry. Completed by one at a time: a leader, or the loop."""

    __slots__ = ("_came", "_error", "_is_done", "_result", "batch", "failed")

    def __init__(self) -> None:
        # A bare lock instead of an Event: one per call, and an Event makes a Condition with a lock and a deque. Not an
        # RLock: another thread releases it.
        self._came = threading.Lock()
        self._came.acquire()
        self._is_done = False
        self._result = b""
        self._error: BaseException | None = None
        self.batch: list[E] = []
        """Entries that the thread has taken to send, for itself and others, and that are not settled."""
        self.failed: FailedRequest[E] | None = None

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: bytes, /) -> None:
        self._result = result
        self._is_done = True
        self.wake()

    def set_exception(self, exception: BaseException, /) -> None:
        self._error = exception
        self._is_done = True
        self.wake()

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> bytes:
        """Return the result. Raises it if it is an error."""
        if self._error is not None:
            raise self._error
        return self._result

    def wake(self) -> None:
        """Wake the thread, so that it checks its state."""
        with suppress(RuntimeError):  # it was woken already, and has not looked yet
            self._came.release()

    def wait(self, patience_s: float) -> bool:
        """Return True when woken; False after patience_s seconds."""
        return self._came.acquire(timeout=max(0.0, patience_s))


class ThreadLane(Generic[E]):
    """Entries that threads wait for, and the threads that lead.

    attempt: makes one request, completes its entries, and returns the rest; its leader waits until the given time only.
    retry: continues the request on the loop. crowd: as a Coalescer's.
    """

    def __init__(
        self,
        coalescer: Coalescer[E],
        attempt: Callable[[list[E], float], FailedRequest[E] | None],
        retry: Callable[[FailedRequest[E]], Coroutine[Any, Any, None]],
        *,
        timeout_s: float,
        loop: asyncio.AbstractEventLoop,
        crowd: Callable[[], int],
    ) -> None:
        self._coalescer = coalescer
        self._attempt = attempt
        self._retry = retry
        self._timeout_s = timeout_s
        self._loop = loop
        self._crowd = crowd
        # Held for a few statements only, never while a request is sent or waited for. Not reentrant: a signal handler
        # that sends would deadlock, and must not send (0062).
        self._lock = threading.Lock()
        self._waiting: WaitingEntries[E] = WaitingEntries()
        self._leaders: dict[ThreadWaiter[E], float] = {}  # and since when
        self._posted: deque[Callable[[], object]] = deque()
        """Functions that the loop has not run yet."""
        self._has_company = False
        """True if other threads sent beside the last one."""
        self._closed = False
        self._idle = asyncio.Event()

    # ---- for threads

    def send_and_wait(self, entry: E, waiter: ThreadWaiter[E], wait_s: float) -> bytes:
        """Send the entry, and return the broker's result. The waiter is the entry's.

        Raises the broker's or the coalescer's error, and OutcomeUnknown when the thread has waited for `wait_s`; then
        the entry is still being sent.
        """
        now = time.monotonic()
        entry.deadline = now + self._timeout_s
        try:
            self._join(entry, waiter, now)
            while not waiter.done():
                if waiter in self._leaders:
                    self._lead(waiter, now + wait_s)
                elif not waiter.wait(now + wait_s - time.monotonic()):
                    break
            if waiter in self._leaders or not waiter.done():  # the loop was quicker, or the time is over
                self._post(self._finish_for, waiter, entry)
        except BaseException:
            self._post(self._finish_for, waiter, entry)
            raise
        if not waiter.done():
            raise _no_answer(wait_s)
        return waiter.result()

    def _join(self, entry: E, waiter: ThreadWaiter[E], now: float) -> None:
        with self._lock:
            if self._closed:
                entry.fail(MisuseError("the producer is closed: make a new one"))
            # While a failed request of this lane is being retried on the loop, new entries queue behind it there:
            # otherwise they would overtake it, and the rules of retries would run in two places.
            elif self._posted or self._coalescer.is_busy or self._waiting.is_full:
                self._post(self._coalescer.offer, entry)
            else:
                self._waiting.add(entry)
                if len(self._leaders) < IN_FLIGHT_MAX:
                    self._leaders[waiter] = now

    def _lead(self, waiter: ThreadWaiter[E], until: float) -> None:
        # Lets go of the interpreter's lock: threads that are ready now join, and leave together. A lone thread would
        # only wait for the loop's, or for another process (ran: 0.5 ms of a call that takes 4).
        if self._has_company:
            os.sched_yield()
        # Before the lock is taken: it counts the items of all lanes, and other threads need not wait for that.
        crowd = self._crowd()
        with self._lock:
            self._waiting.move_to(waiter.batch, crowd)
            # Judged again by each leader: after a burst the next lone thread must not yield to threads that have gone.
            self._has_company = len(waiter.batch) > 1 or len(self._leaders) > 1
        batch = worth_sending(waiter.batch, time.monotonic(), self._timeout_s)
        # Without the lock: other threads join meanwhile, and become the next request.
        waiter.failed = self._attempt(batch, until) if batch else None
        if waiter.failed is None:
            waiter.batch.clear()
        self._leave(waiter)

    def _leave(self, waiter: ThreadWaiter[E]) -> None:
        """End the thread's lead. The loop continues a failed request; without one, another thread leads."""
        with self._lock:
            if waiter.batch:
                self._post(self._resume, waiter)
            self._leaders.pop(waiter, None)
            if not waiter.batch and self._waiting and len(self._leaders) < IN_FLIGHT_MAX:
                self._promote(self._waiting.first())
            if self._closed and not self._leaders:
                self._post(self._idle.set)

    def _promote(self, entry: E) -> None:
        waiter = entry.waiter
        assert isinstance(waiter, ThreadWaiter)
        self._leaders[waiter] = time.monotonic()
        waiter.wake()

    def _post(self, function: Callable[..., object], *args: object) -> None:
        # In this order: what an interrupted thread has not told the loop of is done with the next that is posted.
        self._posted.append(partial(function, *args))
        self._loop.call_soon_threadsafe(self._run_posted)

    # ---- on the loop

    def _run_posted(self) -> None:
        while self._posted:
            try:
                # Removed only afterwards, so that `_join` sees a non-empty deque and sends no entry past a function
                # that has not finished.
                self._posted[0]()
            finally:
                self._posted.popleft()

    def _finish_for(self, waiter: ThreadWaiter[E], entry: E) -> None:
        """Take over the entry, the request and the lead of a thread that no longer waits."""
        with self._lock:
            own = self._waiting.release(lambda other: other is entry)
        self._coalescer.take_over(own)
        self._resume(waiter)
        self._leave(waiter)
        for leader in list(self._leaders):  # the thread may have been interrupted before it woke the one it promoted
            leader.wake()

    def _resume(self, waiter: ThreadWaiter[E]) -> None:
        """Pass the request of a thread to the coalescer, and the entries behind it."""
        with self._lock:
            batch, waiter.batch = waiter.batch, []
        if not batch:  # it was posted twice
            return
        failed = waiter.failed or FailedRequest(
            [entry for entry in batch if entry.waiter is None or not entry.waiter.done()],
            OutcomeUnknown("its sender was interrupted"),
        )
        for entry in batch:  # the thread may have been interrupted before it woke one that it had completed
            if isinstance(entry.waiter, ThreadWaiter):
                entry.waiter.wake()
        if failed.entries:
            self._coalescer.resume(failed.entries, lambda _: self._retry(failed))
        self.gather()

    def gather(self) -> None:
        """Move the waiting entries to the coalescer."""
        with self._lock:
            waiting = self._waiting.release(lambda _: True)
        self._coalescer.take_over(waiting)

    async def drain(self) -> None:
        """Accept nothing more; return when nothing waits or is in progress here. Drain the coalescer next."""
        with self._lock:
            self._closed = True
            leaders = bool(self._leaders)
        self.gather()
        if leaders:
            await self._idle.wait()

    # ---- for all

    def items(self) -> int:
        """Return the number of items that wait or are in progress."""
        under_way = [entry.items for waiter in list(self._leaders) for entry in waiter.batch]
        return self._waiting.items + sum(under_way)

    def slowest_s(self) -> float:
        """Return the age in seconds of the oldest request in progress; 0 without one."""
        now = time.monotonic()
        return now - min(list(self._leaders.values()), default=now)


def wait_for(waiter: ThreadWaiter[E], wait_s: float) -> bytes:
    """Wait for an entry that the loop has. As `ThreadLane.send_and_wait`."""
    if not (waiter.done() or waiter.wait(wait_s)):
        raise _no_answer(wait_s)
    return waiter.result()


def _no_answer(wait_s: float) -> OutcomeUnknown:
    return OutcomeUnknown(f"no answer within {wait_s:g} s; it is still being tried")
