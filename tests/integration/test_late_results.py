"""A result that arrives after its delivery has expired counts if the message is not settled yet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integration.delivery_harness import Delivered, Notify, delivering, notify_at, receipts, receive
from txmsg.administration.halves import GroupLag
from txmsg.broker.delivery import Delivery
from txmsg.broker.delivery.offsets import Expiry
from txmsg.broker.delivery.values import Refusal
from txmsg.runtime.backoff import Backoff

TIMEOUT_S = 60.0
DONE = GroupLag(group="g", topic="t", waiting=0, retrying=0, dead=0)


class World:
    """A delivery of one message with a clock moved by the test."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.notify: Notify
        self.delivery: Delivery

    async def take(self, **how: Any) -> Delivered:
        """Return the message, for a consumer with TIMEOUT_S to settle it."""
        (message,) = await receive(self.delivery, 1, visibility_timeout_s=TIMEOUT_S, **how)
        return message

    async def lose(self, **how: Any) -> Delivered:
        """Return the message, after the broker has taken it back from its consumer."""
        message = await self.take(**how)
        await self.expire()
        return message

    async def expire(self) -> None:
        self.now += TIMEOUT_S
        await self.delivery.maintenance.expire_once()

    async def settle(self, *acked: Delivered, refused: Delivered | None = None) -> list[Any]:
        """Settle messages and return the receipts that came too late."""
        refusals = [] if refused is None else [Refusal(refused.receipt, "boom", 0.0)]
        return list(await self.delivery.settle("g", "c", receipts(acked), refusals))

    async def assert_done(self) -> None:
        assert await receive(self.delivery, 1, wait_s=0.3) == []
        assert await self.notify.lag(self.delivery) == [DONE]


@asynccontextmanager
async def world(url: str, *, retries_max: int = 4) -> AsyncIterator[World]:
    it = World()
    backoff = Backoff(delays_s=(0.0,), retries_max=retries_max)
    settings: dict[str, Any] = {"expire_s": 0.02, "retry_poll_s": 0.02, "lease_ttl_s": 1e9, "backoff": backoff}
    async with notify_at(url) as it.notify, delivering(it.notify, monotonic=lambda: it.now, **settings) as it.delivery:
        await it.notify.add(1)
        yield it


@pytest.mark.parametrize("losses", [1, 2])
async def test_a_late_acknowledgement_counts_when_no_consumer_holds_the_message(notify_url: str, losses: int) -> None:
    async with world(notify_url) as it:
        first, *_ = [await it.lose() for _ in range(losses)]
        assert await it.settle(first) == []
        await it.assert_done()
        assert await it.settle(first) == receipts([first]), "it is done: nothing is remembered"


@pytest.mark.parametrize("end", ["refused", "lost", "acknowledged"])
async def test_a_late_acknowledgement_counts_when_the_holding_consumer_leaves(notify_url: str, end: str) -> None:
    async with world(notify_url) as it:
        first = await it.lose()
        second = await it.take()
        assert await it.settle(first) == []
        if end == "refused":
            await it.settle(refused=second)
        elif end == "acknowledged":
            await it.settle(second)
        else:
            await it.expire()
        await it.assert_done()


async def test_a_late_acknowledgement_does_not_count_with_an_exact_timeout(notify_url: str) -> None:
    async with world(notify_url) as it:
        first = await it.lose(expiry=Expiry.EXACT)
        second = await it.take()
        assert await it.settle(first) == receipts([first])
        assert await it.settle(second) == []


async def test_a_late_acknowledgement_of_a_dead_letter_does_not_count(notify_url: str) -> None:
    async with world(notify_url, retries_max=1) as it:
        first, _ = await it.lose(), await it.lose()
        assert await receive(it.delivery, 1, wait_s=0.3) == []
        assert await it.settle(first) == receipts([first])
        (lag,) = await it.notify.lag(it.delivery)
        assert lag.dead == 1
