"""Combines the waiting calls of a loop into few requests: all that wait leave together, with at most a few requests at
a time.

While a request is in progress the next one fills, so requests grow with the load and a lone call never waits. Knows
neither connections nor messages: `send` does the work. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from typing import Generic, TypeVar

from txmsg.client.sending.batch import RequestEntry
from txmsg.client.sending.waiting import IN_FLIGHT_MAX, WaitingEntries, worth_sending
from txmsg.errors import BrokerUnavailable, MisuseError, Overloaded
from txmsg.runtime.background import in_background
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

E = TypeVar("E", bound=RequestEntry)
Send = Callable[[list[E]], Awaitable[None]]


class Coalescer(Generic[E]):
    """A bounded queue of entries, and the requests in progress.

    send: carries out one request, completes its entries, and raises nothing but bugs. crowd: returns the number of
    items that wait or are in progress in all coalescers with the same callers (a caller's half is in one, its outcome
    in another).

    When PENDING_ITEMS_MAX or PENDING_SIZE_BYTES_MAX are waiting, further entries wait outside; one that is not admitted
    by its deadline fails with Overloaded, one that was admitted and not sent by then with BrokerUnavailable.
    """

    def __init__(
        self,
        send: Send[E],
        *,
        timeout_s: float,
        loop: asyncio.AbstractEventLoop,
        crowd: Callable[[], int] | None = None,
    ) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._loop = loop
        self._pending: WaitingEntries[E] = WaitingEntries()
        self._outside: deque[E] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._requests: dict[asyncio.Task[None], float] = {}  # and since when
        self._in_flight_items = 0
        self._crowd = crowd or self.items
        self._flush_is_due = False
        self._closed = False

    def offer(self, entry: E) -> None:
        """Add an entry; its waiter is completed by the deadline. To be called on the loop."""
        if self._closed:
            entry.fail(MisuseError("the producer is closed: make a new one"))
            return
        entry.deadline = self._loop.time() + self._timeout_s
        # Behind those that wait outside already, even if there is room now: a newcomer must not overtake them, or they
        # would time out under steady load.
        if self._outside or self._pending.is_full:
            self._outside.append(entry)
            if self._timer is None:
                self._timer = self._loop.call_at(entry.deadline, self._refuse_late)
            return
        self._admit(entry)

    def items(self) -> int:
        """Return the number of items that wait or are in progress."""
        return self._pending.items + self._in_flight_items

    @property
    def is_busy(self) -> bool:
        """True if anything waits or is in progress."""
        return bool(self._requests or self._pending or self._outside)

    def slowest_s(self) -> float:
        """Return the age in seconds of the oldest request in progress; 0 without one."""
        return self._loop.time() - min(self._requests.values(), default=self._loop.time())

    def release(self, may_leave: Callable[[E], bool]) -> list[E]:
        """Remove and return the waiting entries that may leave: none of them was ever sent."""
        left = self._pending.release(may_leave)
        outside, self._outside = self._outside, deque()
        for entry in outside:
            (left if may_leave(entry) else self._outside).append(entry)
        return left

    def take_over(self, entries: Iterable[E]) -> None:
        """Add entries that another lane released, with their deadlines. They may exceed the bounds."""
        self._pending.add_older(entries)
        self._flush_soon()

    def resume(self, entries: list[E], send: Send[E]) -> None:
        """Take over a request that was begun elsewhere; `send` continues it."""
        self._begin_request(entries, send)

    async def drain(self) -> None:
        """Accept nothing more; return when all entries are settled. Bounded by the entries' deadlines."""
        self._closed = True
        while self._pending or self._outside or self._requests:
            self._flush()
            if self._requests:
                await asyncio.wait(self._requests, return_when=asyncio.FIRST_COMPLETED)
        if self._timer is not None:
            self._timer.cancel()

    def _admit(self, entry: E) -> None:
        self._pending.add(entry)
        if not self._flush_is_due and len(self._requests) < IN_FLIGHT_MAX:
            # Not at once: callers that are ready in the same turn of the loop leave together.
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        while self._pending and len(self._requests) < IN_FLIGHT_MAX:
            batch: list[E] = []
            # The crowd includes callers whose other request is in progress: counting only those that wait here would
            # let all of them fall into step again (see ITEMS_SPLIT).
            self._pending.move_to(batch, self._crowd())
            if batch := worth_sending(batch, self._loop.time(), self._timeout_s):
                self._begin_request(batch, self._send)
        # After the requests have taken their part, so that room is filled in the order of arrival.
        while self._outside and not self._pending.is_full:
            self._admit(self._outside.popleft())

    def _begin_request(self, batch: list[E], send: Send[E]) -> None:
        items = sum([entry.items for entry in batch])
        self._in_flight_items += items
        task = in_background(self._request(batch, items, send))
        self._requests[task] = self._loop.time()
        # An empty context: the callback begins the next request, which must not run in the trace of a caller of this
        # one.
        task.add_done_callback(self._request_done, context=Context())

    async def _request(self, batch: list[E], items: int, send: Send[E]) -> None:
        try:
            await send(batch)
        except asyncio.CancelledError:
            for entry in batch:
                entry.fail(BrokerUnavailable("the producer was closed while the request was under way"))
            raise
        except Exception as exc:  # noqa: BLE001 - a task's root; no caller may hang for a bug
            _log.exception(
                "client.request_failed", "a request of %(entries)d entries failed unexpectedly", entries=len(batch)
            )
            for entry in batch:
                entry.fail(exc)
        finally:
            self._in_flight_items -= items

    def _request_done(self, task: asyncio.Task[None]) -> None:
        del self._requests[task]
        self._flush_soon()

    def _flush_soon(self) -> None:
        if (self._pending or self._outside) and not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _refuse_late(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._outside and self._outside[0].deadline <= now:
            self._outside.popleft().fail(
                Overloaded(
                    f"{self._pending.items} messages wait to be sent and none was sent within {self._timeout_s} s: "
                    "send more slowly, or look at why the broker is slow"
                )
            )
        if self._outside:
            self._timer = self._loop.call_at(self._outside[0].deadline, self._refuse_late)
