"""Hooks that send: their producers are reused by the application and closed even if the start fails."""

from __future__ import annotations

import asyncio
import queue

import pytest

from tests.broker_process import BrokerProcess
from tests.integration.client_harness import WAIT_S
from txmsg import Message, MisuseError, ReceivedMessage, Txmsg


async def test_producers_can_be_used_in_start_hooks_and_later(broker: BrokerProcess) -> None:
    app, got = Txmsg(broker.address, group="g"), queue.Queue[bytes]()
    by_thread, by_loop = app.producer("shop"), app.async_producer("shop")

    @app.on_startup
    async def greet() -> None:
        by_thread.send(Message("t", b"hook, thread"))
        await by_loop.send(Message("t", b"hook, loop"))

    @app.subscribe("t")
    def note(message: ReceivedMessage) -> None:
        got.put(message.body)

    for _ in range(2):
        async with app:
            by_thread.send(Message("t", b"later"))
            seen = {await asyncio.to_thread(got.get, timeout=WAIT_S) for _ in range(3)}
        assert seen == {b"hook, thread", b"hook, loop", b"later"}


async def test_a_sync_producer_in_a_coroutine_of_the_txmsg_loop_is_refused_with_a_remedy(
    broker: BrokerProcess,
) -> None:
    app = Txmsg(broker.address)
    producer = app.producer("shop")

    @app.on_startup
    async def greet() -> None:
        producer.send(Message("t", b"1"))

    with pytest.raises(MisuseError, match="use the async classes there"):
        await asyncio.to_thread(app.__enter__)


async def test_a_producer_used_by_a_hook_is_closed_when_another_hook_fails(broker: BrokerProcess) -> None:
    app = Txmsg(broker.address)
    by_thread, by_loop = app.producer("shop"), app.async_producer("shop")

    @app.on_startup
    async def greet() -> None:
        by_thread.send(Message("t", b"1"))
        await by_loop.send(Message("t", b"2"))

    @app.on_startup
    def fail() -> None:
        raise ValueError("no table")

    with pytest.raises(ValueError, match="no table"):
        await app.start()
    with pytest.raises(MisuseError, match="closed"):
        by_thread.send(Message("t", b"3"))
    with pytest.raises(MisuseError, match="closed"):
        await by_loop.send(Message("t", b"4"))
