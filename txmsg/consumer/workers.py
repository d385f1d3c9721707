"""Runs the handlers of a consumer: `async def` ones on the loop, `def` ones on threads, so many of each kind at once.

Messages come in runs. Those of one run are handled in their order, one after the other; runs begin in the order in
which they were put, and go side by side. Knows neither where messages come from nor who is told what became of them:
that is in the class of the run. Nothing here costs a turn of the loop per message, or a thread's wake-up.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from types import coroutine
from typing import Any, Final, Generic, TypeVar

from txmsg.consumer.failures import HandlerFailure
from txmsg.consumer.isolation import isolation
from txmsg.consumer.subscriptions import Handler
from txmsg.message import ReceivedMessage
from txmsg.runtime.logs import EventLog
from txmsg.runtime.user_function import NotBegun, in_handler

_log = EventLog(__name__)

_CANCEL_S_MAX: Final = 1.0
"""Seconds that a cancelled handler may take to end."""
_STEP_S_MAX: Final = 0.25
"""Seconds for which an `async def` handler may block the loop without a report."""
_TURN_COUNT: Final = 50
"""Messages handled in one turn of the loop, when no handler waits for anything."""


class MessageRun(ABC):
    """Messages of one topic that are handled one after the other.

    `next` and `note` are called where the handler runs, which may be a thread; `end_run` is called on the loop.
    """

    __slots__ = ("handler",)

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    @abstractmethod
    def next(self, now: float) -> ReceivedMessage | None:
        """Return the message to be handled now; None when the run is over. now: by the loop's clock."""

    @abstractmethod
    def note(self, failure: HandlerFailure | None) -> None:
        """Note that the message of `next` was handled; or that its handler raised, with the resulting failure."""

    def leave(self) -> None:  # noqa: B027 - where messages go side by side, `end_run` is all
        """End the run: the handler has not begun with the message of `next`."""

    @abstractmethod
    def end_run(self) -> None:
        """Settle the run, of which nothing more is handled. Called once.

        A handler that was cancelled ends its run, too, and nothing is noted of its message. After a close this is not
        called for runs that wait, nor for those whose `def` handlers still run.
        """


R = TypeVar("R", bound=MessageRun)


class Workers(Generic[R]):
    """Handles the runs of one consumer: `count` of each kind of handlers at once.

    name: of the threads. before: called with each message where its handler is called, and instead of it if it raises.
    blocked: called on the loop with a run whose `async def` handler blocked the loop, and with the seconds. The number
    of waiting runs is bounded by the callers of `put_runs`.
    """

    def __init__(
        self,
        count: int,
        *,
        name: str,
        before: Callable[[ReceivedMessage], object] | None = None,
        blocked: Callable[[R, float], object] = lambda run, time_s: None,
    ) -> None:
        self._on_loop = _LoopWorkers[R](count, before, blocked)
        self._on_threads = _ThreadWorkers[R](count, before, name)
        self._alone: set[R] = set()
        isolation.add(self)

    def put_runs(self, runs: Sequence[R]) -> None:
        """Handle these runs of one topic. To be called on the loop."""
        if runs:
            workers = self._on_loop if runs[0].handler.function.is_coroutine else self._on_threads
            workers.put_runs(runs)

    def resize(self, count: int) -> None:
        """Handle `count` runs of each kind from now on. Runs in progress continue: while they do, more may be
        handled."""
        self._on_loop.resize(count)
        self._on_threads.resize(count)

    def run_alone(self, run: R) -> asyncio.Event:
        """Handle this run at once, also while no other may begin. The event is set when it has ended."""
        ended = asyncio.Event()
        self._alone.add(run)

        def end() -> None:
            self._alone.discard(run)
            ended.set()

        # Outside the pool of `count`: a suspect must begin while all others are held back, and their places may be
        # taken by runs that wait.
        workers = self._on_loop if run.handler.function.is_coroutine else self._on_threads
        workers.run_alone(run, end)
        return ended

    def running(self) -> list[R]:
        """Return the runs that are being handled."""
        return [run for run in (*self._on_loop.running, *self._on_threads.running, *self._alone) if run is not None]

    @property
    def is_running(self) -> bool:
        """True if a handler runs. For any thread."""
        return bool(self._alone) or any(self._on_loop.running) or any(self._on_threads.running)

    @property
    def has_waiting(self) -> bool:
        """True if runs wait. For any thread."""
        return self._on_loop.has_waiting or self._on_threads.has_waiting

    def wake(self) -> None:
        """Let runs begin again. For any thread."""
        self._on_loop.wake()

    def revive(self) -> None:
        """Replace coroutines that a handler has cancelled: its own task, or another's. `put_runs` does so, too."""
        self._on_loop.revive()

    async def close(self) -> None:
        """Cancel `async def` handlers, and wait a second for them; leave `def` handlers to end by themselves."""
        await self._on_loop.close()
        self._on_threads.close()
        isolation.remove(self)


