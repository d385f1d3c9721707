"""Subscriptions by pattern on a real PostgreSQL: matching topics, start positions, and delays."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.integration.delivery_harness import NEVER_S, Delivered, Notify, delivering, each_of, notify_at, poll
from tests.waiting import until_async
from txmsg.broker.delivery import Delivery
from txmsg.broker.delivery import patterns as of_patterns
from txmsg.broker.delivery.values import PollSequenceStep
from txmsg.errors import InvalidMessage
from txmsg.wire.start import Start
from txmsg.wire.tags import ALL_TAGS

ORDERS = [("order.*", "*")]


async def get(
    delivery: Delivery,
    count: int,
    *,
    start: Start | None = None,
    topics: list[tuple[str, str]] = ORDERS,
    group: str = "g",
) -> list[tuple[str, int]]:
    """Return topic and offset of so many messages, in order, and check that no more follow for a moment."""
    got: list[Delivered] = []
    while len(got) < count:
        got += each_of(await delivery.receive(poll(group, "c", topics, 10, 30, 60, start)))
    assert await delivery.receive(poll(group, "c", topics, 10, 0.1, 60, start)) == []
    return sorted((each.topic, each.offset) for each in got)


async def test_topics_that_match_are_delivered_and_others_are_not(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        for topic in ("order.placed", "order.paid", "orders", "my.order.paid"):
            await notify.add(1, topic=topic)
        assert await get(delivery, 2) == [("order.paid", 0), ("order.placed", 0)]
        await notify.add(1, topic="%RETRY%g")
        names = ["my.order.paid", "order.paid", "order.placed", "orders"]
        assert await get(delivery, 4, topics=[("*", "*")], group="all") == [(name, 0) for name in names]


async def test_a_waiting_member_gets_a_topic_that_is_created_later(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, poll_s=0.05) as delivery:
        waiting = asyncio.create_task(get(delivery, 2))
        await until_async(lambda: bool(delivery.members_of("g")))
        await notify.add(1, topic="order.placed")
        await notify.add(1, topic="order.paid")
        assert await waiting == [("order.paid", 0), ("order.placed", 0)]


async def test_a_waiting_poll_ends_when_its_topics_change(notify_url: str) -> None:
    # The member waits for longer than silent members are remembered.
    async with notify_at(notify_url) as notify, delivering(notify, poll_s=NEVER_S, member_ttl_s=0.001) as delivery:
        asking = replace(poll("g", "c", ORDERS, 10, 3000, 60), line=PollSequenceStep(1, 0, 1))
        waiting = asyncio.create_task(delivery.receive(asking))
        await until_async(lambda: bool(delivery._parked))
        await notify.add(1, topic="order.placed")
        await delivery.maintenance.patterns_once()
        assert await waiting == []
        assert await get(delivery, 1) == [("order.placed", 0)]


async def test_two_brokers_share_a_topic_created_later(notify_url: str) -> None:
    async with (
        notify_at(notify_url, queues=4) as notify,
        delivering(notify, poll_s=0.05) as one,
        delivering(notify, "b2", poll_s=0.05) as other,
    ):
        found: list[Delivered] = []

        async def poll_all(delivery: Delivery, client: str) -> None:
            while len(found) < 4:
                found.extend(each_of(await delivery.receive(poll("g", client, ORDERS, 10, 0.5, 60))))

        polling = asyncio.gather(poll_all(one, "c1"), poll_all(other, "c2"))
        await until_async(lambda: bool(one.members_of("g")) and bool(other.members_of("g")))
        await notify.add(1, topic="order.placed")
        await polling
        assert sorted(each.queue for each in found) == [0, 1, 2, 3]


# ---- start positions


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_later_topic_begins_at_its_first_message_and_an_earlier_one_at_the_start_position(
    notify_url: str, is_restarted: bool
) -> None:
    async with notify_at(notify_url) as notify:
        async with delivering(notify) as delivery:
            await notify.add(3, topic="order.old")
            assert await get(delivery, 0, start=Start.latest()) == []
            if not is_restarted:
                await notify.add(2, topic="order.new")
                await delivery.maintenance.patterns_once()
                assert await get(delivery, 2, start=Start.latest()) == [("order.new", 0), ("order.new", 1)]
                return
        await notify.add(2, topic="order.new")
        async with delivering(notify, "b2") as delivery:
            await notify.add(1, topic="order.old")
            assert await get(delivery, 3, start=Start.latest()) == [
                ("order.new", 0),
                ("order.new", 1),
                ("order.old", 3),
            ]


async def test_a_new_pattern_of_an_existing_group_begins_at_the_start_position(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await get(delivery, 0, topics=[("invoice", "*")], start=Start.latest())
        await notify.add(2, topic="order.placed")  # younger than the group
        assert await get(delivery, 0, start=Start.latest()) == []


async def test_a_pattern_without_any_topic_is_recorded(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        assert await get(delivery, 0, start=Start.latest()) == []
        assert notify.query("select prefix from txmsg.group_prefix") == [("order.",)]
        await notify.add(1, topic="order.placed")
        await delivery.maintenance.patterns_once()
        assert await get(delivery, 1, start=Start.latest()) == [("order.placed", 0)]


async def test_a_named_topic_begins_at_the_start_position_regardless_of_patterns(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await get(delivery, 0, start=Start.latest())
        await notify.add(2, topic="order.placed")
        both = [*ORDERS, ("order.placed", "*")]
        assert await get(delivery, 0, topics=both, start=Start.latest()) == []


# ---- tags and deleted topics


async def test_tags_come_from_the_name_or_the_longest_pattern(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        for topic in ("order.paid", "order.placed", "order.moved"):
            for tag in ("a", "b", "c"):
                await notify.add(1, topic=topic, tag=tag)
        wanted = [("order.p*", "b"), ("order.*", "a"), ("order.paid", "c")]
        assert await get(delivery, 3, topics=wanted) == [("order.moved", 0), ("order.paid", 2), ("order.placed", 1)]


async def test_a_deleted_topic_is_not_created_again(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, poll_s=NEVER_S) as delivery:
        await notify.queue_ids("order.placed")
        await delivery._patterns.wanted({"order.*": ALL_TAGS})
        await drop(notify, "order.placed")
        assert await get(delivery, 0) == []
        assert notify.query("select name from txmsg.topic where name like 'order%%'") == []
        await notify.add(1, topic="order.placed")
        await delivery.maintenance.queues_once()
        assert await get(delivery, 1) == [("order.placed", 0)]


async def drop(notify: Notify, topic: str) -> None:
    notify.query("delete from txmsg.queue where topic_id = (select id from txmsg.topic where name = %s)", topic)
    notify.query("delete from txmsg.topic where name = %s", topic)
    await notify.topics.refresh_once()


async def test_too_many_patterns_are_refused(notify_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_patterns, "_PATTERNS_MAX", 2)
    async with notify_at(notify_url) as notify, delivering(notify, background=False) as delivery:
        await get(delivery, 0, topics=[("a*", "*"), ("b*", "*")])
        with pytest.raises(InvalidMessage, match="2 patterns of topics at this broker already"):
            await get(delivery, 0, topics=[("c*", "*")])
        await get(delivery, 0, topics=[("a*", "*")])


@pytest.mark.parametrize("other", ["*", "order.p*"])
async def test_another_pattern_of_the_group_does_not_skip_messages_stored_meanwhile(
    notify_url: str, other: str
) -> None:
    """A new release subscribes a wider or narrower pattern, and its member comes first."""
    async with notify_at(notify_url) as notify:
        async with delivering(notify) as delivery:
            assert await get(delivery, 0, start=Start.latest()) == []
        await notify.add(2, topic="order.paid")
        async with delivering(notify, "b2") as delivery:
            assert await get(delivery, 2, start=Start.latest(), topics=[(other, "*")]) == [
                ("order.paid", 0),
                ("order.paid", 1),
            ]


async def test_topics_are_looked_up_again_after_a_time_without_polls(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, poll_s=NEVER_S, member_ttl_s=0.001) as delivery:
        assert await get(delivery, 0) == []
        await delivery.maintenance.patterns_once()  # no member is left
        await notify.add(5, topic="order.old")
        assert await get(delivery, 0, start=Start.latest(), group="h") == []
        assert notify.query("select next_offset from txmsg.cursor order by group_id") == [(5,)]


async def test_a_poll_whose_topics_changed_while_the_group_was_loading_ends_for_a_new_poll(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, poll_s=NEVER_S) as delivery:
        lock = delivery._loader._locks.setdefault("g", asyncio.Lock())
        async with lock:  # while the group is loading
            asking = replace(poll("g", "c", ORDERS, 10, 300, 60), line=PollSequenceStep(1, 0, 1))
            waiting = asyncio.create_task(delivery.receive(asking))
            await until_async(lambda: bool(delivery._patterns._topics))
            await notify.add(1, topic="order.placed")
            await delivery.maintenance.patterns_once()
        async with asyncio.timeout(10):
            assert await waiting == []
        assert await get(delivery, 1) == [("order.placed", 0)]
