"""A group whose messages all fail, on a real PostgreSQL: the backlog stays in the log until they succeed."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.integration.delivery_harness import (
    NEVER_S,
    Delivered,
    Notify,
    T,
    delivering,
    each_of,
    notify_at,
    offsets,
    poll,
    receipts,
    receive,
)
from tests.waiting import until_async
from txmsg.broker.delivery import Delivery
from txmsg.broker.delivery.values import Refusal
from txmsg.runtime.backoff import Backoff


class Clock:
    """A clock moved by the test, at once or after a number of readings."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._later = (0, self.now)

    def __call__(self) -> float:
        looks, later = self._later
        if looks == 1:
            self.now = later
        self._later = (looks - 1, later)
        return self.now

    def move(self, to: float, *, after: int) -> None:
        """Move the clock so that the reading after so many more is the first to see it."""
        self._later = (after + 1, to)


def written(notify: Notify) -> int:
    """Return the number of rows written for the group's failures so far, including changes."""
    ((rows,),) = notify.query("select coalesce(sum(attempt), 0) from txmsg.retry")
    return int(rows)


async def refuse(delivery: Delivery, messages: list[Delivered], client: str = "c") -> None:
    refusals = [Refusal(message.receipt, "the back end is down", None) for message in messages]
    assert await delivery.settle("g", client, [], refusals) == []


async def take(delivery: Delivery, count: int, client: str = "c") -> list[Delivered]:
    return each_of(await delivery.receive(poll("g", client, T, count, 0, 60)))


async def read_all(delivery: Delivery) -> None:
    """Read all feeds as far as they may be read now."""
    await delivery.maintenance.poll_once()
    while len(delivery._state.to_read):
        await delivery.reader.read_once(delivery._state.to_read.pop())


async def test_a_group_with_a_failing_backend_writes_little_and_loses_nothing(notify_url: str) -> None:
    clock = Clock()
    settings: dict[str, Any] = {"background": False, "monotonic": clock, "lease_ttl_s": 1e9, "pause_failures": 50}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await notify.add(2000)
        await take(delivery, 1)
        await read_all(delivery)
        for _ in range(3):
            await refuse(delivery, await take(delivery, 20))
        pause = delivery._state.groups["g"].members.pause
        assert (pause.is_on, pause.last_error) == (True, "the back end is down")
        assert written(notify) == 49, "the fiftieth failure in a row began the pause"
        assert await take(delivery, 100) == []

        probes = 0
        for _ in range(600):  # ten minutes, second by second
            clock.now += 1
            await delivery.maintenance.expire_once()
            await delivery.maintenance.retries_once()
            await read_all(delivery)
            if got := await take(delivery, 100):
                assert len(got) == 1
                probes += 1
                await refuse(delivery, got)
            assert await take(delivery, 100) == []
        assert 20 <= probes <= 25
        assert written(notify) <= 49 + probes

        clock.now += 30
        await read_all(delivery)
        (probe,) = await take(delivery, 100)
        assert await delivery.settle("g", "c", [probe.receipt], []) == []
        assert not pause.is_on
        done = {probe.offset}
        notify.query("update txmsg.retry set due_at = now()")
        while len(done) < 2000:
            await delivery.maintenance.retries_once()
            await read_all(delivery)
            more = await take(delivery, 500)
            assert await delivery.settle("g", "c", receipts(more), []) == []
            done |= set(offsets(more))
        assert done == set(range(2000))
        assert notify.query("select * from txmsg.retry") == []
        await delivery.writer.flush_once()
        assert notify.query("select next_offset, acked::text from txmsg.cursor") == [(2000, "{}")]


