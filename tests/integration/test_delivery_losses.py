"""Messages lost with their consumer on a real PostgreSQL: losses do not count, and suspects are delivered alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.integration.delivery_harness import (
    Delivered,
    Notify,
    delivering,
    each_of,
    notify_at,
    offsets,
    poll,
    receipts,
    receive,
)
from txmsg.administration.halves import GroupLag
from txmsg.broker.delivery import Delivery
from txmsg.broker.delivery.offsets import Expiry
from txmsg.broker.delivery.values import Refusal
from txmsg.runtime.backoff import Backoff

TIMEOUT_S = 60.0


class World:
    """A delivery with a clock moved by the test, and consumers that isolate messages lost twice."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.notify: Notify
        self.delivery: Delivery

    async def take(self, count: int, **how: Any) -> list[Delivered]:
        """Return so many messages, for a consumer with TIMEOUT_S to settle them."""
        return await receive(self.delivery, count, visibility_timeout_s=TIMEOUT_S, expiry=Expiry.LOST, **how)

    async def lose(self, count: int) -> list[Delivered]:
        """Return messages of a consumer that disappears."""
        got = await self.take(count)
        self.now += TIMEOUT_S
        return got

    async def settle(self, *acked: Delivered, refused: Delivered | None = None) -> list[Any]:
        """Settle messages and return the receipts that came too late."""
        refusals = [] if refused is None else [Refusal(refused.receipt, "boom", 0.0)]
        return list(await self.delivery.settle("g", "c", receipts(acked), refusals))

    async def lag(self) -> GroupLag:
        (lag,) = await self.notify.lag(self.delivery)
        return lag


@asynccontextmanager
async def world(url: str, count: int, *, retries_max: int = 4) -> AsyncIterator[World]:
    it = World()
    backoff = Backoff(delays_s=(0.0,), retries_max=retries_max)
    settings: dict[str, Any] = {"expire_s": 0.02, "retry_poll_s": 0.02, "lease_ttl_s": 1e9, "backoff": backoff}
    async with notify_at(url) as it.notify, delivering(it.notify, monotonic=lambda: it.now, **settings) as it.delivery:
        await it.notify.add(count)
        yield it


async def test_a_loss_is_not_counted_and_after_the_second_messages_are_delivered_alone(notify_url: str) -> None:
    async with world(notify_url, 3) as it:
        assert len(await it.lose(3)) == 3
        second = await it.lose(3)
        assert [message.attempt for message in second] == [1, 1, 1]
        alone: list[Delivered] = []
        for _ in range(3):
            (batch,) = await it.delivery.receive(poll("g", "c", [("t", "*")], 10, 30.0, TIMEOUT_S, expiry=Expiry.LOST))
            assert (len(batch.rows), batch.attempts, batch.losses) == (1, [1], [2])
            alone += each_of([batch])
        assert sorted(offsets(alone)) == [0, 1, 2]
        assert await it.settle(*alone) == []
        assert await it.lag() == GroupLag(group="g", topic="t", waiting=0, retrying=0, dead=0)


async def test_only_losses_of_messages_handled_alone_count(notify_url: str) -> None:
    async with world(notify_url, 1) as it:
        await it.lose(1)
        await it.lose(1)
        (unbegun,) = await it.lose(1)
        (joined,) = await it.take(1)
        assert it.delivery.note_alone("g", [joined.receipt], is_alone=True) == []
        assert it.delivery.note_alone("g", [joined.receipt], is_alone=False) == []
        it.now += TIMEOUT_S
        (alone,) = await it.take(1)
        assert [unbegun.attempt, joined.attempt, alone.attempt] == [1, 1, 1]
        assert it.delivery.note_alone("g", [alone.receipt], is_alone=True) == []
        it.now += TIMEOUT_S
        (again,) = await it.take(1)
        assert again.attempt == 2
        assert it.delivery.note_alone("g", [alone.receipt], is_alone=True) == [alone.receipt], "it was taken back"
        assert await it.settle(again) == []


async def test_a_message_lost_alone_each_time_becomes_a_dead_letter(notify_url: str) -> None:
    async with world(notify_url, 1, retries_max=2) as it:
        await it.lose(1)
        await it.lose(1)
        for attempt in (1, 2, 3):
            (message,) = await it.take(1)
            assert message.attempt == attempt
            assert await it.delivery.renew("g", "c", [message.receipt], TIMEOUT_S) == []
            it.delivery.note_alone("g", [message.receipt], is_alone=True)
            it.now += TIMEOUT_S
        assert await it.take(1, wait_s=0.2) == []
        assert await it.lag() == GroupLag(group="g", topic="t", waiting=0, retrying=0, dead=1)


async def test_a_refusal_ends_the_suspicion(notify_url: str) -> None:
    async with world(notify_url, 2) as it:
        await it.lose(2)
        await it.lose(2)
        for _ in range(2):
            (message,) = await it.take(1)
            await it.settle(refused=message)
        assert it.notify.query("select attempt, losses from txmsg.retry") == [(1, 0), (1, 0)]
        assert [message.attempt for message in await it.take(2)] == [2, 2]


async def test_losses_count_for_members_that_do_not_isolate(notify_url: str) -> None:
    async with world(notify_url, 2) as it:
        await it.lose(2)
        await it.lose(2)
        got = await receive(it.delivery, 2, visibility_timeout_s=TIMEOUT_S)
        it.now += TIMEOUT_S
        again = await receive(it.delivery, 2)
        assert ([m.attempt for m in got], [m.attempt for m in again]) == ([1, 1], [2, 2])
