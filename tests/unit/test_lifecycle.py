"""A consumer whose start waits: for a server that says whether it lets us in."""

from __future__ import annotations

import asyncio

import pytest

from txmsg.consumer.lifecycle import AsyncLifecycle
from txmsg.errors import MisuseError, Unauthenticated


class Waiting(AsyncLifecycle):
    """Its start waits until the server has `answered`, with an error if there is a `refusal`."""

    def __init__(self) -> None:
        super().__init__("g", concurrency=1, close_timeout_s=1, start=None, broadcast=False)
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


async def test_two_tasks_that_start_it_open_it_once() -> None:
    consumer = Waiting()
    starting = [asyncio.create_task(consumer.start()) for _ in range(2)]
    for _ in starting:
        await consumer.asked.acquire()
    consumer.answered.set()
    await asyncio.gather(*starting)
    assert consumer.opened == 1


async def test_closed_while_it_waits_it_does_not_start() -> None:
    consumer = Waiting()
    starting = asyncio.create_task(consumer.start())
    await consumer.asked.acquire()
    await consumer.close()
    consumer.answered.set()
    with pytest.raises(MisuseError, match="closed"):
        await starting
    assert (consumer.opened, consumer.closed) == (0, 0)


async def test_refused_it_is_not_open_and_may_start_again() -> None:
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
