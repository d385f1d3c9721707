"""Delivery on a real PostgreSQL. Messages are put into the table as the batch function would."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql

from txmsg.broker.delivery import Delivery, DeliveryConfig
from txmsg.broker.delivery.lease import LEASE_NAME
from txmsg.broker.delivery.retry import Backoff
from txmsg.broker.delivery.values import DeliveredMessage, GroupLag
from txmsg.broker.store import delivery as store
from txmsg.broker.store.connect import open_pool
from txmsg.broker.store.topics import TopicRegistry
from txmsg.errors import BrokerUnavailable, StorageError, UnknownTopic

T = [("t", "*")]
NEVER_S = 3600.0
AT_ONCE = Backoff(delays_s=(0.0,))


@dataclass
class Notify:
    """The Notify database of a test, seen from outside the broker."""

    url: str
    topics: TopicRegistry

    async def ensure(self, topic: str) -> Sequence[tuple[int, int]]:
        found = await self.topics.ensure(topic)
        return [(queue_id, number) for number, queue_id in enumerate(found.queue_ids)]

    async def queue_ids(self, topic: str = "t") -> list[int]:
        return [queue_id for queue_id, _ in await self.ensure(topic)]

    def query(self, statement: str, *args: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as conn:
            cursor = conn.execute(statement.encode(), args)
            return cursor.fetchall() if cursor.description else []

    async def add(
        self, count: int, *, topic: str = "t", tag: str | None = None, body: bytes = b"body"
    ) -> dict[int, int]:
        """`count` messages in each queue of a topic, in the open segment; the ends of the queues, for `wake`."""
        ends: dict[int, int] = {}
        for queue_id in await self.queue_ids(topic):
            (row,) = self.query(
                """
                with base as (select s.id as segment, coalesce(
                    (select max(m.queue_offset) + 1 from txmsg.message m where m.segment = s.id and m.queue = %s),
                    (select b.base from txmsg.segment_base b where b.segment = s.id and b.queue = %s), 0) as base
                  from txmsg.segment s where s.state = 'open'),
                added as (insert into txmsg.message
                    (segment, queue, queue_offset, transaction_id, n, key, tag, headers, body, born_at)
                    select segment, %s, base + g, gen_random_uuid(), 0, 'k' || g, %s, null, %s, now()
                      from base, generate_series(0, %s - 1) g returning queue_offset)
                select max(queue_offset) + 1 from added
                """,
                *(queue_id, queue_id, queue_id, tag, body, count),
            )
            ends[queue_id] = row[0]
        return ends

    def rotate(self) -> None:
        self.query("select txmsg.rotate_1((select id from txmsg.segment where state = 'open'))")
        self.query("select txmsg.add_segment_1()")


@asynccontextmanager
async def notify_at(url: str, *, queues: int = 1) -> AsyncIterator[Notify]:
    pool = open_pool(url)
    await pool.open()
    try:
        yield Notify(url, TopicRegistry(pool, auto_create=True, queues=queues))
    finally:
        await pool.close()


@asynccontextmanager
async def delivering(
    notify: Notify,
    broker_id: str = "b1",
    *,
    graceful: bool = True,
    monotonic: Callable[[], float] = time.monotonic,
    background: bool = True,
    **settings: Any,
) -> AsyncIterator[Delivery]:
    """A delivery that runs. graceful=False ends it as a crash would: nothing is flushed, the lease is kept."""
    pool = open_pool(notify.url)
    await pool.open()
    delivery = Delivery(pool, broker_id, DeliveryConfig(**settings), topics=notify, monotonic=monotonic)
    task = asyncio.create_task(delivery.run() if background else asyncio.Event().wait())
    try:
        if background:
            await until(delivery._lease.is_held)
        else:
            await delivery.lease_once()
        yield delivery
        if graceful:
            await delivery.close()
    finally:
        task.cancel()
        await asyncio.wait({task})
        await pool.close()


async def until(condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the database has no event for it
            await asyncio.sleep(0.01)


async def receive(
    delivery: Delivery,
    count: int = 100,
    *,
    wait_s: float = 5.0,
    invisible_s: float = 60.0,
    group: str = "g",
    **how: Any,
) -> list[DeliveredMessage]:
    """`count` messages, or as many as come before a receive finds nothing for wait_s."""
    got: list[DeliveredMessage] = []
    while len(got) < count:
        more = await delivery.receive(
            group, how.get("client", "c"), how.get("topics", T), count - len(got), wait_s, invisible_s
        )
        if not more:
            break
        got += more
    return got


def receipts(messages: Sequence[DeliveredMessage]) -> list[Any]:
    return [message.receipt for message in messages]


def offsets(messages: Sequence[DeliveredMessage]) -> list[int]:
    return [message.receipt.offset for message in messages]


async def eventually(step: Callable[[], Awaitable[Any]], timeout_s: float = 15.0) -> Any:
    """The result of a step that answers BrokerUnavailable for a while."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                return await step()
            except BrokerUnavailable:
                await asyncio.sleep(0.02)


