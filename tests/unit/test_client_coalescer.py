"""Coalescing of waiting calls into requests."""

from __future__ import annotations

import asyncio

import pytest

from txmsg.client.sending import coalescer, waiting
from txmsg.client.sending.batch import RequestEntry
from txmsg.client.sending.coalescer import Coalescer
from txmsg.errors import BrokerUnavailable, MisuseError, Overloaded

SHARD = b"h" * 16


class Broker:
    """Holds each request until `release` is set, and records all requests."""

    def __init__(self) -> None:
        self.requests: list[list[RequestEntry]] = []
        self.arrived = asyncio.Event()
        self.release = asyncio.Event()

    async def send(self, entries: list[RequestEntry]) -> None:
        self.requests.append(entries)
        self.arrived.set()
        await self.release.wait()
        for entry in entries:
            entry.succeed(SHARD)


def offered(queue: Coalescer[RequestEntry], count: int, *, size_bytes: int = 100) -> list[asyncio.Future[bytes]]:
    loop = asyncio.get_running_loop()
    waiters: list[asyncio.Future[bytes]] = [loop.create_future() for _ in range(count)]
    for number, waiter in enumerate(waiters):
        queue.offer(RequestEntry(number.to_bytes(16, "big"), 1, size_bytes, waiter))
    return waiters


def queue_to(broker: Broker, *, timeout_s: float = 10.0) -> Coalescer[RequestEntry]:
    return Coalescer(broker.send, timeout_s=timeout_s, loop=asyncio.get_running_loop())


async def test_calls_in_one_iteration_of_the_event_loop_share_a_request() -> None:
    broker = Broker()
    broker.release.set()
    queue = queue_to(broker)
    assert await asyncio.gather(*offered(queue, 100)) == [SHARD] * 100
    assert [len(request) for request in broker.requests] == [100]
    await queue.drain()


async def test_calls_during_pending_requests_share_the_next_request() -> None:
    broker = Broker()
    queue = queue_to(broker)
    waiters = []
    for count in (1, 1, 5, 7):
        waiters += offered(queue, count)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [len(request) for request in broker.requests] == [1] * waiting.IN_FLIGHT_MAX
    broker.release.set()
    await asyncio.gather(*waiters)
    assert [len(request) for request in broker.requests] == [1, 1, 12]
    await queue.drain()


async def test_requests_are_capped_by_items_and_by_bytes() -> None:
    broker = Broker()
    broker.release.set()
    queue = queue_to(broker)
    await asyncio.gather(*offered(queue, 2 * waiting.ITEMS_MAX + 300))
    assert [len(request) for request in broker.requests][:2] == [waiting.ITEMS_MAX] * 2
    broker.requests.clear()
    await asyncio.gather(*offered(queue, 5, size_bytes=3 * 1024 * 1024))
    assert [len(request) for request in broker.requests] == [2, 2, 1]
    await queue.drain()


async def test_many_callers_are_split_into_two_requests_and_few_are_not() -> None:
    broker = Broker()
    broker.release.set()
    queue = queue_to(broker)
    for count, sizes in ((100, [100]), (256, [128, 128]), (800, [400, 400])):
        broker.requests.clear()
        await asyncio.gather(*offered(queue, count))
        assert [len(request) for request in broker.requests] == sizes
    await queue.drain()


async def test_a_full_queue_delays_callers_then_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PENDING_ITEMS_MAX", 3)

    broker = Broker()
    queue = queue_to(broker, timeout_s=0.2)
    under_way = offered(queue, 1)
    await broker.arrived.wait()
    monkeypatch.setattr(coalescer, "IN_FLIGHT_MAX", 1)
    inside = offered(queue, 3)
    outside = offered(queue, 2)
    for waiter in outside:
        with pytest.raises(Overloaded, match="3 messages wait"):
            await waiter
    broker.release.set()
    assert await under_way[0] == SHARD
    for waiter in inside:  # in the queue, but never sent
        with pytest.raises(BrokerUnavailable, match="not sent within"):
            await waiter
    assert await asyncio.gather(*offered(queue, 3)) == [SHARD] * 3
    await queue.drain()


async def test_callers_waiting_for_a_full_queue_proceed_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PENDING_ITEMS_MAX", 3)

    broker = Broker()
    queue = queue_to(broker)
    waiters = offered(queue, 20)
    broker.release.set()
    assert await asyncio.gather(*waiters) == [SHARD] * 20
    await queue.drain()


async def test_draining_completes_accepted_calls_and_refuses_new_ones() -> None:
    broker = Broker()
    queue = queue_to(broker)
    waiters = offered(queue, 5)
    draining = asyncio.ensure_future(queue.drain())
    await broker.arrived.wait()
    [late] = offered(queue, 1)
    with pytest.raises(MisuseError, match="closed"):
        await late
    broker.release.set()
    await draining
    assert await asyncio.gather(*waiters) == [SHARD] * 5


async def test_an_unexpected_error_in_sending_fails_all_waiters(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(entries: list[RequestEntry]) -> None:
        raise ZeroDivisionError("a bug")

    queue: Coalescer[RequestEntry] = Coalescer(broken, timeout_s=10, loop=asyncio.get_running_loop())
    [waiter] = offered(queue, 1)
    with pytest.raises(ZeroDivisionError):
        await waiter
    await queue.drain()
    assert "failed unexpectedly" in caplog.text
