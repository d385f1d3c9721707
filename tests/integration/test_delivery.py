"""Delivery on a real PostgreSQL: messages, their order, and their consumers."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.integration.delivery_harness import (
    AT_ONCE,
    NEVER_S,
    Delivered,
    T,
    delivering,
    each_of,
    notify_at,
    offsets,
    poll,
    receipts,
    receive,
    receive_until,
)
from tests.waiting import until_async
from txmsg.administration.halves import GroupLag
from txmsg.broker.delivery.values import PollSequenceStep, Refusal
from txmsg.broker.store import delivery as store
from txmsg.errors import StorageError, UnknownTopic


async def test_every_message_is_delivered_once_in_the_order_of_its_queue(notify_url: str) -> None:
    async with notify_at(notify_url, queues=4) as notify, delivering(notify, read_count_max=100) as delivery:
        await notify.add(777)
        got: list[Delivered] = []
        while len(got) < 4 * 777:
            batch = each_of(await delivery.receive(poll("g", "c", T, 64, 30, 60)))
            assert await delivery.settle("g", "c", receipts(batch), []) == []
            got += batch
        for number in range(4):
            assert offsets([m for m in got if m.queue == number]) == list(range(777))
        assert await delivery.receive(poll("g", "c", T, 64, 0, 60)) == []


async def test_a_message_is_delivered_as_it_was_stored(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await notify.add(1, tag="x", body=b"\x00\xff")
        notify.query("update txmsg.message set ordering_key = 'k'")
        (message,) = await receive(delivery, 1)
        ((transaction_id, born_us, stored_us),) = notify.query(
            "select transaction_id, (extract(epoch from born_at) * 1000000)::bigint, "
            "(extract(epoch from stored_at) * 1000000)::bigint from txmsg.message"
        )
        assert message.transaction_id == transaction_id.bytes
        assert (message.born_at_us, message.stored_at_us) == (born_us, stored_us)
        assert (message.topic, message.queue, message.n, message.attempt) == ("t", 0, 0, 1)
        assert (message.key, message.tag, message.headers, message.body) == ("k0", "x", None, b"\x00\xff")
        assert (message.ordering_key, message.generation) == ("k", 0)


async def test_a_waiting_member_gets_a_new_message_without_polling(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, poll_s=NEVER_S) as delivery:
        assert await receive(delivery, 1, wait_s=0) == []
        waiting = asyncio.create_task(delivery.receive(poll("g", "c", T, 10, 30, 60)))
        await until_async(lambda: delivery._state.groups["g"].has_waiting)
        ends = await notify.add(1)
        delivery.wake(ends)
        assert len(await waiting) == 1


async def test_a_message_written_by_another_broker_is_found_by_polling(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, poll_s=0.05) as delivery:
        waiting = asyncio.create_task(delivery.receive(poll("g", "c", T, 10, 30, 60)))
        await until_async(lambda: "g" in delivery._state.groups and delivery._state.groups["g"].has_waiting)
        await notify.add(1)
        assert len(await waiting) == 1


async def test_a_receive_without_messages_returns_empty_in_time(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        assert await delivery.receive(poll("g", "c", T, 10, 0.05, 60)) == []
        assert not delivery._state.groups["g"].has_waiting


async def test_a_later_receive_on_a_line_ends_only_the_waiting_one(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, poll_s=NEVER_S) as delivery:
        delivery.follow("g", "c", PollSequenceStep(7, 0))  # no receive waits
        mine = asyncio.create_task(delivery.receive(poll("g", "c", T, 10, NEVER_S, 60, line=PollSequenceStep(7, 0))))
        others = [
            asyncio.create_task(delivery.receive(poll("g", client, T, 10, NEVER_S, 60, line=line)))
            for client, line in (("c", PollSequenceStep(8, 0)), ("d", PollSequenceStep(7, 0)))
        ]
        await until_async(lambda: "g" in delivery._state.groups and len(delivery._state.groups["g"]._waiting) == 3)
        delivery.follow("g", "c", PollSequenceStep(7, 0))
        delivery.follow("g", "c", PollSequenceStep(7, 0))
        assert await mine == []
        for other in others:
            delivery.wake(await notify.add(1))
            assert len(await other) == 1
        assert delivery._parked == {}


async def test_messages_lost_on_a_line_are_redelivered_at_once_and_uncounted(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, backoff=AT_ONCE) as delivery:
        await notify.add(4)

        async def take(count: int, line: PollSequenceStep) -> list[Delivered]:
            return each_of(await delivery.receive(poll("g", "c", T, count, 30, NEVER_S, line=line)))

        first = await take(2, PollSequenceStep(7, 0))
        came = PollSequenceStep(7, first[0].receipt.token)
        delivery.follow("g", "c", came)
        (third,) = await take(1, came)
        delivery.follow("g", "c", came)  # the third was lost
        again = await receive(delivery, 2, client="other")
        assert [(message.offset, message.attempt) for message in again] == [(2, 1), (3, 1)]
        assert await delivery.settle("g", "c", receipts([third]), []) == receipts([third])
        assert await delivery.settle("g", "c", receipts(first), []) == []
        # A retry keeps the attempts that it has had.
        await delivery.settle("g", "other", [], [Refusal(again[0].receipt, "boom")])
        retried = await take(1, PollSequenceStep(7, 0))
        delivery.follow("g", "c", PollSequenceStep(7, 0))
        assert [(message.offset, message.attempt) for message in retried + await receive(delivery, 1)] == [(2, 2)] * 2


async def test_a_late_call_of_a_line_takes_and_returns_nothing(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, backoff=AT_ONCE) as delivery:
        await notify.add(3)

        async def take(line: PollSequenceStep) -> list[Delivered]:
            delivery.follow("g", "c", line)
            return each_of(
                await delivery.receive(poll("g", "c", T, 1, 0 if line.call == 2 else 30, NEVER_S, line=line))
            )

        (first,) = await take(PollSequenceStep(7, 0, 1))
        token = first.receipt.token
        # The second call is in transit on an abandoned connection; the third arrives before it.
        (held,) = await take(PollSequenceStep(7, token, 3))
        assert await take(PollSequenceStep(7, token, 2)) == []
        assert offsets(await receive(delivery, 1, client="other")) == [2]
        assert await delivery.settle("g", "c", receipts([first, held]), []) == []
        # Nor does it end the wait of a later one.
        waiting = asyncio.create_task(take(PollSequenceStep(7, held.receipt.token, 5)))
        await until_async(lambda: delivery._state.groups["g"].has_waiting)
        delivery.follow("g", "c", PollSequenceStep(7, held.receipt.token, 4))
        delivery.wake(await notify.add(1))
        assert offsets(await waiting) == [3]


async def test_a_later_call_gets_the_messages_of_one_that_was_loading_the_group(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, backoff=AT_ONCE) as delivery:
        await notify.add(1)
        async with delivery._loader._loading("g"):
            delivery.follow("g", "c", PollSequenceStep(7, 0, 1))
            earlier = asyncio.create_task(
                delivery.receive(poll("g", "c", T, 1, NEVER_S, NEVER_S, line=PollSequenceStep(7, 0, 1)))
            )
            await asyncio.sleep(0)
            delivery.follow("g", "c", PollSequenceStep(7, 0, 2))
            later = asyncio.create_task(
                delivery.receive(poll("g", "c", T, 1, NEVER_S, NEVER_S, line=PollSequenceStep(7, 0, 2)))
            )
            await asyncio.sleep(0)
        (message,) = each_of(await later)
        assert (message.offset, message.attempt) == (0, 1)
        taken = receipts(each_of(await earlier))
        assert await delivery.settle("g", "c", taken, []) == taken
        assert await delivery.settle("g", "c", receipts([message]), []) == []


async def test_a_call_woken_after_its_successor_arrived_leaves_the_message_to_others(notify_url: str) -> None:
    class Outlet:
        """Lets a later call follow between the wake-up of a call and its take."""

        follows = False

        @property
        def is_full(self) -> bool:
            if self.follows:
                self.follows = False
                delivery.follow("g", "c", PollSequenceStep(7, 0, 2))
            return False

        async def emptied(self) -> None: ...

    async with notify_at(notify_url) as notify, delivering(notify, poll_s=NEVER_S) as delivery:
        outlet = Outlet()
        mine = asyncio.create_task(
            delivery.receive(poll("g", "c", T, 1, NEVER_S, NEVER_S, line=PollSequenceStep(7, 0, 1)), outlet)
        )
        await until_async(lambda: "g" in delivery._state.groups and delivery._state.groups["g"].has_waiting)
        other = asyncio.create_task(delivery.receive(poll("g", "other", T, 1, NEVER_S, NEVER_S)))
        await until_async(lambda: len(delivery._state.groups["g"]._waiting) == 2)
        outlet.follows = True
        delivery.wake(await notify.add(1))
        assert offsets(each_of(await other)) == [0]
        assert await mine == []


async def test_lost_deliveries_do_not_count_against_the_rate_of_a_group(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        assert await receive(delivery, 1, wait_s=0) == []
        await notify.add(1)
        members = delivery._state.groups["g"].members
        members.limit(1 / NEVER_S, delivery._state.monotonic())  # the rate allows the next message after an hour
        assert len(await delivery.receive(poll("g", "c", T, 1, 30, NEVER_S, line=PollSequenceStep(7, 0, 1)))) == 1
        assert members.room("other", delivery._state.monotonic()) == 0
        delivery.follow("g", "c", PollSequenceStep(7, 0, 2))
        assert offsets(await receive(delivery, 1, client="other")) == [0]


async def test_a_member_that_does_not_read_gets_nothing_and_delays_no_other(notify_url: str) -> None:
    class Slow:
        is_full = True

        def __init__(self) -> None:
            self.is_emptied = asyncio.Event()

        async def emptied(self) -> None:
            await self.is_emptied.wait()

    async with notify_at(notify_url) as notify, delivering(notify, poll_s=NEVER_S) as delivery:
        slow, outlet = Slow(), Slow()
        outlet.is_full = False  # it becomes full while it waits
        waiting = [
            asyncio.create_task(delivery.receive(poll("g", client, T, 10, NEVER_S, 60), at))
            for client, at in (("a", slow), ("b", outlet))
        ]
        await until_async(lambda: "g" in delivery._state.groups and delivery._state.groups["g"].has_waiting)
        outlet.is_full = True
        delivery.wake(await notify.add(1))
        assert offsets(await receive(delivery, 1)) == [0]
        delivery.wake(await notify.add(1))
        slow.is_full = False
        slow.is_emptied.set()
        assert offsets(each_of(await waiting[0])) == [1]
        assert not waiting[1].done()
        delivery.drain()
        assert await waiting[1] == []


async def test_concurrent_members_load_the_group_once(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await notify.add(50)
        batches = await asyncio.gather(*(delivery.receive(poll("g", f"c{n}", T, 10, 30, 60)) for n in range(5)))
        assert sorted(offset for batch in batches for offset in offsets(each_of(batch))) == list(range(50))


async def test_an_unknown_topic_is_refused_without_auto_create(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        notify.topics._auto_create = False
        with pytest.raises(UnknownTopic):
            await delivery.receive(poll("g", "c", T, 1, 0, 60))
        notify.topics._auto_create = True
        assert await delivery.receive(poll("g", "c", T, 1, 0, 60)) == []


async def test_each_group_gets_all_messages_and_a_new_one_starts_at_the_earliest(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await notify.add(3)
        assert offsets(await receive(delivery, 3, group="one")) == [0, 1, 2]
        assert offsets(await receive(delivery, 3, group="two")) == [0, 1, 2]
        notify.rotate()
        await notify.add(2)
        notify.query("alter table txmsg.message detach partition txmsg.message_1")
        notify.query("delete from txmsg.segment where id = 1")
        assert offsets(await receive(delivery, 2, group="three")) == [3, 4]


async def test_messages_are_delivered_across_segments(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, read_count_max=4) as delivery:
        for count in (3, 5, 4):
            await notify.add(count)
            notify.rotate()
        notify.rotate()  # a segment without messages
        assert offsets(await receive(delivery, 12)) == list(range(12))
        delivery.wake(await notify.add(2))
        assert offsets(await receive(delivery, 2)) == [12, 13]


async def test_a_dropped_segment_is_skipped_and_logged(notify_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, read_count_max=2) as delivery:
        await notify.add(10)
        assert offsets(await receive(delivery, 1)) == [0]
        notify.rotate()
        delivery.wake(await notify.add(2))
        notify.query("drop table txmsg.message_1")
        notify.query("delete from txmsg.segment where id = 1")
        got = offsets(await receive_until(delivery, lambda got: 11 in offsets(got)))
        assert got[-2:] == [10, 11]
        assert "has lost offsets" in caplog.text


async def test_a_missing_offset_stops_the_queue_with_an_error(
    notify_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, poll_s=0.05) as delivery:
        await notify.add(3)
        notify.query("delete from txmsg.message where queue_offset = 1")
        waiting = asyncio.create_task(receive(delivery, 3))
        await until_async(lambda: StorageError.__name__ in caplog.text)
        assert not waiting.done(), "something of the queue was given"
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_large_bodies_are_read_and_delivered_in_parts(notify_url: str) -> None:
    limits: dict[str, Any] = {"window_size_bytes_max": 3000, "reply_size_bytes_max": 2500}
    async with notify_at(notify_url) as notify, delivering(notify, **limits) as delivery:
        await notify.add(9, body=b"x" * 1000)
        sizes = [0]
        while sum(sizes) < 9:
            sizes.append(len(each_of(await delivery.receive(poll("g", "c", T, 100, 30, 60)))))
        assert max(sizes) == 2
        assert await receive(delivery, 1, wait_s=0) == []


async def test_messages_with_other_tags_are_skipped(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, read_count_max=10) as delivery:
        await notify.add(100, tag="noise")
        await notify.add(2, tag="signup")
        await notify.add(1, tag="import")
        await notify.add(1)
        topics = [("t", "signup || import")]
        got = await receive(delivery, 3, topics=topics)
        assert offsets(got) == [100, 101, 102]
        assert await receive(delivery, 1, wait_s=0.2, topics=topics) == []
        await delivery.settle("g", "c", receipts(got), [])
        await delivery.writer.flush_once()
        assert notify.query("select next_offset from txmsg.cursor") == [(104,)]


async def test_members_with_different_tags_each_get_their_own(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        waiting = [
            asyncio.create_task(delivery.receive(poll("g", tag, [("t", tag)], 10, 30, 60))) for tag in ("a", "b")
        ]
        await until_async(lambda: "g" in delivery._state.groups and len(delivery._state.groups["g"]._waiting) == 2)
        await notify.add(1, tag="b")
        delivery.wake(await notify.add(1, tag="a"))
        assert [[m.tag for m in each_of(await each)] for each in waiting] == [["a"], ["b"]]


async def test_reading_uses_the_primary_key_of_the_partition(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await notify.add(5000)
        notify.query("analyze txmsg.message_1")
        with psycopg.connect(notify.url, connect_timeout=10) as conn:
            cursor = psycopg.RawCursor(conn)
            reading = cursor.execute(b"explain " + store._read_messages_in(1), [1, 100, 200, 1000])
            plan = "\n".join(line for (line,) in reading)
            assert "Index Scan using message_1_pkey" in plan
            assert "Seq Scan" not in plan
            assert "Sort" not in plan
            explain = sql.SQL("explain ") + store._queue_ends_in(1)
            plan = "\n".join(line for (line,) in conn.execute(explain, ([1],)))
            assert "Index Only Scan Backward using message_1_pkey" in plan


async def test_lag_counts_unacknowledged_messages(notify_url: str) -> None:
    async with notify_at(notify_url, queues=2) as notify, delivering(notify) as delivery:
        await notify.add(10)
        got = await receive(delivery, 6)
        await delivery.settle("g", "c", receipts(got[:3]), [Refusal(got[3].receipt, "boom", 60.0)])
        assert await notify.lag(delivery) == [GroupLag(group="g", topic="t", waiting=16, retrying=1, dead=0)]