async def test_messages_in_flight_at_the_start_of_a_pause_are_redelivered_uncounted(notify_url: str) -> None:
    clock = Clock()
    settings: dict[str, Any] = {"background": False, "monotonic": clock, "lease_ttl_s": 1e9, "pause_failures": 5}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await notify.add(100)
        await take(delivery, 1)
        await read_all(delivery)
        out = await take(delivery, 90)
        await refuse(delivery, out[:30])
        assert written(notify) == 4
        clock.now += 60
        await delivery.maintenance.expire_once()
        assert written(notify) == 4, "what expires is not written either"
        await read_all(delivery)
        (probe,) = await take(delivery, 100)
        assert await delivery.settle("g", "c", [probe.receipt], []) == []
        await read_all(delivery)
        got = await take(delivery, 1000)
        assert {probe.offset, *offsets(got)} == set(range(4, 100))
        assert {message.attempt for message in got} == {1}


async def test_other_groups_and_succeeding_members_are_not_delayed(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, pause_failures=5) as delivery:
        await notify.add(300)
        good = each_of(await delivery.receive(poll("g", "good", T, 1, 30, 60)))
        assert await delivery.settle("g", "good", receipts(good), []) == []
        await refuse(delivery, each_of(await delivery.receive(poll("g", "bad", T, 20, 30, 60))), "bad")
        members = delivery._state.groups["g"].members
        assert not members.pause.is_on
        assert members.room("bad", delivery._state.monotonic()) <= 1
        got = each_of(await delivery.receive(poll("g", "good", T, 100, 30, 60)))
        assert len(got) == 100
        assert len(await receive(delivery, 300, group="other")) == 300


async def test_the_probe_of_a_departed_member_does_not_delay_others(
    notify_url: str,
) -> None:
    clock = Clock()
    settings: dict[str, Any] = {"background": False, "monotonic": clock, "lease_ttl_s": 1e9, "pause_failures": 2}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await notify.add(10)
        await take(delivery, 1)
        await read_all(delivery)
        await refuse(delivery, await take(delivery, 2))
        clock.now += 1
        (probe,) = await take(delivery, 10, "gone")
        polls = asyncio.create_task(delivery.receive(poll("g", "gone", T, 10, 30, 60)))
        clock.now += 5
        await until_async(lambda: ("gone", 0) in delivery.members_of("g"))
        assert await take(delivery, 10, "other") == []
        polls.cancel()
        await asyncio.wait({polls})
        (next_probe,) = await take(delivery, 10, "other")
        assert next_probe.offset != probe.offset
        assert await delivery.settle("g", "other", [next_probe.receipt], []) == []
        await read_all(delivery)
        assert len(await take(delivery, 10, "other")) > 1


async def test_a_member_gets_its_probe_between_any_two_clock_readings(
    notify_url: str,
) -> None:
    clock = Clock()
    settings: dict[str, Any] = {"background": False, "monotonic": clock, "lease_ttl_s": 1e9, "pause_failures": 2}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await notify.add(100)
        await take(delivery, 1)
        await read_all(delivery)
        await refuse(delivery, await take(delivery, 2))
        pause = delivery._state.groups["g"].members.pause
        for looks in range(20):
            await read_all(delivery)
            due_at = pause.opens_at(clock.now)
            clock.now = due_at - 0.001
            clock.move(due_at, after=looks)
            [probe] = each_of(await delivery.receive(poll("g", "c", T, 10, 30, 60)))
            await refuse(delivery, [probe])
        assert pause.is_on


async def test_a_success_wakes_members_waiting_for_the_end_of_the_pause(notify_url: str) -> None:
    # With this clock the pause never lets a probe through.
    settings: dict[str, Any] = {"monotonic": Clock(), "lease_ttl_s": 1e9, "pause_failures": 2}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await notify.add(10)
        got = await receive(delivery, 3)
        await refuse(delivery, got[:2])
        assert delivery._state.groups["g"].members.pause.is_on
        waiting = asyncio.create_task(delivery.receive(poll("g", "c", T, 10, 30, 60)))
        await until_async(lambda: delivery._state.groups["g"].members.blocked_s("c", delivery._state.monotonic()) > 0)
        assert await delivery.settle("g", "c", [got[2].receipt], []) == []
        assert len(each_of(await waiting)) > 1


