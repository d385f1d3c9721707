"""Isolation of a handler in a process: running handlers are waited for, others wait, and all resume."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.test_workers import DEADLINE_S, RecordingDeliveries, deliveries
from tests.waiting import until_async
from txmsg.client.receiving.delivery import MessageDelivery
from txmsg.client.receiving.suspects import alone_s
from txmsg.consumer.isolation import isolation
from txmsg.consumer.workers import Workers
from txmsg.message import ReceivedMessage


class Handlers:
    """Handlers that record each message and hold those at offset 0 until released."""

    def __init__(self, kind: str) -> None:
        self.began: list[int | None] = []
        self.go_on = threading.Event()
        self.call: Callable[[ReceivedMessage], Any] = self._handle if kind == "def" else self._handle_on_loop

    def _handle(self, message: ReceivedMessage) -> None:
        self.began.append(message.offset)
        if message.offset == 0:
            self.go_on.wait(DEADLINE_S)

    async def _handle_on_loop(self, message: ReceivedMessage) -> None:
        self.began.append(message.offset)
        if message.offset == 0:
            await until_async(self.go_on.is_set)


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_no_handler_of_any_consumer_starts_during_an_isolated_one(kind: str) -> None:
    told, other_told, handlers, alone = RecordingDeliveries(), RecordingDeliveries(), Handlers(kind), Handlers(kind)
    workers, others = Workers[MessageDelivery](4, name="a"), Workers[MessageDelivery](4, name="b")
    try:
        others.put_runs(deliveries(other_told, 1, handlers.call))
        await until_async(lambda: handlers.began)
        asyncio.get_running_loop().call_soon(handlers.go_on.set)
        async with isolation.alone(DEADLINE_S) as is_alone:
            assert is_alone
            (run,) = deliveries(told, 1, alone.call)
            ended = workers.run_alone(run)
            others.put_runs(deliveries(other_told, 2, handlers.call, start=5))
            await until_async(lambda: alone.began)
            assert workers.running() == [run]
            alone.go_on.set()
            await asyncio.wait_for(ended.wait(), DEADLINE_S)
            assert handlers.began == [0], "those that were put meanwhile wait"
        await other_told.until(3)
        assert sorted(other_told.acked) == [0, 5, 6]
        assert told.acked == [0]
    finally:
        handlers.go_on.set()
        await workers.close()
        await others.close()


async def test_waiting_for_a_running_handler_is_bounded() -> None:
    told, handlers = RecordingDeliveries(), Handlers("async def")
    workers = Workers[MessageDelivery](1, name="a")
    try:
        workers.put_runs(deliveries(told, 1, handlers.call))
        async with isolation.alone(0.02) as is_alone:
            assert not is_alone
    finally:
        handlers.go_on.set()
        await workers.close()


def test_isolation_of_a_message_lasts_longer_after_each_loss() -> None:
    assert [alone_s(losses) for losses in (2, 3, 4, 5, 1000)] == [2.0, 8.0, 32.0, 32.0, 32.0]