class _LoopWorkers(Generic[R]):
    """Coroutines that call `async def` handlers; all are there when there is something to do."""

    def __init__(
        self, count: int, before: Callable[[ReceivedMessage], object] | None, blocked: Callable[[R, float], object]
    ) -> None:
        self._count = count
        self._before = before
        self._blocked = blocked
        self._loop = asyncio.get_running_loop()
        self._runs: deque[R] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._waking = False
        self._in_turn = 0
        self._has_next = False  # True while one of them waits for the next turn
        self._closed = False
        self.running: list[R | None] = [None] * count
        self._context = _handlers_context()
        self._tasks: list[asyncio.Task[None]] = []
        self._alone: set[asyncio.Task[None]] = set()

    def put_runs(self, runs: Sequence[R]) -> None:
        if self._closed:
            return
        if not self._tasks:
            self._tasks = [self._new_task(place) for place in range(self._count)]
        self.revive()
        # No bound here: the consumer fetches only as much as it has room for, so waiting would only move the queue.
        self._runs.extend(runs)
        self._wake_one()

    def resize(self, count: int) -> None:
        self._count = count
        self.running += [None] * (count - len(self.running))
        if self._tasks and not self._closed:
            self._tasks += [self._new_task(place) for place in range(len(self._tasks), count)]
            self.revive()

    def revive(self) -> None:
        if not self._closed:
            for place, task in enumerate(self._tasks[: self._count]):
                if task.done():
                    self._tasks[place] = self._new_task(place)

    @property
    def has_waiting(self) -> bool:
        return bool(self._runs)

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._wake_one)

    def run_alone(self, run: R, end: Callable[[], object]) -> None:
        if self._closed:
            end()
            return
        task = self._loop.create_task(self._run_alone(run), context=contextvars.Context())
        self._alone.add(task)
        task.add_done_callback(self._alone.discard)
        task.add_done_callback(lambda _: end())

    async def close(self) -> None:
        self._closed = True
        tasks = [*self._tasks, *self._alone]
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=_CANCEL_S_MAX)
            if left:
                _log.warning(
                    "handler.not_cancelled",
                    "%(handlers)d handlers went on after they were cancelled; they are not waited for",
                    handlers=len(left),
                )

    def _new_task(self, place: int) -> asyncio.Task[None]:
        task = self._loop.create_task(self._work(place))
        task.add_done_callback(lambda _: self.revive())  # a handler has cancelled it
        return task

    def _wake_one(self) -> None:
        # One at a time: with quick handlers the first has done all before a second would begin.
        if self._idle and not self._waking and self._runs:
            self._waking = True
            self._idle.pop().set_result(None)

    def _begin_turn(self) -> None:
        self._in_turn = 0

    async def _work(self, place: int) -> None:
        while not self._closed:
            if place >= self._count:  # there are to be fewer: another one takes what this one was woken for
                self._wake_one()
                return
            # One alone continues in the next turn, and wakes others as handlers wait: not each of them at each turn.
            if not self._runs or (self._in_turn >= _TURN_COUNT and self._has_next):
                await self._wait()
                continue
            if self._in_turn >= _TURN_COUNT:
                self._has_next = True
                try:
                    await asyncio.sleep(0)
                finally:
                    self._has_next = False
                continue
            self.running[place] = run = self._runs.popleft()
            if isolation.is_closed:  # looked at when this one counts as running, for another thread may have closed it
                self.running[place] = None
                # Back to the front: runs begin in the order in which they were put.
                self._runs.appendleft(run)
                await self._wait()
                continue
            self._wake_one()
            # As `_run_alone`, but without a call of its own for each message.
            try:
                await _in_context(self._context.copy(), self._handle(run), run, self._blocked)
            except NotBegun:
                run.leave()
            except Exception:  # noqa: BLE001 - a worker that ends handles nothing more
                _log_failed(run)
            finally:
                self.running[place] = None
                run.end_run()

    async def _run_alone(self, run: R) -> None:
        try:
            await _in_context(self._context.copy(), self._handle(run), run, self._blocked)
        except Exception:  # noqa: BLE001 - as of a worker
            _log_failed(run)
        finally:
            run.end_run()

    async def _handle(self, run: R) -> None:
        clock, counts = self._loop.time, run.handler.counts
        began_at = clock()
        while (message := run.next(began_at)) is not None:
            while self._in_turn >= _TURN_COUNT:
                await asyncio.sleep(0)
                began_at = clock()
            if self._in_turn == 0:
                self._loop.call_soon(self._begin_turn)
            self._in_turn += 1
            try:
                if self._before is not None:
                    self._before(message)
                await run.handler.function.on_loop(message)
            except Exception as exc:  # noqa: BLE001 - whatever a handler raises refuses the message
                counts.raised(exc)
                run.note(run.handler.failure_of(message, exc))
            else:
                run.note(None)
            ended_at = clock()
            counts.called(ended_at - began_at)
            began_at = ended_at

    async def _wait(self) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._idle.append(waiting)
        try:
            await waiting
        finally:
            if waiting in self._idle:  # cancelled, not woken
                self._idle.remove(waiting)
            else:
                self._waking = False


