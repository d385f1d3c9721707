"""Running handlers: concurrency, order, notifications of a link, and turns of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from txmsg.client.receiving.deliveries import Deliveries
from txmsg.client.receiving.delivery import MessageDelivery
from txmsg.client.receiving.unsettled import DeliveredBatch
from txmsg.consumer.failures import HandlerFailure, Reject, RetryAfter, Skip
from txmsg.consumer.subscriptions import Handler
from txmsg.consumer.workers import MessageRun, Workers
from txmsg.errors import StorageError, TxmsgError
from txmsg.message import ReceivedMessage
from txmsg.runtime.user_function import UserFunction, in_handler

HAND = DeliveredBatch(7, 1, 1)
DEADLINE_S = 60.0


class RecordingDeliveries(Deliveries):
    """Records its notifications and does not call a broker."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.refused: dict[int, str] = {}
        self.dropped = 0
        self.lost: set[int] = set()
        self._told = asyncio.Event()

    def ack(self, hand: DeliveredBatch, offset: int) -> None:
        self.acked.append(offset)
        self._told.set()

    def refuse(self, hand: DeliveredBatch, offset: int, failure: HandlerFailure) -> None:
        self.refused[offset] = failure.error
        self._told.set()

    def drop(self, hand: DeliveredBatch, offset: int) -> None:
        self.dropped += 1
        self._told.set()

    def holds(self, hand: DeliveredBatch, offset: int, now: float) -> bool:
        return offset not in self.lost

    async def until(self, count: int) -> None:
        """Return when so many messages were settled."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.acked) + len(self.refused) + self.dropped < count:
                self._told.clear()
                await self._told.wait()


def deliveries(
    told: RecordingDeliveries, count: int, call: Callable[[ReceivedMessage], Any], *, start: int = 0
) -> list[MessageDelivery]:
    handler = Handler("g", "t", UserFunction("the handler", call, "message"))
    late_at = asyncio.get_running_loop().time() + 60
    return [
        MessageDelivery(told, HAND, ReceivedMessage("t", b"", offset=offset), handler, late_at)
        for offset in range(start, start + count)
    ]


_SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


class Series(MessageRun):
    """A run of several messages that records its calls; it ends when `goes_on` is False."""

    def __init__(
        self, call: Callable[[ReceivedMessage], Any], count: int, *, goes_on: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(Handler("g", "t", UserFunction("the handler", call, "message")))
        self.noted: list[HandlerFailure | None] = []
        self.ended = asyncio.Event()
        self._messages = [ReceivedMessage("t", b"", offset=offset) for offset in range(count)]
        self._goes_on = goes_on

    def next(self, now: float) -> ReceivedMessage | None:
        is_over = len(self.noted) == len(self._messages) or not self._goes_on()
        return None if is_over else self._messages[len(self.noted)]

    def note(self, failure: HandlerFailure | None) -> None:
        self.noted.append(failure)

    def end_run(self) -> None:
        assert not self.ended.is_set(), "a run ended twice"
        self.ended.set()

    async def until_ended(self) -> None:
        await asyncio.wait_for(self.ended.wait(), DEADLINE_S)


@asynccontextmanager
async def working_on_series(count: int) -> AsyncIterator[Workers[Series]]:
    workers = Workers[Series](count, name="test")
    try:
        yield workers
    finally:
        await workers.close()


@asynccontextmanager
async def working(count: int) -> AsyncIterator[tuple[Workers[MessageDelivery], RecordingDeliveries]]:
    workers = Workers[MessageDelivery](count, name="test")
    try:
        yield workers, RecordingDeliveries()
    finally:
        await workers.close()


def as_kind(kind: str, call: Callable[[ReceivedMessage], None]) -> Callable[[ReceivedMessage], Any]:
    """Return the handler as `async def` for workers on the event loop."""

    async def call_async(message: ReceivedMessage) -> None:
        call(message)

    return call_async if kind == "loop" else call


KINDS = pytest.mark.parametrize("kind", ["loop", "threads"])


@KINDS
async def test_context_variables_of_a_handler_do_not_leak_into_the_next_run(kind: str) -> None:
    """A run belongs to a queue: another queue's must not act for the user, or in the trace, of the former."""
    seen: list[str] = []

    def call(message: ReceivedMessage) -> None:
        seen.append(_SEEN.get())
        _SEEN.set(f"offset {message.offset}")

    async def call_async(message: ReceivedMessage) -> None:
        call(message)
        await asyncio.sleep(0)
        assert _SEEN.get() == f"offset {message.offset}"
        assert await asyncio.create_task(_seen()) == f"offset {message.offset}"

    async with working_on_series(1) as workers:
        runs = [Series(call_async if kind == "loop" else call, 2) for _ in range(3)]
        workers.put_runs(runs)
        for run in runs:
            await run.until_ended()
    assert [run.noted for run in runs] == [[None, None]] * 3
    assert seen == ["nothing", "offset 0"] * 3


