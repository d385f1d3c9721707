"""The periodic work of a broker does not grow with the number of idle groups.

Counted in lines of Python that run and in pages that a statement reads, not in time: both are the same on any machine.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg

import txmsg.broker
from tests.integration.delivery_harness import Notify, T, delivering, each_of, notify_at, offsets, poll, receive_only
from tests.waiting import until_async
from txmsg.broker.delivery import Delivery
from txmsg.broker.store import retries

_NEVER_S = 3600.0
_BROKER = str(Path(txmsg.broker.__file__).parent)


async def lines_run(step: Callable[[], Awaitable[object]]) -> int:
    """Return the number of lines of broker code executed during a step, counting each turn of a loop."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(_BROKER):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        await step()
    finally:
        sys.settrace(before)
    return count


@asynccontextmanager
async def idle_groups(notify: Notify, delivery: Delivery, count: int) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Yield groups that have read everything, every second with a waiting member."""
    names = [f"g{number}" for number in range(count)]
    for name in names:
        for message in each_of(await delivery.receive(poll(name, "c", T, 100, 0, _NEVER_S))):
            await delivery.settle(name, "c", [message.receipt], [])
    waiting = [asyncio.create_task(delivery.receive(poll(name, "c", T, 1, _NEVER_S, _NEVER_S))) for name in names[::2]]
    await until_async(lambda: all(delivery._state.groups[name].has_waiting for name in names[::2]))
    try:
        yield waiting
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def work_of_steps(notify_url: str, groups: int) -> dict[str, int]:
    """Return the lines executed by each step of delivery when no group has work."""
    async with (
        notify_at(notify_url, queues=2) as notify,
        delivering(notify, f"b{groups}", background=False) as delivery,
        idle_groups(notify, delivery, groups),
    ):
        steps = [step for step, interval_s, _ in delivery.maintenance.steps() if interval_s <= 1]
        await notify.topics.refresh_once()  # so that no step has to
        for _ in range(2):  # the first step notices that all groups are idle
            for step in steps:
                await step()
        return {step.__name__: await lines_run(step) for step in steps}


async def test_the_work_of_a_step_does_not_grow_with_idle_groups(notify_url: str) -> None:
    few, many = await work_of_steps(notify_url, 4), await work_of_steps(notify_url, 44)
    assert len(few) == 9
    assert many == few


async def test_idle_groups_get_messages_from_this_and_other_brokers(notify_url: str) -> None:
    async with (
        notify_at(notify_url) as notify,
        delivering(notify, poll_s=0.05, expire_s=0.05, flush_s=0.05) as delivery,
        idle_groups(notify, delivery, 6) as waiting,
    ):
        await until_async(lambda: not delivery._state.busy)
        await notify.add(1)  # as another broker does
        assert [offsets(each_of(await task)) for task in waiting] == [[0]] * 3
        delivery.wake(await notify.add(1))
        got = [await receive_only(delivery, 1 + number % 2, group=f"g{number}") for number in range(6)]
        assert [offsets(messages) for messages in got] == [[1], [0, 1]] * 3


async def test_settings_are_read_only_when_a_group_has_changed(notify_url: str) -> None:
    async with (
        notify_at(notify_url) as notify,
        delivering(notify, background=False) as delivery,
        idle_groups(notify, delivery, 3),
    ):
        groups = delivery._state.groups
        await delivery.maintenance.settings_once()
        notify.query("update txmsg.consumer_group set retries_max = 7 where name = 'g1'")
        await delivery.maintenance.settings_once()
        assert groups["g1"].settings.backoff.retries_max != 7, "it was read though no version says so"
        notify.query("update txmsg.consumer_group set version = version + 1 where name = 'g1'")
        await delivery.maintenance.settings_once()
        assert groups["g1"].settings.backoff.retries_max == 7
        notify.query("delete from txmsg.consumer_group where name = 'g2'")
        await delivery.maintenance.settings_once()
        assert sorted(groups) == ["g0", "g1"]
        notify.query("update txmsg.consumer_group set version = version + 1, retries_max = 8 where name = 'g0'")
        notify.query("delete from txmsg.consumer_group where name = 'g1'")
        notify.query("insert into txmsg.consumer_group (name) values ('g1')")
        await delivery.maintenance.settings_once()
        assert sorted(groups) == ["g0"]
        assert groups["g0"].settings.backoff.retries_max == 8


def test_due_retries_are_found_by_an_index_descent_per_group_that_has_retries(notify_url: str) -> None:
    with psycopg.connect(notify_url, autocommit=True) as connection:
        connection.execute("insert into txmsg.consumer_group (name) select 'g' || n from generate_series(1, 2000) n")
        connection.execute("insert into txmsg.topic (name, queue_count, ordered_queues) values ('t', 1, 1)")
        connection.execute("insert into txmsg.queue (topic_id, number) select id, 0 from txmsg.topic")
        connection.execute("vacuum analyze txmsg.retry")  # the statistics say that it is empty
        connection.execute(
            """
            insert into txmsg.retry (group_id, queue_id, queue_offset, transaction_id, n, body, born_at, stored_at,
                                     attempt, due_at)
            select g.id, q.id, o, gen_random_uuid(), 0, 'body', now(), now(), 1,
                   now() + case when g.name = 'g500' then interval '-1 s' else interval '1 h' end
              from txmsg.consumer_group g, txmsg.queue q, generate_series(1, 2000) o
             where g.name in ('g1', 'g500', 'g2000')
            """
        )
        connection.execute("analyze txmsg.consumer_group")
        explained = connection.execute("explain (analyze, buffers, format json) " + retries.GROUPS_WITH_DUE_RETRIES)
        ((plan,),) = explained.fetchall()
        assert connection.execute(retries.GROUPS_WITH_DUE_RETRIES).fetchall() == [("g500",)]
    text, root = json.dumps(plan), plan[0]["Plan"]
    assert "retry_due" in text
    assert "Seq Scan" not in text.replace('"Relation Name": "consumer_group"', ""), text
    assert root["Shared Hit Blocks"] + root["Shared Read Blocks"] <= 40, "6,000 retries take more than 100 pages"


async def test_a_lost_queue_is_not_read(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, background=False) as delivery:
        await delivery.receive(poll("g", "c", T, 1, 0, _NEVER_S))
        (feed,) = delivery._state.groups["g"].feeds.values()
        delivery.lost([feed.queue_id], "another broker has it")
        feed.end += 1
        delivery._state.read_soon(feed)
        assert not feed.queued
        delivery._state.was_read(feed)
        assert not delivery._state.behind