def test_every_message_comes_once_in_order_of_its_queue(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url, queues=4) as notify, delivering(notify, read_count_max=100) as delivery:
            await notify.add(777)
            got: list[DeliveredMessage] = []
            while len(got) < 4 * 777:
                batch = await delivery.receive("g", "c", T, 64, 5, 60)
                assert await delivery.settle("g", receipts(batch), []) == []
                got += batch
            for number in range(4):
                assert offsets([m for m in got if m.queue == number]) == list(range(777))
            assert await delivery.receive("g", "c", T, 64, 0, 60) == []

    asyncio.run(scenario())


def test_message_comes_as_it_was_stored(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify) as delivery:
            await notify.add(1, tag="x", body=b"\x00\xff")
            (message,) = await receive(delivery, 1)
            ((transaction_id, born_us, stored_us),) = notify.query(
                "select transaction_id, (extract(epoch from born_at) * 1000000)::bigint, "
                "(extract(epoch from stored_at) * 1000000)::bigint from txmsg.message"
            )
            assert message.transaction_id == transaction_id.bytes
            assert (message.born_at_us, message.stored_at_us) == (born_us, stored_us)
            assert (message.topic, message.queue, message.n, message.attempt) == ("t", 0, 0, 1)
            assert (message.key, message.tag, message.headers, message.body) == ("k0", "x", None, b"\x00\xff")

    asyncio.run(scenario())


def test_waiting_member_gets_a_new_message_without_polling(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify, poll_s=NEVER_S) as delivery:
            assert await receive(delivery, 1, wait_s=0) == []
            waiting = asyncio.create_task(delivery.receive("g", "c", T, 10, 30, 60))
            await until(lambda: delivery._groups["g"].has_waiting)
            ends = await notify.add(1)
            started_at = time.monotonic()
            delivery.wake(ends)
            assert len(await waiting) == 1
            assert time.monotonic() - started_at < 1.0

    asyncio.run(scenario())


def test_message_written_by_another_broker_is_found_by_polling(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify, poll_s=0.05) as delivery:
            waiting = asyncio.create_task(delivery.receive("g", "c", T, 10, 30, 60))
            await until(lambda: "g" in delivery._groups and delivery._groups["g"].has_waiting)
            await notify.add(1)
            assert len(await waiting) == 1

    asyncio.run(scenario())


def test_receive_that_finds_nothing_returns_nothing_in_time(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify) as delivery:
            assert await delivery.receive("g", "c", T, 10, 0.05, 60) == []
            assert not delivery._groups["g"].has_waiting

    asyncio.run(scenario())


def test_members_that_come_together_load_the_group_once(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify) as delivery:
            await notify.add(50)
            batches = await asyncio.gather(*(delivery.receive("g", f"c{n}", T, 10, 5, 60) for n in range(5)))
            assert sorted(offset for batch in batches for offset in offsets(batch)) == list(range(50))

    asyncio.run(scenario())


def test_unknown_topic_is_said_when_none_is_created(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify) as delivery:
            notify.topics._auto_create = False
            with pytest.raises(UnknownTopic):
                await delivery.receive("g", "c", T, 1, 0, 60)
            notify.topics._auto_create = True
            assert await delivery.receive("g", "c", T, 1, 0, 60) == []

    asyncio.run(scenario())


def test_each_group_gets_all_messages_and_a_new_one_starts_at_the_earliest_kept(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify) as delivery:
            await notify.add(3)
            assert offsets(await receive(delivery, 3, group="one")) == [0, 1, 2]
            assert offsets(await receive(delivery, 3, group="two")) == [0, 1, 2]
            notify.rotate()
            await notify.add(2)
            notify.query("alter table txmsg.message detach partition txmsg.message_1")
            notify.query("delete from txmsg.segment where id = 1")
            assert offsets(await receive(delivery, 2, group="three")) == [3, 4]

    asyncio.run(scenario())