async def _seen() -> str:
    return _SEEN.get()


@KINDS
async def test_every_message_is_acked_refused_or_dropped_once(kind: str) -> None:
    def call(message: ReceivedMessage) -> None:
        assert in_handler.get()
        if message.offset == 3:
            raise ValueError("three")

    async with working(4) as (workers, told):
        workers.put_runs(deliveries(told, 10, as_kind(kind, call)))
        told.lost = {10, 11}
        workers.put_runs(deliveries(told, 2, as_kind(kind, call), start=10))
        await told.until(12)
        assert sorted(told.acked) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert told.refused.keys() == {3}
        assert told.refused[3].startswith("ValueError: three\n")
        assert told.dropped == 2


def test_any_handler_error_text_can_be_stored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, logger="txmsg.consumer.subscriptions"):
        handler = Handler("g", "t", UserFunction("the handler", print, "message"))
        failure = handler.failure_of(ReceivedMessage("t", b""), ValueError("a \0 b \ud800 c"))
    assert failure is not None
    assert failure.error == "ValueError: a \\0 b \\ud800 c"


def test_an_error_of_txmsg_is_logged_by_its_text_and_any_other_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = Handler("g", "t", UserFunction("the handler", print, "message"))
    for error in (StorageError("table txmsg_inbox is absent"), ValueError("odd")):
        handler.failure_of(ReceivedMessage("t", b""), error)
    own, other = caplog.records
    assert own.getMessage().endswith("is retried: StorageError: table txmsg_inbox is absent")
    assert own.exc_info is None
    assert other.getMessage().endswith("whether and when it is retried")
    assert other.exc_info is not None


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Panic(BaseException):
    """A panic, as raised by libraries in Rust."""


@KINDS
@pytest.mark.parametrize("error", [Mute, Panic])
async def test_no_exception_of_a_handler_ends_its_worker(kind: str, error: type[BaseException]) -> None:
    def call(message: ReceivedMessage) -> None:
        if message.offset == 0:
            raise error

    async with working(1) as (workers, told):
        workers.put_runs(deliveries(told, 3, as_kind(kind, call)))
        await told.until(3)
        assert (sorted(told.acked), sorted(told.refused)) == ([1, 2], [0])


async def test_a_handler_that_cancels_its_own_task_costs_no_worker() -> None:
    async with working(1) as (workers, told):

        async def call(message: ReceivedMessage) -> None:
            if message.offset == 0:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)

        workers.put_runs(deliveries(told, 2, call))  # the second one waits behind it
        await told.until(2)
        workers.put_runs(deliveries(told, 3, call)[2:])
        await told.until(3)
        assert (sorted(told.acked), told.dropped) == ([1, 2], 1)


async def test_messages_are_handled_by_fewer_threads_if_no_more_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start
    may_start = 1

    def limited(thread: threading.Thread) -> None:
        nonlocal may_start
        if thread.name.startswith("test-"):
            if not may_start:
                raise RuntimeError("can't start new thread")
            may_start -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    async with working(4) as (workers, told):
        workers.put_runs(deliveries(told, 10, lambda _: None))
        await told.until(10)
        assert sorted(told.acked) == list(range(10))
    assert "1 of 4 threads run" in caplog.text
    async with working(4) as (workers, told):
        workers.put_runs(deliveries(told, 10, lambda _: None))
        await told.until(10)
        assert told.dropped == 10, "they are redelivered, to a process that can handle them"