class _ThreadWorkers(Generic[R]):
    """Threads that call `def` handlers, started when they are needed. The loop is told of ended runs in batches."""

    def __init__(self, count: int, before: Callable[[ReceivedMessage], object] | None, name: str) -> None:
        self._before = before
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._runs: SimpleQueue[R | None] = SimpleQueue()  # None wakes a thread that may have to leave
        self._count = count
        self._lock = threading.Lock()  # of the next three: threads change them
        self._live_count = 0
        self._wake_count = 0  # how many None wait
        self._free_places: list[int] = []
        self._ended: deque[R] = deque()
        self._telling = False
        self._closed = False
        self.running: list[R | None] = []
        self._context = _handlers_context()

    def put_runs(self, runs: Sequence[R]) -> None:
        for run in runs:
            self._runs.put(run)
        for _ in runs:
            if self._closed or self._live_count >= self._count or not self._start_thread():
                break
        if not self._live_count and not self._closed:
            while not self._runs.empty():  # no thread would ever take them; unnoted messages are redelivered
                if (waiting := self._runs.get()) is not None:
                    self._end_soon(waiting)

    def resize(self, count: int) -> None:
        with self._lock:
            self._count = count
            # A thread that handles a run sees by itself that it has to leave. One that waits has to be woken.
            wake_count = max(0, self._live_count - count - self._wake_count)
            self._wake_count += wake_count
        for _ in range(wake_count):
            self._runs.put(None)
        for _ in range(min(count - self._live_count, self._runs.qsize())):
            if self._closed or not self._start_thread():
                break

    @property
    def has_waiting(self) -> bool:
        return not self._runs.empty()

    def run_alone(self, run: R, end: Callable[[], object]) -> None:
        def work() -> None:
            try:
                self._run(run)
            finally:
                with suppress(RuntimeError):  # the loop was closed meanwhile
                    self._loop.call_soon_threadsafe(end)

        if self._closed:
            end()
            return
        # A thread of its own: those of the pool may all wait with runs that may not begin.
        try:
            threading.Thread(target=work, name=f"{self._name}-alone", daemon=True).start()
        except RuntimeError:  # the limit of processes: it is redelivered
            _log_failed(run)
            self._end_soon(run)
            end()

    def close(self) -> None:
        self._closed = True
        for _ in range(self._live_count):
            self._runs.put(None)

    def _start_thread(self) -> bool:
        with self._lock:
            if not self._free_places:
                self._free_places.append(len(self.running))
                self.running.append(None)
            place = self._free_places.pop()
            self._live_count += 1
        # Daemons, so that a handler that never returns does not keep the program from ending after a stop.
        thread = threading.Thread(target=self._work, args=(place,), name=f"{self._name}-{place}", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            _log.error(
                "consumer.threads_refused",
                "%(consumer)s: %(running)d of %(threads)d threads run, and no further one can be started (%(error)s): "
                "raise the limit of processes (ulimit -u, pids.max), or give the consumer less concurrency",
                consumer=self._name,
                running=self._live_count - 1,
                threads=self._count,
                error=exc,
            )
            with self._lock:
                self._free(place)
            return False
        return True

    def _work(self, place: int) -> None:
        while not self._closed and not self._leaves(place):
            run = self._runs.get()
            if run is None:
                with self._lock:
                    self._wake_count -= 1
            elif not self._closed:
                self.running[place] = run
                while isolation.is_closed:  # looked at when this one counts as running
                    self.running[place] = None
                    isolation.opened.wait()
                    if self._closed:
                        return
                    self.running[place] = run
                self._run(run, place)

    def _run(self, run: R, place: int | None = None) -> None:
        try:
            # A fresh copy for each run: context variables that one handler sets must not reach the next message.
            self._context.copy().run(self._handle, run)
        except NotBegun:
            run.leave()
        except BaseException:  # noqa: BLE001 - a worker that ends handles nothing more
            _log_failed(run)
        finally:
            if place is not None:
                self.running[place] = None
            self._end_soon(run)

    def _leaves(self, place: int) -> bool:
        """Return True if there are more threads than `count`; this one has then left."""
        if self._live_count <= self._count:  # as nearly always, so without the lock
            return False
        with self._lock:
            is_surplus = self._live_count > self._count
            if is_surplus:
                self._free(place)
            return is_surplus

    def _free(self, place: int) -> None:
        self._live_count -= 1
        self._free_places.append(place)

    def _handle(self, run: R) -> None:
        clock, counts = self._loop.time, run.handler.counts
        began_at = clock()
        while (message := run.next(began_at)) is not None:
            try:
                if self._before is not None:
                    self._before(message)
                run.handler.function.on_thread(message, self._loop)
            except Exception as exc:  # noqa: BLE001 - whatever a handler raises refuses the message
                counts.raised(exc)
                run.note(run.handler.failure_of(message, exc))
            else:
                run.note(None)
            ended_at = clock()
            counts.called(ended_at - began_at)
            began_at = ended_at

    def _end_soon(self, run: R) -> None:
        self._ended.append(run)
        if not self._telling and not self._closed:
            self._telling = True
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._end_runs)

    def _end_runs(self) -> None:
        self._telling = False  # before looking: what is appended after this look is told by another one
        while self._ended:
            self._ended.popleft().end_run()


