"""Values that take a while to read are read by one reader, on demand, and not too often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from txmsg.errors import BrokerUnavailable
from txmsg.metrics.lookup import Lookup


@asynccontextmanager
async def running(lookup: Lookup[int]) -> AsyncIterator[None]:
    task = asyncio.create_task(lookup.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_values_are_read_on_demand_and_cached_for_a_while() -> None:
    readings = 0

    async def read() -> int:
        nonlocal readings
        readings += 1
        return readings

    lookup = Lookup("numbers", read)
    async with running(lookup):
        await asyncio.sleep(0)
        assert (lookup.found, readings) == (None, 0)
        assert lookup.age_s() >= 0, "an alert on it fires also when nothing is ever read"
        await lookup.refresh_if_old()
        assert lookup.found == 1
        assert lookup.age_s() >= 0
        await asyncio.gather(*(lookup.refresh_if_old() for _ in range(5)))
        assert readings == 1


async def test_hanging_reading_times_out_for_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txmsg.metrics.lookup.PATIENCE_S", 0.01)
    go_on = asyncio.Event()
    readings = 0

    async def read() -> int:
        nonlocal readings
        readings += 1
        await go_on.wait()
        return 7

    lookup = Lookup("numbers", read)
    async with running(lookup):
        await lookup.refresh_if_old()
        await lookup.refresh_if_old()
        assert (lookup.found, readings) == (None, 1)
        go_on.set()
        while lookup.found is None:
            await lookup.refresh_if_old()
        assert lookup.found == 7


async def test_failing_reading_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    results: list[int | Exception] = [BrokerUnavailable("away"), BrokerUnavailable("away"), ValueError("odd"), 3]

    async def read() -> int:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    lookup = Lookup("numbers", read)
    async with running(lookup):
        for _ in range(4):
            await lookup.refresh_if_old()
        assert lookup.found == 3
    assert [record.message for record in caplog.records] == [
        "numbers cannot be read: away",
        "numbers cannot be read: odd",
    ]