def test_messages_flow_across_segments(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify, read_count_max=4) as delivery:
            for count in (3, 5, 4):
                await notify.add(count)
                notify.rotate()
            notify.rotate()  # a segment without messages
            assert offsets(await receive(delivery, 12)) == list(range(12))
            delivery.wake(await notify.add(2))
            assert offsets(await receive(delivery, 2)) == [12, 13]

    asyncio.run(scenario())


def test_dropped_segment_is_skipped_and_said(notify_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify, read_count_max=2) as delivery:
            await notify.add(10)
            assert offsets(await receive(delivery, 1)) == [0]
            notify.rotate()
            delivery.wake(await notify.add(2))
            notify.query("drop table txmsg.message_1")
            notify.query("delete from txmsg.segment where id = 1")
            got = offsets(await receive(delivery, 100, wait_s=1))
            assert got[-2:] == [10, 11]
            assert "has lost offsets" in caplog.text

    asyncio.run(scenario())


def test_missing_offset_stops_the_queue_loudly(notify_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify, poll_s=0.05) as delivery:
            await notify.add(3)
            notify.query("delete from txmsg.message where queue_offset = 1")
            assert await receive(delivery, 3, wait_s=0.5) == []
            assert StorageError.__name__ in caplog.text

    asyncio.run(scenario())


def test_large_bodies_are_read_and_given_piece_by_piece(notify_url: str) -> None:
    async def scenario() -> None:
        limits: dict[str, Any] = {"window_size_bytes_max": 3000, "reply_size_bytes_max": 2500}
        async with notify_at(notify_url) as notify, delivering(notify, **limits) as delivery:
            await notify.add(9, body=b"x" * 1000)
            sizes = [0]
            while sum(sizes) < 9:
                sizes.append(len(await delivery.receive("g", "c", T, 100, 5, 60)))
            assert max(sizes) == 2
            assert await receive(delivery, 1, wait_s=0) == []

    asyncio.run(scenario())


# ---- cursors


