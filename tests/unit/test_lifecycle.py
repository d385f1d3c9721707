"""A consumer whose start waits for the server's answer to its credentials."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType

import pytest

from tests.waiting import until_async
from txmsg.consumer.lifecycle import WithHandlers
from txmsg.consumer.options import ConsumerOptions
from txmsg.errors import MisuseError, Unauthenticated


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Reset signal handlers that other tests in this process may have left."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL), signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])


class Waiting(WithHandlers):
    """A consumer whose start waits until the server has `answered`, with an error if there is a `refusal`."""

    def __init__(self) -> None:
        super().__init__("g", ConsumerOptions(concurrency=1, close_timeout_s=1))
        self.subscribe("t")(print)
        self.asked = asyncio.Semaphore(0)
        self.answered = asyncio.Event()
        self.refusal: Unauthenticated | None = None
        self.opened = self.closed = 0

    async def _knock(self) -> None:
        self.asked.release()
        await self.answered.wait()
        if self.refusal is not None:
            raise self.refusal

    async def _open(self) -> None:
        self.opened += 1

    async def _close(self) -> None:
        self.closed += 1


async def test_concurrent_starts_open_it_once() -> None:
    consumer = Waiting()
    starting = [asyncio.create_task(consumer.start()) for _ in range(2)]
    for _ in starting:
        await consumer.asked.acquire()
    consumer.answered.set()
    await asyncio.gather(*starting)
    assert consumer.opened == 1


async def test_a_close_during_a_waiting_start_prevents_the_start() -> None:
    consumer = Waiting()
    starting = asyncio.create_task(consumer.start())
    await consumer.asked.acquire()
    await consumer.close()
    consumer.answered.set()
    with pytest.raises(MisuseError, match="closed"):
        await starting
    assert (consumer.opened, consumer.closed) == (0, 0)


async def test_after_a_refused_start_it_is_closed_and_can_start_again() -> None:
    consumer = Waiting()
    consumer.answered.set()
    consumer.refusal = Unauthenticated("the token is not valid")
    with pytest.raises(Unauthenticated):
        await consumer.start()
    assert consumer.opened == 0
    consumer.refusal = None
    async with consumer:
        assert consumer.opened == 1
    assert consumer.closed == 1


SIGNALS = [signal.SIGTERM, signal.SIGINT]


async def running(consumer: Waiting) -> asyncio.Task[None]:
    """Return the task of its `run`, which waits to be stopped."""
    consumer.answered.set()
    task = asyncio.create_task(consumer.run())
    await until_async(lambda: consumer.opened)
    return task


@pytest.mark.parametrize("number", SIGNALS)
async def test_signals_stop_all_running_apps_and_handlers_are_restored(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    consumers = [Waiting(), Waiting()]
    tasks = [await running(consumer) for consumer in consumers]
    os.kill(os.getpid(), number)
    await asyncio.gather(*tasks)
    assert [consumer.closed for consumer in consumers] == [1, 1]
    assert [signal.getsignal(each) for each in SIGNALS] == before


async def test_a_stopped_app_leaves_signal_handling_to_the_other() -> None:
    first, second = Waiting(), Waiting()
    one, other = await running(first), await running(second)
    first.stop()
    await one
    os.kill(os.getpid(), signal.SIGTERM)
    await other
    assert second.closed == 1


async def test_a_signal_handled_by_the_application_is_left_to_it() -> None:
    got: list[int] = []

    def of_application(number: int, _: FrameType | None) -> None:
        got.append(number)

    before = signal.signal(signal.SIGTERM, of_application)
    consumer = Waiting()
    try:
        task = await running(consumer)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is of_application
        consumer.stop()
        await task
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM]


PROGRAM = """
import asyncio, sys
from tests.unit.test_lifecycle import Waiting
from txmsg.runtime import loops

class Telling(Waiting):
    async def _open(self):
        print("open", flush=True)
    async def _close(self):
        print("closed", flush=True)

async def main():
    consumer = Telling()
    consumer.answered.set()
    await consumer.run()

{"asyncio": asyncio, "uvloop": loops}[sys.argv[1]].run(main())
print("ended", flush=True)
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_program_stops_cleanly(loop: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", PROGRAM, loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "open\n"
        program.send_signal(number)
        assert program.stdout.read().split() == ["closed", "ended"]
    assert program.returncode == 0
