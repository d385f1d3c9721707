"""Topics of durability memory: complete while PostgreSQL runs, empty after its crash, but never stuck.

A crash empties all unlogged tables and changes nothing else; here the test empties them, acceptance tests crash the
server.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import psycopg
import pytest

from tests.errors_page import is_documented
from tests.integration import delivery_harness
from tests.integration.batch_harness import Notify, columns_of, notify
from tests.integration.delivery_harness import (
    delivering,
    notify_at,
    offsets,
    poll,
    receipts,
    receive,
    receive_only,
    receive_until,
)
from tests.integration.test_retention import patient
from tests.waiting import until_async
from txmsg.administration.topics import TopicChange
from txmsg.broker.config import BrokerConfig
from txmsg.broker.delivery import Delivery
from txmsg.broker.delivery.values import Refusal
from txmsg.broker.retention import Retention
from txmsg.broker.segments import Segments
from txmsg.broker.store.batch import WriteBatch
from txmsg.broker.store.connect import open_pool
from txmsg.broker.store.messages import Messages
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.broker.store.topics import TopicRegistry
from txmsg.errors import MisuseError
from txmsg.wire.start import Start

LIFE = 2**40
"""Distance between the offsets of a queue before and after a crash."""


async def memory_topic(url: str, name: str = "quotes", *, queues: int = 1) -> tuple[int, ...]:
    """Create a topic and return its queues."""
    async with open_pool(url) as pool:
        topic = await TopicRegistry(pool, auto_create=True, queues=queues).ensure(name)
        await TopicAdministration(pool).alter(name, TopicChange(durability="memory"))
    return topic.queue_ids


def crash(url: str) -> None:
    """Empty all unlogged tables."""
    with psycopg.connect(url, connect_timeout=10) as connection:
        rows = connection.execute(
            "select oid::regclass::text from pg_class where relkind = 'r' and relpersistence = 'u'"
        ).fetchall()
        tables = [row[0] for row in rows]
        assert "txmsg.memory_queue" in tables
        assert "txmsg.memory_1" in tables
        connection.execute(f"truncate {', '.join(tables)}".encode())


async def until_noticed(delivery: Delivery) -> None:
    """Wait until the broker has dropped reads from before the crash and delivers again."""
    leases = delivery._state.leases
    before = leases.incarnation
    await until_async(lambda: leases.incarnation != before and leases.is_held())


async def offsets_of(db: Notify, queue: int) -> list[tuple[int, int]]:
    """Return (segment, offset) of the queue's messages."""
    return [
        (row[0], row[1])
        for row in await db.rows(
            f"select segment, queue_offset from txmsg.message where queue = {queue} order by queue_offset"
        )
    ]


async def run(db: Notify, statement: str) -> None:
    await db.connection.execute(statement.encode())


async def rotate(db: Notify) -> None:
    await db.rows("select txmsg.rotate((select id from txmsg.segment where state = 'open'))")
    await db.rows("select txmsg.add_segment()")


async def test_memory_messages_are_stored_separately_with_offsets_and_deduplication(db: Notify) -> None:
    (queue,) = await memory_topic(db.url)
    both = columns_of([queue, db.queues[0]])
    both.transaction_id[1], both.n[1] = both.transaction_id[0], 1
    gone, plain = columns_of([queue]), columns_of([queue, queue])
    await db.apply(WriteBatch(half=both))
    await db.apply(WriteBatch(half=gone))
    assert (await db.apply(WriteBatch(commit=both.transaction_id[:1], rollback=gone.transaction_id, plain=plain))).ends[
        queue
    ] == 3
    assert await offsets_of(db, queue) == [(-1, 0), (-1, 1), (-1, 2)]
    assert await offsets_of(db, db.queues[0]) == [(1, 0)]
    for segment, previous in ((1, 0), (2, 1)):

        async def repeated(batch: WriteBatch, segment: int = segment, previous: int = previous) -> set[object]:
            return set((await db.apply(batch, segment=segment, previous=previous)).problems.values())

        assert await repeated(WriteBatch(commit=both.transaction_id[:1], plain=plain)) == set()
        assert await repeated(WriteBatch(commit=gone.transaction_id, rollback=both.transaction_id[:1])) == {"conflict"}
        assert await repeated(WriteBatch(half=both)) == {"resolved"}
        other = columns_of([queue, queue], ids=plain.transaction_id)
        other.body = [b"other", b"other"]
        assert await repeated(WriteBatch(plain=other)) == {"other"}
        assert len(await offsets_of(db, queue)) == 3
        if segment == 1:
            await rotate(db)
    await db.apply(WriteBatch(plain=columns_of([queue])), segment=2, previous=1)
    assert (await offsets_of(db, queue))[3:] == [(-2, 3)]
    assert await db.rows("select from pg_class where relname ~ '^memory_[0-9]+$' and relpersistence <> 'u'") == []