async def test_a_handler_that_swallows_its_cancellation_does_not_delay_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txmsg.consumer.workers._CANCEL_S_MAX", 0.01)

    workers, told, began, go = (
        Workers[MessageDelivery](1, name="test"),
        RecordingDeliveries(),
        asyncio.Event(),
        asyncio.Event(),
    )

    async def call(message: ReceivedMessage) -> None:
        began.set()
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    workers.put_runs(deliveries(told, 2, call))
    await asyncio.wait_for(began.wait(), DEADLINE_S)
    await asyncio.wait_for(workers.close(), DEADLINE_S)
    go.set()
    await told.until(1)
    await asyncio.sleep(0)
    assert told.acked == [0], "the one that went on to its end, and none after it"


async def test_concurrent_handlers_never_exceed_the_number_of_workers() -> None:
    running = most = 0

    async with working(3) as (workers, told):
        full, go = asyncio.Event(), asyncio.Event()

        async def call(message: ReceivedMessage) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 3:
                full.set()
            await go.wait()
            running -= 1

        workers.put_runs(deliveries(told, 10, call))
        await asyncio.wait_for(full.wait(), DEADLINE_S)
        for _ in range(20):
            await asyncio.sleep(0)
        assert running == 3
        go.set()
        await told.until(10)
        assert most == 3


@KINDS
async def test_messages_of_a_run_are_handled_in_order_and_runs_in_parallel(kind: str) -> None:
    handled: list[int | None] = []

    def note(message: ReceivedMessage) -> None:
        handled.append(message.offset)
        if message.offset == 2:
            raise ValueError("two")

    async with working_on_series(2) as workers:
        go = threading.Event()
        if kind == "loop":
            may_go = asyncio.Event()

            async def wait(message: ReceivedMessage) -> None:
                await may_go.wait()

            waits = Series(wait, 1)
        else:
            waits = Series(lambda message: go.wait(DEADLINE_S), 1)
        quick, next_quick = Series(as_kind(kind, note), 5), Series(as_kind(kind, note), 2)
        workers.put_runs([waits])
        workers.put_runs([quick, next_quick])
        await next_quick.until_ended()
        assert handled == [0, 1, 2, 3, 4, 0, 1]
        assert [error is None for error in quick.noted] == [True, True, False, True, True]
        assert not waits.ended.is_set()
        assert workers.running() == [waits]
        (may_go if kind == "loop" else go).set()
        await waits.until_ended()


@KINDS
async def test_a_stopped_run_ends_after_its_current_message(kind: str) -> None:
    is_stopped = False

    def stop(message: ReceivedMessage) -> None:
        nonlocal is_stopped
        is_stopped = message.offset == 1

    async with working_on_series(1) as workers:
        run = Series(as_kind(kind, stop), 5, goes_on=lambda: not is_stopped)
        workers.put_runs([run])
        await run.until_ended()
        assert run.noted == [None, None]


async def test_a_cancelled_handler_ends_its_run_without_settling_its_message() -> None:
    async def call(message: ReceivedMessage) -> None:
        if message.offset == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async with working_on_series(1) as workers:
        run = Series(call, 3)
        workers.put_runs([run])
        await run.until_ended()
        assert run.noted == [None]


@KINDS
async def test_an_exception_in_the_before_hook_refuses_the_message(kind: str) -> None:
    called: list[int | None] = []

    def before(message: ReceivedMessage) -> None:
        if message.offset == 0:
            raise ValueError("not this one")

    def call(message: ReceivedMessage) -> None:
        called.append(message.offset)

    workers, told = Workers[MessageDelivery](1, name="test", before=before), RecordingDeliveries()
    workers.put_runs(deliveries(told, 2, as_kind(kind, call)))
    await told.until(2)
    await workers.close()
    assert (called, told.acked, list(told.refused)) == ([1], [1], [0])