def _log_failed(run: MessageRun) -> None:
    _log.exception(
        "consumer.worker_failed",
        "group %(group)s: a message of topic %(topic)r is redelivered: what txmsg does around its handler failed",
        group=run.handler.group,
        topic=run.handler.topic,
    )


@coroutine
def _in_context(
    context: contextvars.Context, work: Coroutine[Any, Any, None], run: R, blocked: Callable[[R, float], object]
) -> Generator[Any, Any, None]:
    """Await `work`, each step of it in this context: what a handler sets is not seen by the next run.

    blocked: called with the run and the seconds that a step took, if it took long.
    Not a task for each run: that costs a turn of the loop.
    """
    step: Callable[[Any], Any] = work.send
    given: Any = None
    clock = time.monotonic
    while True:
        began_at = clock()
        try:
            awaited = context.run(step, given)
        except StopIteration:
            return
        finally:
            if (took_s := clock() - began_at) >= _STEP_S_MAX:
                blocked(run, took_s)
        try:
            given = yield awaited
            step = work.send
        except GeneratorExit:
            context.run(work.close)
            raise
        except BaseException as exc:  # noqa: BLE001 - passed on, as a cancellation is
            given, step = exc, work.throw


def _handlers_context() -> contextvars.Context:
    context = contextvars.copy_context()
    context.run(in_handler.set, True)
    return context