async def test_a_failing_member_passes_its_wakeup_on_to_another(notify_url: str) -> None:
    settings: dict[str, Any] = {"monotonic": Clock(), "lease_ttl_s": 1e9, "pause_failures": 5}
    settings |= {"backoff": Backoff(delays_s=(NEVER_S,))}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await notify.add(11)
        good = each_of(await delivery.receive(poll("g", "good", T, 1, 30, 60)))
        assert await delivery.settle("g", "good", receipts(good), []) == []
        failing = each_of(await delivery.receive(poll("g", "bad", T, 10, 30, 60)))
        members = delivery._state.groups["g"].members
        bad_waits = asyncio.create_task(delivery.receive(poll("g", "bad", T, 10, 30, 60)))
        await asyncio.sleep(0)
        good_waits = asyncio.create_task(delivery.receive(poll("g", "good", T, 10, 30, 60)))
        await until_async(lambda: len(delivery._state.groups["g"]._waiting) == 2)
        await refuse(delivery, failing, "bad")
        assert members.blocked_s("bad", delivery._state.monotonic()) > 0
        delivery.wake(await notify.add(1))
        await asyncio.wait({bad_waits, good_waits}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert (bad_waits.done(), offsets(each_of(await good_waits))) == (False, [11])
        bad_waits.cancel()


async def test_a_rate_set_for_a_group_applies_at_once_to_all_members(notify_url: str) -> None:
    clock = Clock()
    settings: dict[str, Any] = {"background": False, "monotonic": clock, "lease_ttl_s": 1e9}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await notify.add(1000)
        await take(delivery, 1)
        await read_all(delivery)
        notify.query("update txmsg.consumer_group set deliver_rate_max = 10, version = version + 1")
        await delivery.maintenance.settings_once()
        given = 0
        for _ in range(100):  # ten seconds
            clock.now += 0.1
            given += len(await take(delivery, 100, f"c{given % 3}"))
        assert 100 <= given <= 106


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2])
async def test_a_backend_that_seldom_works_leaves_the_backlog_in_the_log(notify_url: str, share: float) -> None:
    """With so many successes in between there are few consecutive failures."""

    clock, lot = Clock(), random.Random(14)
    settings: dict[str, Any] = {"background": False, "monotonic": clock, "lease_ttl_s": 1e9}
    settings |= {"pause_failures": 50 if share else 10_000, "pause_retries": 100}
    settings |= {"backoff": Backoff(delays_s=(3600.0,))}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await notify.add(3000)
        await take(delivery, 1)
        done: set[int] = set()

        async def work(share: float) -> int:
            await delivery.maintenance.expire_once()
            await delivery.maintenance.retries_once()
            await read_all(delivery)
            got = await take(delivery, 20)
            good = [message for message in got if lot.random() < share]
            assert await delivery.settle("g", "c", receipts(good), []) == []
            await refuse(delivery, [message for message in got if message not in good])
            done.update(offsets(good))
            return len(got)

        given = 0
        for _ in range(300):
            clock.now += 1
            given += await work(share)
        ((rows,),) = notify.query("select count(*) from txmsg.retry")
        assert rows <= 100 + 20 + 120, "the number, what was out when it was reached, and the probes"
        assert given < 1000
        assert len(done) < 400

        while len(done) < 3000:
            clock.now += 30
            notify.query("update txmsg.retry set due_at = now()")
            await work(1.0)
        assert notify.query("select * from txmsg.retry") == []


async def test_a_mostly_succeeding_group_may_have_many_retries(notify_url: str) -> None:
    settings: dict[str, Any] = {"background": False, "pause_retries": 10, "backoff": Backoff(delays_s=(3600.0,))}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await notify.add(200)
        await take(delivery, 1)
        for _ in range(20):
            await read_all(delivery)
            got = await take(delivery, 10)
            assert await delivery.settle("g", "c", receipts(got[3:]), []) == []
            await refuse(delivery, got[:3])
        assert not delivery._state.groups["g"].members.pause.is_on
        assert notify.query("select count(*) > 50 from txmsg.retry") == [(True,)]