async def test_def_handlers_run_in_parallel_threads() -> None:
    meeting = threading.Barrier(3, timeout=DEADLINE_S)

    async with working(3) as (workers, told):
        workers.put_runs(deliveries(told, 3, lambda message: meeting.wait()))
        await told.until(3)
        assert not told.refused


@pytest.mark.parametrize("run_count", [1, 1000])
async def test_handlers_that_never_wait_do_not_block_the_event_loop(run_count: int) -> None:
    async with working_on_series(16) as workers:

        async def call(message: ReceivedMessage) -> None:
            return

        runs = [Series(call, 1000 // run_count) for _ in range(run_count)]
        workers.put_runs(runs)
        turns = 0
        while not all(run.ended.is_set() for run in runs):
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 1000 // 50


async def test_one_worker_continues_in_each_iteration_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, count, loop = asyncio.sleep, 0, asyncio.get_running_loop()

    def counted(delay: float) -> Any:
        nonlocal count
        count += delay == 0 and asyncio.get_running_loop() is loop  # others also sleep
        return sleep(delay)

    async with working(100) as (workers, told):
        monkeypatch.setattr(asyncio, "sleep", counted)

        async def call(message: ReceivedMessage) -> None:
            return

        workers.put_runs(deliveries(told, 5000, call))
        await told.until(5000)
        assert count <= 5000 // 50


async def test_all_workers_start_even_if_an_iteration_has_room_for_fewer() -> None:
    async with working(200) as (workers, told):
        meeting = asyncio.Barrier(200)
        workers.put_runs(deliveries(told, 200, lambda message: meeting.wait()))
        await told.until(200)
        assert len(told.acked) == 200


async def test_a_slow_handler_does_not_delay_others() -> None:
    async with working(2) as (workers, told):
        go = asyncio.Event()

        async def call(message: ReceivedMessage) -> None:
            if message.offset == 0:
                await go.wait()

        workers.put_runs(deliveries(told, 5, call))
        await told.until(4)
        assert sorted(told.acked) == [1, 2, 3, 4]
        go.set()
        await told.until(5)


async def test_messages_being_handled_when_workers_stop_are_dropped() -> None:
    workers, told, began = Workers[MessageDelivery](2, name="test"), RecordingDeliveries(), asyncio.Event()

    async def call(message: ReceivedMessage) -> None:
        began.set()
        await asyncio.Event().wait()

    workers.put_runs(deliveries(told, 1, call))
    await asyncio.wait_for(began.wait(), DEADLINE_S)
    await workers.close()
    assert (told.acked, told.refused, told.dropped) == ([], {}, 1)


def test_a_thread_that_outlives_its_event_loop_ends_silently() -> None:
    go, done = threading.Event(), threading.Event()

    async def begin() -> None:
        workers, told, began = Workers[MessageDelivery](1, name="test"), RecordingDeliveries(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def call(message: ReceivedMessage) -> None:
            loop.call_soon_threadsafe(began.set)
            go.wait(DEADLINE_S)
            done.set()

        workers.put_runs(deliveries(told, 1, call))
        await asyncio.wait_for(began.wait(), DEADLINE_S)
        await workers.close()

    asyncio.run(begin())
    go.set()
    assert done.wait(DEADLINE_S)
    for thread in threading.enumerate():
        if thread.name == "test-0":
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


@KINDS
async def test_the_number_of_workers_changes_while_they_work(kind: str) -> None:
    gate, running = threading.Event(), set[int]()

    def on_thread(message: ReceivedMessage) -> None:
        assert message.offset is not None
        running.add(message.offset)
        gate.wait(DEADLINE_S)
        running.discard(message.offset)

    async def on_loop(message: ReceivedMessage) -> None:
        assert message.offset is not None
        running.add(message.offset)
        while not gate.is_set():  # noqa: ASYNC110 - threads wait for it, too
            await asyncio.sleep(0.001)
        running.discard(message.offset)

    async def until_running(count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(running) != count:  # noqa: ASYNC110 - of threads, too
                await asyncio.sleep(0.001)

    handler = on_loop if kind == "loop" else on_thread
    async with working(2) as (workers, told):
        workers.put_runs(deliveries(told, 6, handler))
        await until_running(2)
        workers.resize(5)
        await until_running(5)
        workers.resize(1)
        gate.set()
        await told.until(6)
        gate.clear()

        workers.put_runs(deliveries(told, 3, handler, start=6))
        await until_running(1)
        assert len(workers.running()) == 1
        workers.resize(3)
        await until_running(3)
        gate.set()
        await told.until(9)


async def test_threads_never_exceed_the_limit_while_it_changes() -> None:
    gate = threading.Event()

    def handler(message: ReceivedMessage) -> None:
        gate.wait(DEADLINE_S)

    before = set(threading.enumerate())  # including those of earlier tests with surviving handlers

    def threads() -> int:
        return sum(thread.name.startswith("test-") for thread in set(threading.enumerate()) - before)

    async with working(4) as (workers, told):
        workers.put_runs(deliveries(told, 20, handler))
        for _ in range(3):
            workers.resize(1)
            workers.put_runs(deliveries(told, 1, handler, start=20))
            workers.resize(4)
        assert threads() == 4
        gate.set()
        await told.until(23)
        workers.resize(1)  # no worker is busy now
        async with asyncio.timeout(DEADLINE_S):
            while threads() != 1:  # noqa: ASYNC110 - of threads
                await asyncio.sleep(0.001)
        workers.put_runs(deliveries(told, 3, handler, start=23))
        workers.resize(4)
        await told.until(26)


class WithoutText:
    """Mixin of exceptions whose text cannot be read."""

    def __init__(self, message: ReceivedMessage) -> None:
        self.message = message

    def __str__(self) -> str:
        raise LookupError("no words")


class MutedReject(WithoutText, Reject): ...


class MutedRetry(WithoutText, RetryAfter): ...


class MutedSkip(WithoutText, Skip): ...


class MutedError(WithoutText, TxmsgError): ...


@KINDS
@pytest.mark.parametrize("error", [MutedReject, MutedRetry, MutedSkip, MutedError])
async def test_a_user_exception_whose_own_methods_fail_costs_no_worker(kind: str, error: type[Exception]) -> None:
    def call(message: ReceivedMessage) -> None:
        if message.offset != 2:
            raise error(message)

    async with working(1) as (workers, told):
        workers.put_runs(deliveries(told, 3, as_kind(kind, call)))
        await told.until(3)
    failed = [0, 1]
    assert told.acked == ([*failed, 2] if error is MutedSkip else [2])
    assert [*told.refused] == ([] if error is MutedSkip else failed)
    assert all(text.startswith(f"{error.__name__}: ") for text in told.refused.values())
    assert told.dropped == 0


@KINDS
async def test_a_raising_log_filter_costs_no_worker_and_no_message(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(_: logging.LogRecord) -> bool:
        raise ZeroDivisionError("the filter")

    def call(message: ReceivedMessage) -> None:
        if message.offset != 2:
            raise ValueError(message.offset)

    logger = logging.getLogger("txmsg.consumer.subscriptions")
    logger.addFilter(broken)
    try:
        async with working(1) as (workers, told):
            workers.put_runs(deliveries(told, 3, as_kind(kind, call)))
            await told.until(3)
    finally:
        logger.removeFilter(broken)
    assert told.acked == [2]
    assert [*told.refused] == [0, 1]
    assert "ZeroDivisionError: the filter" in capfd.readouterr().err


@KINDS
async def test_a_worker_continues_when_code_around_a_handler_fails(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Series):
        def note(self, failure: HandlerFailure | None) -> None:
            raise ZeroDivisionError

    def call(message: ReceivedMessage) -> None: ...

    async with working_on_series(1) as workers:
        bad, good = Failing(as_kind(kind, call), 1), Series(as_kind(kind, call), 1)
        workers.put_runs([bad, good])
        await bad.until_ended()
        await good.until_ended()
    assert good.noted == [None]
    assert "what txmsg does around its handler failed" in caplog.text
