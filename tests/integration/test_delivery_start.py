"""Start positions of groups, readable queues, and expiry of groups, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.integration.client_harness import WAIT_S, nothing_comes
from tests.integration.delivery_harness import (
    delivering,
    each_of,
    notify_at,
    offsets,
    poll,
    receipts,
    receive,
    receive_only,
)
from tests.waiting import until_async
from txmsg.broker.delivery import Delivery
from txmsg.client import Consumer, Producer
from txmsg.message import Message
from txmsg.wire.start import Start


async def begin(delivery: Delivery, start: Start | None, count: int = 0, *, group: str = "g") -> list[int]:
    """Return `count` offsets received by a group, and check that no more follow for a moment."""
    got: list[int] = []
    while len(got) < count:
        got += offsets(each_of(await delivery.receive(poll(group, "c", [("t", "*")], 10, 30, 60, start))))
    assert await delivery.receive(poll(group, "c", [("t", "*")], 10, 0.3, 60, start)) == []
    return got


async def test_a_new_group_begins_at_the_latest_message_and_misses_no_later_one(notify_url: str) -> None:
    async with notify_at(notify_url, queues=2) as notify, delivering(notify) as delivery:
        await notify.add(3)
        assert await begin(delivery, Start.latest()) == []
        delivery.wake(await notify.add(2))
        assert sorted(await begin(delivery, Start.latest(), 4)) == [3, 3, 4, 4]


async def test_latest_is_the_end_of_the_queue_even_with_an_empty_open_segment(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await notify.add(3)
        notify.rotate()
        assert await begin(delivery, Start.latest()) == []
        assert notify.query("select next_offset from txmsg.cursor") == [(3,)]


async def test_a_new_group_begins_at_a_time_and_at_the_latest_if_no_message_is_later(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await notify.add(6)
        notify.query(
            "update txmsg.message set stored_at = timestamptz '2026-01-01T00:00Z' + queue_offset * interval '1 h'"
        )
        moment_us = 1_767_225_600_000_000 + 3 * 3600 * 1_000_000 - 1
        assert await begin(delivery, Start("time", moment_us), 3) == [3, 4, 5]
        assert await begin(delivery, Start("time", moment_us + 10**13), group="later") == []
        assert notify.query("select max(next_offset) from txmsg.cursor") == [(6,)]


async def test_an_existing_group_continues_at_its_position_regardless_of_start(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await notify.add(3)
        async with delivering(notify) as delivery:
            (first,) = await receive(delivery, 1)
            await delivery.settle("g", "c", receipts([first]), [])
        async with delivering(notify, "b2") as delivery:
            assert await begin(delivery, Start.latest(), 2) == [1, 2]


async def test_a_queue_added_later_is_read_from_its_start(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, poll_s=0.05) as delivery:
        assert await begin(delivery, Start.latest()) == []
        await notify.grow(2)
        await notify.add(1)
        got = [each.queue for each in await receive(delivery, 2)]
        assert sorted(got) == [0, 1]


async def test_unreadable_queues_and_topics_wait_until_they_are_readable(notify_url: str) -> None:
    async with notify_at(notify_url, queues=3) as notify, delivering(notify, poll_s=0.05) as delivery:

        async def allow(what: str) -> None:
            notify.query(f"update txmsg.topic set {what}, version = version + 1")
            await notify.topics.refresh_once()
            await delivery.maintenance.queues_once()

        await notify.add(1)
        await delivery.receive(poll("g", "c", [("t", "*")], 1, 0, 60))
        await allow("read_queues = 2")
        assert sorted(each.queue for each in await receive_only(delivery, 2)) == [0, 1]
        await allow("permission = 2")
        delivery.wake(await notify.add(1))
        assert await receive(delivery, 9, wait_s=0.3) == []
        waiting = asyncio.create_task(delivery.receive(poll("g", "c", [("t", "*")], 9, 30, 60)))
        await until_async(lambda: delivery._state.groups["g"].has_waiting)
        await allow("permission = 6, read_queues = null")
        got = each_of(await waiting)
        assert got, "nobody has woken it"
        got += await receive(delivery, 4 - len(got))
        assert sorted(message.queue for message in got) == [0, 1, 2, 2]


async def test_an_expiring_group_is_deleted_only_when_unused(notify_url: str) -> None:
    settings: dict[str, Any] = {"broadcast_expires_s": 1000.0, "settings_s": 0.05}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await receive(delivery, 1, wait_s=0, group="g%host-1")
        await receive(delivery, 1, wait_s=0, group="g")
        rows = "select name, expires_after_s from txmsg.consumer_group order by name"
        assert notify.query(rows) == [("g", None), ("g%host-1", 1000.0)]
        notify.query("update txmsg.consumer_group set seen_at = now() - interval '2 h'")
        await delivery.maintenance.upkeep_once()
        assert len(notify.query(rows)) == 2, "its member was there just now"
        delivery._state.groups["g%host-1"].members._members.clear()
        notify.query("update txmsg.consumer_group set seen_at = now() - interval '2 h'")
        await delivery.maintenance.upkeep_once()
        assert notify.query(rows) == [("g", None)]
        await until_async(lambda: list(delivery._state.groups) == ["g"])


async def test_a_group_without_members_uses_no_memory_and_keeps_its_position(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await notify.add(10)
        got = await receive(delivery, 2)
        members = delivery._state.groups["g"].members._members
        await delivery.maintenance.upkeep_once()
        assert "g" in delivery._state.groups, "its member was there just now"
        members.clear()
        await delivery.maintenance.upkeep_once()
        assert "g" in delivery._state.groups, "a consumer may still acknowledge what it holds"
        await delivery.settle("g", "c", receipts(got), [])
        await delivery.writer.flush_once()
        assert delivery._state.memory.size_bytes > 0
        await delivery.maintenance.upkeep_once()
        assert "g" not in delivery._state.groups
        assert delivery._state.memory.size_bytes == 0
        assert offsets(await receive(delivery, 8)) == list(range(2, 10))


async def test_a_deleted_topic_is_not_recreated_for_groups_that_have_read_it(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, background=False, graceful=False) as delivery:
        await receive(delivery, 1, wait_s=0)
        for table in ("cursor", "queue", "topic"):
            notify.query(f"delete from txmsg.{table}")
        assert await notify.topics.refresh_once() == ["t"]
        await delivery.maintenance.queues_once()
        assert notify.query("select name from txmsg.topic") == []
        assert await delivery.receive(poll("g", "c", [("t", "*")], 1, 0, 60)) == [], "whoever polls it waits"


def test_every_broadcast_member_gets_every_message_since_its_start(broker: BrokerProcess, notify_url: str) -> None:
    got: dict[str, queue.Queue[Any]] = {"host-1": queue.Queue(), "host-2": queue.Queue()}
    with Producer(broker.address, group="p") as producer:
        producer.send(Message("t", b"before"))
        consumers = [Consumer(broker.address, group="cache", broadcast=name) for name in got]
        for consumer, name in zip(consumers, got, strict=True):
            assert consumer.group == f"cache%{name}"
            consumer.subscribe("t")(got[name].put)
            consumer.start()
        _until_cursors(notify_url, 8)
        producer.send(Message("t", b"after"))
        for received in got.values():
            assert received.get(timeout=WAIT_S).body == b"after"
            assert nothing_comes(received)
        consumers[0].close()
        producer.send(Message("t", b"while it was away"))
        again = Consumer(broker.address, group="cache", broadcast="host-1")
        again.subscribe("t")(got["host-1"].put)
        with again:
            assert got["host-1"].get(timeout=WAIT_S).body == b"while it was away"
        consumers[1].close()


def _until_cursors(url: str, count: int) -> None:
    """Wait until the members' groups have cursors: so many queues and groups."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(int(WAIT_S * 50)):
            row = connection.execute("select count(*) from txmsg.cursor").fetchone()
            if row is not None and row[0] == count:
                return
            connection.execute("select pg_sleep(0.02)")
    pytest.fail(f"there are no {count} cursors after {WAIT_S} s")
