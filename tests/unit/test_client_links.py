"""A consumer's lines to its brokers: what one of them does at its end is nothing to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from tests.waiting import until_async
from txmsg.client.channel import Brokers
from txmsg.client.receiving import links as links_module
from txmsg.client.receiving.link import Link
from txmsg.client.receiving.links import Links


class OneBroker:
    """A list of brokers that changes when the test says so."""

    def __init__(self) -> None:
        self.addresses: list[str] = ["a:1"]
        self.changed: Callable[[], None] = lambda: None

    def watch(self, changed: Callable[[], None]) -> None:
        self.changed = changed


class SilentLink:
    """Its broker answers no more, so its poll ends only by being cancelled."""

    address = "a:1"

    def __init__(self) -> None:
        self.flushed = False

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def keep(self) -> None:
        await asyncio.Event().wait()

    async def idle(self) -> None: ...

    async def flush(self, timeout_s: float) -> None:
        self.flushed = True

    def stop(self) -> None: ...


async def test_a_consumer_stops_while_a_broker_that_has_gone_is_being_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "SETTLE_S_MAX", 0.05)

    brokers, link = OneBroker(), SilentLink()
    links = Links(cast(Brokers, brokers), lambda address: cast(Link, link), group="g")
    await asyncio.sleep(0)
    brokers.addresses = []
    brokers.changed()
    async with asyncio.timeout(60):
        await links.stop()  # the poll that it waits for is cancelled under it
        await links.close()
        await links.flush()


async def test_what_keeping_had_taken_is_back_before_a_broker_that_has_gone_is_told_the_rest() -> None:
    gave_back: list[bool] = []

    class Keeping(SilentLink):
        async def run(self) -> None: ...

        async def keep(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                gave_back.append(not self.flushed)

    brokers, link = OneBroker(), Keeping()
    links = Links(cast(Brokers, brokers), lambda address: cast(Link, link), group="g")
    await asyncio.sleep(0)
    brokers.addresses = []
    brokers.changed()
    await until_async(lambda: link.flushed)
    await links.close()
    assert gave_back == [True]


async def test_a_consumer_that_ends_tells_also_a_broker_that_has_gone_and_is_still_waited_for() -> None:
    class Busy(SilentLink):
        async def idle(self) -> None:
            await asyncio.Event().wait()

    brokers, link = OneBroker(), Busy()
    links = Links(cast(Brokers, brokers), lambda address: cast(Link, link), group="g")
    await asyncio.sleep(0)
    brokers.addresses = []
    brokers.changed()
    await asyncio.sleep(0)
    await links.close()
    assert not link.flushed
    await links.flush()
    assert link.flushed