def test_acknowledged_messages_do_not_come_again_after_a_graceful_stop(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify:
            await notify.add(10)
            async with delivering(notify, flush_s=NEVER_S) as delivery:
                got = await receive(delivery, 10)
                await delivery.settle("g", receipts([got[n] for n in (0, 1, 2, 5, 7)]), [])
            ((next_offset, acked),) = notify.query("select next_offset, acked::text from txmsg.cursor")
            assert (next_offset, acked) == (3, "{[5,6),[7,8)}")
            async with delivering(notify, "b2") as delivery:
                assert offsets(await receive(delivery, 10, wait_s=0.3)) == [3, 4, 6, 8, 9]

    asyncio.run(scenario())


def test_after_a_crash_only_unflushed_acknowledgements_come_again(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify:
            await notify.add(10)
            async with delivering(notify, graceful=False, flush_s=NEVER_S) as delivery:
                got = await receive(delivery, 10)
                await delivery.settle("g", receipts(got[:4]), [])
                await delivery.flush_once()
                await delivery.settle("g", receipts(got[4:6]), [])
            async with delivering(notify) as delivery:
                assert offsets(await receive(delivery, 10, wait_s=0.3)) == [4, 5, 6, 7, 8, 9]

    asyncio.run(scenario())


def test_stale_epoch_cannot_write_cursors_and_stops_delivering(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify:
            await notify.add(4)
            async with delivering(notify, "old", graceful=False, background=False) as old:
                assert await old.receive("g", "c", T, 4, 0, 60) == []
                await old.read_once(next(iter(old._groups["g"].feeds.values())))
                got = await old.receive("g", "c", T, 4, 0, 60)
                await old.settle("g", receipts(got), [])
                notify.query("update txmsg.lease set expires_at = now() - interval '1 s'")
                async with delivering(notify, "new") as new:
                    assert offsets(await receive(new, 4)) == [0, 1, 2, 3]
                    await old.flush_once()
                    assert notify.query("select next_offset from txmsg.cursor") == [(0,)]
                    with pytest.raises(BrokerUnavailable):
                        await old.receive("g", "c", T, 4, 0, 60)

    asyncio.run(scenario())


def test_stale_epoch_cannot_make_retries(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify:
            await notify.add(1)
            async with delivering(notify, "old", graceful=False, background=False) as old:
                await old.receive("g", "c", T, 4, 0, 60)
                await old.read_once(next(iter(old._groups["g"].feeds.values())))
                (message,) = await old.receive("g", "c", T, 4, 0, 60)
                notify.query("update txmsg.lease set expires_at = now() - interval '1 s'")
                async with delivering(notify, "new"):
                    with pytest.raises(BrokerUnavailable):
                        await old.settle("g", [], [(message.receipt, "boom", 0.0)])
                    assert notify.query("select * from txmsg.retry") == []

    asyncio.run(scenario())


# ---- failures


def test_refused_message_comes_again_and_its_acknowledgement_removes_it(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify, retry_poll_s=0.02) as delivery:
            await notify.add(3)
            first = await receive(delivery, 3)
            assert await delivery.settle("g", receipts(first[1:]), [(first[0].receipt, "boom\0\n", 0.0)]) == []
            ((attempt, error, key, body),) = notify.query("select attempt, last_error, key, body from txmsg.retry")
            assert (attempt, error, key, bytes(body)) == (1, "boom\\0\n", "k0", b"body")
            await delivery.flush_once()
            assert notify.query("select next_offset from txmsg.cursor") == [(3,)]
            (again,) = await receive(delivery, 1)
            assert (again.receipt.offset, again.attempt, again.transaction_id) == (0, 2, first[0].transaction_id)
            assert (again.born_at_us, again.stored_at_us) == (first[0].born_at_us, first[0].stored_at_us)
            assert await delivery.settle("g", receipts(first[:1]), []) == receipts(first[:1])
            assert await delivery.settle("g", [again.receipt], []) == []
            assert notify.query("select * from txmsg.retry") == []
            assert await receive(delivery, 1, wait_s=0.2) == []

    asyncio.run(scenario())


def test_message_not_acknowledged_in_time_comes_again(notify_url: str) -> None:
    async def scenario() -> None:
        settings: dict[str, Any] = {"expire_s": 0.02, "retry_poll_s": 0.02, "backoff": AT_ONCE}
        async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
            await notify.add(2)
            kept, late = await receive(delivery, 2, invisible_s=0.1)
            await delivery.settle("g", [kept.receipt], [])
            (again,) = await receive(delivery, 1)
            assert (again.receipt.offset, again.attempt) == (late.receipt.offset, 2)
            assert await delivery.settle("g", [late.receipt], []) == [late.receipt]
            ((error,),) = notify.query("select last_error from txmsg.retry")
            assert "invisible" in error

    asyncio.run(scenario())


def test_default_back_off_delays_the_first_retry_by_a_second(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify) as delivery:
            await notify.add(1)
            (message,) = await receive(delivery, 1)
            await delivery.settle("g", [], [(message.receipt, "boom", None)])
            ((left_s,),) = notify.query("select extract(epoch from due_at - now())::float8 from txmsg.retry")
            assert 0 < left_s <= 1.0
            (again,) = await receive(delivery, 1)
            await delivery.settle("g", [], [(again.receipt, "boom", None)])
            ((attempt, left_s),) = notify.query(
                "select attempt, extract(epoch from due_at - now())::float8 from txmsg.retry"
            )
            assert attempt == 2
            assert 4 < left_s <= 5.0

    asyncio.run(scenario())


@pytest.mark.parametrize("retries_max", [0, 1, 3])
def test_message_that_always_fails_ends_as_a_dead_letter(notify_url: str, retries_max: int) -> None:
    async def scenario() -> None:
        backoff = Backoff(delays_s=(0.0,), retries_max=retries_max)
        async with (
            notify_at(notify_url) as notify,
            delivering(notify, retry_poll_s=0.02, backoff=backoff) as delivery,
        ):
            await notify.add(1)
            for attempt in range(1, retries_max + 2):
                (message,) = await receive(delivery, 1)
                assert message.attempt == attempt
                await delivery.settle("g", [], [(message.receipt, f"boom {attempt}", None)])
            assert await receive(delivery, 1, wait_s=0.2) == []
            assert notify.query("select attempts, last_error, key from txmsg.dead_letter") == [
                (retries_max + 1, f"boom {retries_max + 1}", "k0")
            ]
            assert notify.query("select * from txmsg.retry") == []
            assert await delivery.groups_lag() == [GroupLag(group="g", topic="t", waiting=0, retrying=0, dead=1)]

    asyncio.run(scenario())


def test_refused_message_comes_once_after_a_crash_before_the_cursor_is_written(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify:
            await notify.add(2)
            async with delivering(notify, graceful=False, flush_s=NEVER_S) as delivery:
                got = await receive(delivery, 2)
                await delivery.settle("g", [], [(got[0].receipt, "boom", 0.0)])
            assert notify.query("select next_offset from txmsg.cursor") == [(0,)]
            async with delivering(notify, retry_poll_s=0.02) as delivery:
                again = await receive(delivery, 3, wait_s=0.5)
                assert sorted((m.receipt.offset, m.attempt) for m in again) == [(0, 2), (1, 1)]

    asyncio.run(scenario())


def test_retry_in_flight_at_a_crash_comes_again(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify:
            await notify.add(1)
            async with delivering(notify, graceful=False, retry_poll_s=0.02) as delivery:
                (message,) = await receive(delivery, 1)
                await delivery.settle("g", [], [(message.receipt, "boom", 0.0)])
                (message,) = await receive(delivery, 1)
                assert message.attempt == 2
            async with delivering(notify, retry_poll_s=0.02) as delivery:
                (message,) = await receive(delivery, 1)
                assert message.attempt == 2

    asyncio.run(scenario())


def test_interrupted_refusal_is_finished_in_the_background(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify, expire_s=0.02) as delivery:
            await notify.add(1)
            (message,) = await receive(delivery, 1)
            settling = asyncio.create_task(delivery.settle("g", [], [(message.receipt, "boom", 60.0)]))
            await asyncio.sleep(0)
            settling.cancel()
            await asyncio.wait({settling})
            await until(lambda: bool(notify.query("select * from txmsg.retry")))
            await until(lambda: not delivery._groups["g"].feeds[message.receipt.queue_id].window.failing())

    asyncio.run(scenario())


def test_failures_of_several_segments_become_retries(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify) as delivery:
            await notify.add(2)
            notify.rotate()
            await notify.add(2)
            got = await receive(delivery, 4)
            await delivery.settle("g", [], [(m.receipt, f"boom {m.receipt.offset}", 60.0) for m in got])
            assert notify.query("select queue_offset, last_error from txmsg.retry order by 1") == [
                (offset, f"boom {offset}") for offset in range(4)
            ]

    asyncio.run(scenario())


# ---- tags


def test_messages_with_other_tags_are_passed_over(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify, read_count_max=10) as delivery:
            await notify.add(100, tag="noise")
            await notify.add(2, tag="signup")
            await notify.add(1, tag="import")
            await notify.add(1)
            topics = [("t", "signup || import")]
            got = await receive(delivery, 4, wait_s=0.5, topics=topics)
            assert offsets(got) == [100, 101, 102]
            await delivery.settle("g", receipts(got), [])
            await delivery.flush_once()
            assert notify.query("select next_offset from txmsg.cursor") == [(104,)]

    asyncio.run(scenario())


def test_members_with_different_tags_get_each_their_own(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify) as delivery:
            waiting = [asyncio.create_task(delivery.receive("g", tag, [("t", tag)], 10, 10, 60)) for tag in ("a", "b")]
            await until(lambda: "g" in delivery._groups and len(delivery._groups["g"]._waiting) == 2)
            await notify.add(1, tag="b")
            delivery.wake(await notify.add(1, tag="a"))
            assert [[m.tag for m in await each] for each in waiting] == [["a"], ["b"]]

    asyncio.run(scenario())


# ---- lease and lost databases


def test_second_broker_does_not_deliver_and_names_the_first(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify, "first") as first:
            async with delivering(notify, "second", background=False, graceful=False) as second:
                with pytest.raises(BrokerUnavailable, match="first"):
                    await second.receive("g", "c", T, 1, 0, 60)
                await first.close()
                await second.lease_once()
                assert await second.receive("g", "c", T, 1, 0, 60) == []

    asyncio.run(scenario())


def test_nothing_is_delivered_past_the_deadline_of_the_lease(notify_url: str) -> None:
    async def scenario() -> None:
        now = [100.0]
        async with (
            notify_at(notify_url) as notify,
            delivering(notify, background=False, graceful=False, monotonic=lambda: now[0]) as delivery,
        ):
            await notify.add(1)
            await delivery.receive("g", "c", T, 1, 0, 60)
            (feed,) = delivery._groups["g"].feeds.values()
            await delivery.read_once(feed)
            now[0] += DeliveryConfig().lease_ttl_s
            with pytest.raises(BrokerUnavailable, match="ran out"):
                await delivery.receive("g", "c", T, 1, 0, 60)
            await delivery.lease_once()
            assert await delivery.receive("g", "c", T, 1, 0, 60) == []
            (feed,) = delivery._groups["g"].feeds.values()
            await delivery.read_once(feed)
            (message,) = await delivery.receive("g", "c", T, 1, 0, 60)
            assert message.receipt.epoch == 2

    asyncio.run(scenario())


def test_waiting_members_hear_of_a_lost_database_and_delivery_comes_back(notify_url: str) -> None:
    async def scenario() -> None:
        database = str(psycopg.conninfo.conninfo_to_dict(notify_url)["dbname"])
        elsewhere = psycopg.conninfo.make_conninfo(notify_url, dbname="postgres")
        async with notify_at(notify_url) as notify, delivering(notify, flush_s=NEVER_S, poll_s=0.05) as delivery:
            await notify.add(5)
            got = await receive(delivery, 2)
            await delivery.settle("g", receipts(got), [])
            other = asyncio.create_task(delivery.receive("other", "c", [("u", "*")], 1, 30, 60))
            await until(lambda: "other" in delivery._groups and delivery._groups["other"].has_waiting)
            with psycopg.connect(elsewhere, autocommit=True, connect_timeout=10) as admin:
                name = sql.Identifier(database)
                admin.execute(sql.SQL("alter database {} with allow_connections false").format(name))
                admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (database,))
                with pytest.raises(BrokerUnavailable):
                    await asyncio.wait_for(other, 15)
                with pytest.raises(BrokerUnavailable):
                    await delivery.receive("g", "c", T, 1, 0, 60)
                admin.execute(sql.SQL("alter database {} with allow_connections true").format(name))
            again = await eventually(lambda: receive(delivery, 5, wait_s=2))
            assert offsets(again) == [0, 1, 2, 3, 4], "the unflushed acknowledgements come again"
            assert await delivery.settle("g", receipts(got), []) == receipts(got), "receipts of before are void"
            assert await delivery.settle("g", receipts(again), []) == []

    asyncio.run(scenario())


def test_draining_answers_those_who_wait(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify, delivering(notify) as delivery:
            waiting = asyncio.create_task(delivery.receive("g", "c", T, 1, 30, 60))
            await until(lambda: "g" in delivery._groups and delivery._groups["g"].has_waiting)
            delivery.drain()
            assert await asyncio.wait_for(waiting, 5) == []
            with pytest.raises(BrokerUnavailable, match="closing"):
                await delivery.receive("g", "c", T, 1, 0, 60)

    asyncio.run(scenario())


def test_closing_twice_and_before_running_is_fine(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify:
            pool = open_pool(notify.url)
            await pool.open()
            delivery = Delivery(pool, "b", DeliveryConfig(), topics=notify)
            await delivery.close()
            await delivery.close()
            await asyncio.wait_for(delivery.run(), 5)
            async with delivering(notify) as running:
                await running.close()
                await running.close()
            ((free,),) = notify.query("select expires_at <= now() from txmsg.lease where name = %s", LEASE_NAME)
            assert free
            await pool.close()

    asyncio.run(scenario())


# ---- plans


def test_reading_uses_the_primary_key_of_the_partition(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url) as notify:
            await notify.add(5000)
            notify.query("analyze txmsg.message_1")
            with psycopg.connect(notify.url, connect_timeout=10) as conn:
                explain = sql.SQL("explain ") + store._read_messages_in(1)
                values = {"queue_id": 1, "start": 100, "end": 200, "size_bytes": 1000}
                plan = "\n".join(line for (line,) in conn.execute(explain, values))
                assert "Index Scan using message_1_pkey" in plan
                assert "Seq Scan" not in plan
                assert "Sort" not in plan
                explain = sql.SQL("explain ") + store._queue_ends_in(1)
                plan = "\n".join(line for (line,) in conn.execute(explain, ([1],)))
                assert "Index Only Scan Backward using message_1_pkey" in plan

    asyncio.run(scenario())


def test_lag_counts_what_is_not_acknowledged(notify_url: str) -> None:
    async def scenario() -> None:
        async with notify_at(notify_url, queues=2) as notify, delivering(notify) as delivery:
            await notify.add(10)
            got = await receive(delivery, 6)
            await delivery.settle("g", receipts(got[:3]), [(got[3].receipt, "boom", 60.0)])
            assert await delivery.groups_lag() == [GroupLag(group="g", topic="t", waiting=16, retrying=1, dead=0)]

    asyncio.run(scenario())