async def test_delayed_messages_wait_in_logged_tables_until_they_enter_a_memory_queue(db: Notify) -> None:
    (queue,) = await memory_topic(db.url)
    later = columns_of([queue])
    later.deliver_at_us = [time.time_ns() // 1000 + 3_600_000_000]
    await db.apply(WriteBatch(plain=later))
    release = "call txmsg.release_due(1, null, 10, 1000, null, null, null, null, null)"
    await db.rows(release)
    assert await offsets_of(db, queue) == []
    crash(db.url)
    await run(db, "update txmsg.scheduled set deliver_at = deliver_at - interval '1 h'")
    await db.rows(release)
    assert await offsets_of(db, queue) == [(-1, LIFE)]
    assert set((await db.apply(WriteBatch(plain=later))).problems.values()) == set()
    assert len(await offsets_of(db, queue)) == 1


async def test_after_a_crash_a_memory_queue_continues_above_all_used_offsets(db: Notify) -> None:
    queue, idle = await memory_topic(db.url, queues=2)
    for life in range(1, 3):
        await db.apply(WriteBatch(plain=columns_of([queue] * 5)))
        crash(db.url)
        assert (await db.apply(WriteBatch(plain=columns_of([queue] * 2)))).ends == {queue: life * LIFE + 2}
        assert await offsets_of(db, queue) == [(-1, life * LIFE), (-1, life * LIFE + 1)]
    crash(db.url)
    await rotate(db)
    assert (await db.apply(WriteBatch(plain=columns_of([queue, idle])), segment=2, previous=1)).ends == {
        queue: 3 * LIFE + 1,
        idle: LIFE + 1,  # its first upkeep
    }
    await db.apply(WriteBatch(plain=columns_of([db.queues[0]] * 2)), segment=2, previous=1)
    assert [each for _, each in await offsets_of(db, db.queues[0])] == [0, 1]


async def test_an_outcome_lost_in_a_crash_is_expired_and_others_are_remembered(db: Notify) -> None:
    (queue,) = await memory_topic(db.url)
    memory_only, gone, both = columns_of([queue]), columns_of([queue]), columns_of([queue, db.queues[0]])
    both.transaction_id[1], both.n[1] = both.transaction_id[0], 1
    waiting = columns_of([queue])
    for half in (memory_only, gone, both, waiting):
        await db.apply(WriteBatch(half=half))
    await db.apply(
        WriteBatch(commit=[memory_only.transaction_id[0], both.transaction_id[0]], rollback=gone.transaction_id)
    )
    crash(db.url)
    again = await db.apply(
        WriteBatch(
            commit=[
                memory_only.transaction_id[0],
                both.transaction_id[0],
                gone.transaction_id[0],
                waiting.transaction_id[0],
            ]
        )
    )
    assert again.problems == {memory_only.transaction_id[0]: "expired", gone.transaction_id[0]: "conflict"}
    assert await offsets_of(db, queue) == [(-1, LIFE)], "what was undecided is delivered"


async def test_groups_continue_after_a_crash_from_any_position(notify_url: str) -> None:
    async with notify(notify_url) as db, notify_at(notify_url) as seen, delivering(seen, retry_poll_s=0.02) as here:
        (queue,) = await memory_topic(notify_url, "t")
        here.wake((await db.apply(WriteBatch(plain=columns_of([queue] * 8)))).ends)
        first = await receive(here, 4)
        await here.settle("g", "c", receipts(first[1:3]), [Refusal(first[0].receipt, "boom", 0.0)])
        (retried,) = await receive(here, 1, group="absent")
        await here.settle("absent", "c", [retried.receipt], [])
        await here.writer.flush_once()
        await run(db, "insert into txmsg.consumer_group (name) values ('away')")  # no member of it is there
        await run(db, f"insert into txmsg.cursor select max(id), {queue}, 5, '{{}}', 0 from txmsg.consumer_group")
        crash(notify_url)
        await until_noticed(here)
        here.wake((await db.apply(WriteBatch(plain=columns_of([queue] * 3)))).ends)
        new = [LIFE, LIFE + 1, LIFE + 2]
        must = {(0, 2), *((offset, 1) for offset in new)}
        got = await receive_until(here, lambda got: must <= {(message.offset, message.attempt) for message in got})
        assert [each for each in offsets(got) if each >= LIFE] == new  # retries are in a logged table
        assert offsets(await receive_only(here, 3, group="new")) == new
        assert await here.settle("g", "c", receipts([*got, first[3]]), []) == receipts([first[3]])
        lag = {each.group: (each.waiting, each.retrying) for each in await seen.lag(here)}
        assert lag.pop("absent")[0] in range(3, 11)
        assert lag == {"g": (0, 0), "new": (3, 0), "away": (3, 0)}
    async with notify_at(notify_url) as seen, delivering(seen, "b2") as there:
        assert offsets(await receive_only(there, 3, group="absent")) == new
        assert await receive(there, 9, wait_s=0.2) == []


async def test_a_queue_never_read_by_a_group_begins_after_the_lost_range(notify_url: str) -> None:
    async with notify(notify_url) as db, notify_at(notify_url, queues=2) as seen:
        old, new = await memory_topic(notify_url, "t", queues=2)
        await db.apply(WriteBatch(plain=columns_of([old, new])))
        await run(db, "insert into txmsg.consumer_group (name) values ('g')")
        await run(db, f"insert into txmsg.cursor select id, {old}, 1, '{{}}', 0 from txmsg.consumer_group")
        crash(notify_url)
        await db.apply(WriteBatch(plain=columns_of([new] * 3)))
        async with delivering(seen) as delivery:
            (lag,) = await seen.lag(delivery)
            assert (lag.group, lag.waiting) == ("g", 3)
            assert offsets(await receive_only(delivery, 3)) == [LIFE, LIFE + 1, LIFE + 2]


async def test_lost_messages_are_given_up_without_new_ones(notify_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with notify(notify_url) as db, notify_at(notify_url) as seen, delivering(seen) as here:
        (queue,) = await memory_topic(notify_url, "t")
        await db.apply(WriteBatch(plain=columns_of([queue] * 8)))
        await rotate(db)
        assert len(await receive(here, 2, visibility_timeout_s=60)) == 2
        crash(notify_url)
        await until_noticed(here)
        async with open_pool(notify_url) as pool:
            with caplog.at_level(logging.ERROR):
                await Segments(pool, BrokerConfig(storage=notify_url)).run_once()
            assert "1 queues of durability memory have lost their messages" in caplog.text
            caplog.clear()
            await Segments(pool, BrokerConfig(storage=notify_url)).run_once()
            assert "have lost their messages" not in caplog.text, "it was said before"
        here.wake(await db_apply(notify_url, queue, segment=2, previous=1))
        got = offsets(await receive_until(here, lambda got: 8 + LIFE in offsets(got)))
        assert [offset for offset in got if offset >= LIFE] == [8 + LIFE]
        assert offsets(await receive_only(here, 1, group="new")) == [8 + LIFE]
    async with notify_at(notify_url) as seen, delivering(seen, "b2") as there:
        assert offsets(await receive_only(there, 1, group="newer")) == [8 + LIFE]


async def db_apply(url: str, queue: int, *, segment: int, previous: int) -> dict[int, int]:
    async with notify(url) as db:
        return (await db.apply(WriteBatch(plain=columns_of([queue])), segment=segment, previous=previous)).ends


async def test_memory_messages_are_read_searched_and_seekable_across_segments(notify_url: str) -> None:
    async with notify(notify_url) as db, notify_at(notify_url) as seen, delivering(seen) as here:
        (queue,) = await memory_topic(notify_url, "t")
        old, new = columns_of([queue] * 3), columns_of([queue] * 2)
        old.key = ["k"] * 3
        await db.apply(WriteBatch(plain=old))
        await rotate(db)
        ((middle_us,),) = await db.rows("select extract(epoch from now()) * 1000000")
        await run(db, "update txmsg.message set stored_at = stored_at - interval '1 h'")
        await db.apply(WriteBatch(plain=new), segment=2, previous=1)
        assert offsets(await receive(here, 5)) == [0, 1, 2, 3, 4]
        for group, start, wanted in (("late", Start.latest(), []), ("middle", Start("time", int(middle_us)), [3, 4])):
            given = await here.receive(poll(group, "c", delivery_harness.T, 9, 30 if wanted else 0.5, 60.0, start))
            assert offsets(delivery_harness.each_of(given)) == wanted
        async with open_pool(notify_url) as pool:
            messages = Messages(pool)
            how: dict[str, Any] = {"limit": 9, "with_bodies": True, "size_bytes_max": 1000}
            found, _ = await messages.of_key("k", topic="t", **how)
            assert sorted((each.message.segment, each.message.offset) for each in found) == [(1, 0), (1, 1), (1, 2)]
            assert await messages.of_id(found[0].message.transaction_id, 0, **how) == ([found[0]], False)


async def test_a_segment_is_dropped_with_its_memory_messages(db: Notify) -> None:
    (queue,) = await memory_topic(db.url)
    await db.apply(WriteBatch(plain=columns_of([queue] * 3)))
    for segment in (2, 3):
        await rotate(db)
        await db.apply(WriteBatch(plain=columns_of([queue])), segment=segment, previous=segment - 1)
    await run(db, "update txmsg.segment set closed_at = closed_at - interval '60 d' where state = 'closed'")
    await run(db, "insert into txmsg.consumer_group (name) values ('slow')")
    await run(db, f"insert into txmsg.cursor (group_id, queue_id, next_offset, epoch) values (1, {queue}, 2, 0)")
    retention = Retention(BrokerConfig(storage=db.url))
    with patient():
        assert await retention.run_once() == 0, "a group has not read it"
        await run(db, "update txmsg.cursor set next_offset = 3")
        assert await retention.run_once() == 1
    assert await offsets_of(db, queue) == [(-2, 3), (-3, 4)]
    assert await db.rows("select from pg_class where relname in ('memory_1', 'message_1')") == []


async def test_durability_memory_can_be_changed_only_while_a_topic_is_new(db: Notify) -> None:
    async with open_pool(db.url) as pool:
        settings = TopicAdministration(pool)
        await settings.alter("orders", TopicChange(durability="memory"))
        await settings.alter("orders", TopicChange(durability="async", queues=5))
        await settings.alter("orders", TopicChange(durability="memory", queues=6))
        queues = (await TopicRegistry(pool, auto_create=False, queues=1).ensure("orders")).queue_ids
        await db.apply(WriteBatch(plain=columns_of(queues)))
        assert [await offsets_of(db, queue) for queue in queues] == [[(-1, 0)]] * 6
        for lost in (False, True):
            if lost:
                crash(db.url)
            with pytest.raises(MisuseError, match="has had messages") as refused:
                await settings.alter("orders", TopicChange(durability="sync"))
            assert is_documented(refused.value)
        await TopicRegistry(pool, auto_create=True, queues=1).ensure("safe")
        ((safe,),) = await db.rows("select max(id) from txmsg.queue")
        await db.apply(WriteBatch(plain=columns_of([safe])))
        with pytest.raises(MisuseError, match="has had messages"):
            await settings.alter("safe", TopicChange(durability="memory"))
        await settings.alter("orders", TopicChange(queues=7))
        ((newest,),) = await db.rows("select max(id) from txmsg.queue")
        await db.apply(WriteBatch(plain=columns_of([newest])))
        assert await offsets_of(db, newest) == [(-1, 0)], "it has lost nothing"
