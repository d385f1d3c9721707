"""Objects that outlive a call do not keep its context: its variables would leak into all later work."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from sqlalchemy import create_engine

from tests.broker_process import BrokerProcess
from tests.waiting import until_async
from txmsg import FenceCheckListener, create_tables
from txmsg.client import AsyncProducer, AsyncSettings
from txmsg.message import Message
from txmsg.runtime.process import LoopThread


class Request:
    """The value of a context variable of a web application during a request."""


request: contextvars.ContextVar[Request] = contextvars.ContextVar("request")


async def is_forgotten(work: Callable[[], Awaitable[object]]) -> bool:
    """Return True if no object keeps the context of this work after its end."""

    async def within() -> weakref.ref[Request]:
        given = Request()
        request.set(given)
        await work()
        return weakref.ref(given)

    given = await asyncio.create_task(within())

    def is_gone() -> bool:
        gc.collect()
        return given() is None

    await until_async(is_gone)
    return True


async def test_a_producer_does_not_keep_the_context_of_its_first_use(broker: BrokerProcess) -> None:
    async with AsyncExitStack() as opened:
        producer = AsyncProducer(broker.address, group="p")
        opened.push_async_callback(producer.close)

        async def use() -> None:
            await producer.start()
            await producer.send(Message("t", b"1"))

        assert await is_forgotten(use)


async def test_an_outbox_does_not_keep_the_context_of_its_first_use(broker: BrokerProcess, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'business.db'}")
    try:
        create_tables(engine)
        async with AsyncExitStack() as opened:
            listener = FenceCheckListener(engine)
            producer = AsyncProducer(broker.address, group="p", check_listener=listener)
            opened.push_async_callback(producer.close)

            async def use() -> None:
                producer._use_outbox()
                await producer.start()
                await producer.send(Message("t", b"1"))

            assert await is_forgotten(use)
    finally:
        engine.dispose()


async def test_settings_do_not_keep_the_context_in_which_they_were_opened(broker: BrokerProcess) -> None:
    async with AsyncExitStack() as opened:
        settings = AsyncSettings(broker.address)
        opened.push_async_callback(settings.close)
        assert await is_forgotten(settings.start)


async def test_the_event_loop_of_the_process_does_not_keep_the_context_of_its_first_use() -> None:
    threads: list[LoopThread] = []

    async def first_use() -> None:
        threads.append(LoopThread())

    assert await is_forgotten(first_use)
    threads[0].close()
