"""Those who run handlers: how many at once, what a link is told, when the loop has its turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from txmsg.client.link import Hand, Link
from txmsg.client.workers import Job, LoopWorkers, ThreadWorkers
from txmsg.consumer.subscriptions import Handler
from txmsg.errors import StorageError
from txmsg.message import ReceivedMessage
from txmsg.runtime.user_function import UserFunction, in_handler

HAND = Hand(7, 1, 1)
DEADLINE_S = 60.0


class Told:
    """Stands where a Link does, and notes what it is told."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.refused: dict[int, str] = {}
        self.dropped = 0
        self.lost: set[int] = set()
        self._told = asyncio.Event()

    def ack(self, hand: Hand, offset: int) -> None:
        self.acked.append(offset)
        self._told.set()

    def refuse(self, hand: Hand, offset: int, error: str) -> None:
        self.refused[offset] = error
        self._told.set()

    def drop(self, hand: Hand, offset: int) -> None:
        self.dropped += 1
        self._told.set()

    def holds(self, hand: Hand, offset: int, now: float) -> bool:
        return offset not in self.lost

    async def until(self, count: int) -> None:
        """Returns when it was told of so many messages."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.acked) + len(self.refused) + self.dropped < count:
                self._told.clear()
                await self._told.wait()


def jobs(told: Told, count: int, call: Callable[[ReceivedMessage], Any], *, start: int = 0) -> list[Job]:
    handler = Handler("g", "t", UserFunction("the handler", call, "message"))
    late_at = asyncio.get_running_loop().time() + 60
    return [
        Job(cast(Link, told), HAND, ReceivedMessage("t", b"", offset=offset), handler, late_at)
        for offset in range(start, start + count)
    ]


@asynccontextmanager
async def working(count: int, kind: str) -> AsyncIterator[tuple[LoopWorkers | ThreadWorkers, Told]]:
    workers = LoopWorkers(count) if kind == "loop" else ThreadWorkers(count, name="test")
    try:
        yield workers, Told()
    finally:
        if isinstance(workers, LoopWorkers):
            await workers.close()
        else:
            workers.close()


def as_kind(kind: str, call: Callable[[ReceivedMessage], None]) -> Callable[[ReceivedMessage], Any]:
    """The handler as `async def` for workers on the loop."""

    async def call_async(message: ReceivedMessage) -> None:
        call(message)

    return call_async if kind == "loop" else call


KINDS = pytest.mark.parametrize("kind", ["loop", "threads"])


@KINDS
async def test_each_message_is_acked_refused_or_dropped_once(kind: str) -> None:
    def call(message: ReceivedMessage) -> None:
        assert in_handler.get()
        if message.offset == 3:
            raise ValueError("three")

    async with working(4, kind) as (workers, told):
        workers.put(jobs(told, 10, as_kind(kind, call)))
        told.lost = {10, 11}
        workers.put(jobs(told, 2, as_kind(kind, call), start=10))
        await told.until(12)
        assert sorted(told.acked) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert told.refused.keys() == {3}
        assert told.refused[3].startswith("ValueError: three\n")
        assert told.dropped == 2


def test_the_error_told_of_a_handler_can_be_stored_whatever_is_in_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, logger="txmsg.consumer.subscriptions"):
        handler = Handler("g", "t", UserFunction("the handler", print, "message"))
        text = handler.text_of(ReceivedMessage("t", b""), ValueError("a \0 b \ud800 c"))
    assert text == "ValueError: a \\0 b \\ud800 c\n"


def test_an_error_of_txmsg_is_logged_by_its_text_and_any_other_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = Handler("g", "t", UserFunction("the handler", print, "message"))
    for error in (StorageError("table txmsg_inbox is absent"), ValueError("odd")):
        handler.text_of(ReceivedMessage("t", b""), error)
    own, other = caplog.records
    assert own.getMessage().endswith("after a pause: StorageError: table txmsg_inbox is absent")
    assert own.exc_info is None
    assert other.getMessage().endswith("it comes again after a pause")
    assert other.exc_info is not None


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Panic(BaseException):
    """As those of libraries in Rust."""


@KINDS
@pytest.mark.parametrize("error", [Mute, Panic])
async def test_no_exception_of_a_handler_ends_its_worker(kind: str, error: type[BaseException]) -> None:
    def call(message: ReceivedMessage) -> None:
        if message.offset == 0:
            raise error

    async with working(1, kind) as (workers, told):
        workers.put(jobs(told, 3, as_kind(kind, call)))
        await told.until(3)
        assert (sorted(told.acked), sorted(told.refused)) == ([1, 2], [0])


async def test_a_handler_that_cancels_its_own_task_costs_no_worker() -> None:
    async with working(1, "loop") as (workers, told):

        async def call(message: ReceivedMessage) -> None:
            if message.offset == 0:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)

        workers.put(jobs(told, 1, call))
        await told.until(1)
        workers.put(jobs(told, 3, call)[1:])
        await told.until(3)
        assert (sorted(told.acked), told.dropped) == ([1, 2], 1)


async def test_a_handler_that_swallows_its_cancellation_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txmsg.client.workers._CANCEL_S_MAX", 0.01)

    workers, told, began, go = LoopWorkers(1), Told(), asyncio.Event(), asyncio.Event()

    async def call(message: ReceivedMessage) -> None:
        began.set()
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    workers.put(jobs(told, 2, call))
    await asyncio.wait_for(began.wait(), DEADLINE_S)
    await asyncio.wait_for(workers.close(), DEADLINE_S)
    go.set()
    await told.until(1)
    await asyncio.sleep(0)
    assert told.acked == [0], "the one that went on to its end, and none after it"


async def test_no_more_handlers_run_at_once_than_there_are_workers() -> None:
    running = most = 0

    async with working(3, "loop") as (workers, told):
        full, go = asyncio.Event(), asyncio.Event()

        async def call(message: ReceivedMessage) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 3:
                full.set()
            await go.wait()
            running -= 1

        workers.put(jobs(told, 10, call))
        await asyncio.wait_for(full.wait(), DEADLINE_S)
        for _ in range(20):
            await asyncio.sleep(0)
        assert running == 3
        go.set()
        await told.until(10)
        assert most == 3


async def test_threads_run_at_once() -> None:
    meeting = threading.Barrier(3, timeout=DEADLINE_S)

    async with working(3, "threads") as (workers, told):
        workers.put(jobs(told, 3, lambda message: meeting.wait()))
        await told.until(3)
        assert not told.refused


async def test_handlers_that_wait_for_nothing_leave_the_loop_its_turns() -> None:
    async with working(16, "loop") as (workers, told):

        async def call(message: ReceivedMessage) -> None:
            return

        workers.put(jobs(told, 1000, call))
        turns = 0
        while len(told.acked) < 1000:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 1000 // 50


async def test_a_slow_handler_does_not_hold_up_those_behind_it() -> None:
    async with working(2, "loop") as (workers, told):
        go = asyncio.Event()

        async def call(message: ReceivedMessage) -> None:
            if message.offset == 0:
                await go.wait()

        workers.put(jobs(told, 5, call))
        await told.until(4)
        assert sorted(told.acked) == [1, 2, 3, 4]
        go.set()
        await told.until(5)


async def test_what_is_being_handled_when_workers_end_is_dropped() -> None:
    workers, told, began = LoopWorkers(2), Told(), asyncio.Event()

    async def call(message: ReceivedMessage) -> None:
        began.set()
        await asyncio.Event().wait()

    workers.put(jobs(told, 1, call))
    await asyncio.wait_for(began.wait(), DEADLINE_S)
    await workers.close()
    assert (told.acked, told.refused, told.dropped) == ([], {}, 1)


def test_a_thread_that_outlives_its_loop_ends_without_a_word() -> None:
    go, done = threading.Event(), threading.Event()

    async def begin() -> None:
        workers, told, began = ThreadWorkers(1, name="test"), Told(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def call(message: ReceivedMessage) -> None:
            loop.call_soon_threadsafe(began.set)
            go.wait(DEADLINE_S)
            done.set()

        workers.put(jobs(told, 1, call))
        await asyncio.wait_for(began.wait(), DEADLINE_S)
        workers.close()

    asyncio.run(begin())
    go.set()
    assert done.wait(DEADLINE_S)
    for thread in threading.enumerate():
        if thread.name == "test-0":
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
