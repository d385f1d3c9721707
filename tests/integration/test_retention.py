"""Old segments are dropped completely, despite interruptions and open readers; unread messages are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from tests.integration.delivery_harness import Notify, delivering, notify_at, offsets, receipts, receive
from txmsg.administration.groups import Seek
from txmsg.broker.config import BrokerConfig
from txmsg.broker.retention import Retention
from txmsg.broker.store import segments as store
from txmsg.broker.store.batch import WriteBatch, apply
from txmsg.broker.store.connect import connect_writer, open_pool, upkeep_session
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.prepared import PreparedConnection
from txmsg.message import QueueId, new_transaction_id_bytes
from txmsg.message.columns import Columns
from txmsg.wire.start import Start

OLD_S, ANCIENT_S = 8 * 86_400, 31 * 86_400


@pytest.fixture
async def notify(notify_url: str) -> AsyncIterator[Notify]:
    """A database with segments 1, 2, 3 closed long ago, 4 open, five messages in each."""
    async with notify_at(notify_url) as notify:
        for _ in range(3):
            await notify.add(5)
            notify.rotate()
        await notify.add(5)
        aged(notify, OLD_S)
        with patient():
            yield notify


@pytest.fixture
def retention(notify_url: str) -> Retention:
    return Retention(BrokerConfig(storage=notify_url))


@contextmanager
def patient() -> Iterator[None]:
    """Let drops wait longer for locks: on a busy machine a reader may be paused in a statement."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_LOCK_WAIT_S", 20.0)
        patch.setattr(store, "_DETACH_WAIT_S", 30.0)
        yield


def aged(notify: Notify, seconds: int) -> None:
    """Set the close time of all closed segments so long ago."""
    notify.query(
        "update txmsg.segment set closed_at = now() - make_interval(secs => %s) where state = 'closed'", seconds
    )


def kept(notify: Notify) -> list[int]:
    """Return the segments that have a row, all their tables attached, and messages."""
    rows = notify.query("select id from txmsg.segment where state <> 'ahead' order by id")
    tables = notify.query(
        "select inhparent::regclass::text, inhrelid::regclass::text from pg_inherits "
        "where inhparent in ('txmsg.message'::regclass, 'txmsg.rolled_back'::regclass) and not inhdetachpending"
    )
    (ahead,) = notify.query("select id from txmsg.segment where state = 'ahead'")
    wanted = [row[0] for row in rows]
    expected = {
        (root, f"{root}_{each}") for root in ("txmsg.message", "txmsg.rolled_back") for each in (*wanted, *ahead)
    }
    assert set(tables) == expected
    assert len(
        notify.query("select relname from pg_class where relkind = 'r' and relname ~ '^(message|rolled_back)_[0-9]+$'")
    ) == len(expected)
    assert [row[0] for row in notify.query("select distinct segment from txmsg.message order by 1")] == wanted
    return wanted


def cursor_at(notify: Notify, next_offset: int, acked: str = "{}", *, group: str = "slow") -> None:
    """Set the cursor of a group without members in queue 0 of topic t."""
    notify.query("insert into txmsg.consumer_group (name) values (%s) on conflict do nothing", group)
    notify.query(
        "insert into txmsg.cursor (group_id, queue_id, next_offset, acked, epoch) "
        "select g.id, q.id, %s, %s::int8multirange, 0 from txmsg.consumer_group g, txmsg.queue q where g.name = %s "
        "on conflict (group_id, queue_id) do update set next_offset = excluded.next_offset, acked = excluded.acked",
        *(next_offset, acked, group),
    )


# ---- drops


async def test_old_segments_read_by_every_group_are_dropped(notify: Notify, retention: Retention) -> None:
    async with delivering(notify) as delivery:
        got = await receive(delivery, 20)
        await delivery.settle("g", "c", receipts(got), [])
        await delivery.writer.flush_once()
        assert await retention.run_once() == 2
        assert kept(notify) == [3, 4], "the one before the open one remembers outcomes"
        assert (retention.counts.segments, retention.counts.unread_messages) == (2, 0)
        assert offsets(await receive(delivery, 10, group="new")) == list(range(10, 20))
        delivery.wake(await notify.add(1))
        assert offsets(await receive(delivery, 1)) == [20]
    assert await retention.run_once() == 0


async def test_segments_are_dropped_by_size(notify: Notify, retention: Retention) -> None:
    aged(notify, 1)
    assert await retention.run_once() == 0
    small = Retention(BrokerConfig(storage=notify.url, retention_size_bytes=1))
    assert await small.run_once() == 2
    assert kept(notify) == [3, 4]


async def test_keys_of_bodies_expire_independently_of_segments(notify: Notify, retention: Retention) -> None:
    add = (
        "insert into txmsg.body_key (transaction_id, n, topic_id, key, erased_at, expires_at) "
        "select gen_random_uuid(), 0, 1, {}, now() + interval '{} s' from generate_series(1, %s)"
    )
    notify.query(add.format("sha256('k'), null", -1), 10_001)  # more than go at once
    notify.query(add.format("null, now()", -1), 1)
    notify.query(add.format("sha256('k'), null", 60), 2)
    notify.query(add.format("null, now()", 60), 3)
    cursor_at(notify, 0)
    assert await retention.run_once() == 0
    assert kept(notify) == [1, 2, 3, 4]
    assert notify.query("select count(key), count(*) from txmsg.body_key") == [(2, 5)]
    notify.query("delete from txmsg.cursor")
    notify.query("update txmsg.body_key set expires_at = now() where key is not null")
    assert await retention.run_once() == 2
    assert notify.query("select count(key), count(*) from txmsg.body_key") == [(0, 3)]


async def test_unmirrored_messages_are_kept_and_mirrors_of_other_topics_ignored(
    notify: Notify, retention: Retention
) -> None:
    notify.query("insert into txmsg.mirror (name, include, exclude) values ('other', '{o*,?}', '{t}')")
    assert await retention.run_once() == 2
    assert kept(notify) == [3, 4]
    notify.query("update txmsg.mirror set exclude = '{}'")
    notify.rotate()
    await notify.add(5)
    aged(notify, OLD_S)
    assert await retention.run_once() == 0, "a mirror that has not begun has mirrored nothing"
    for next_offset, left in ((14, [3, 4, 5]), (15, [4, 5])):
        notify.query(
            "insert into txmsg.mirror_queue (mirror, queue, next_offset) select 'other', id, %s from txmsg.queue "
            "on conflict (mirror, queue) do update set next_offset = excluded.next_offset",
            next_offset,
        )
        await retention.run_once()
        assert kept(notify) == left, next_offset


async def test_messages_unread_by_a_group_are_kept(notify: Notify, retention: Retention) -> None:
    cursor_at(notify, 20, group="fast")
    for next_offset, acked, left in (
        (0, "{}", [1, 2, 3, 4]),
        (4, "{[5,20)}", [1, 2, 3, 4]),  # one gap in the first
        (5, "{}", [2, 3, 4]),
        (5, "{[6,20)}", [2, 3, 4]),
        (10, "{}", [3, 4]),
    ):
        cursor_at(notify, next_offset, acked)
        await retention.run_once()
        assert kept(notify) == left, (next_offset, acked)
    assert retention.counts.unread_messages == 0


async def test_a_pending_seek_keeps_messages_after_its_target_only(notify: Notify, retention: Retention) -> None:
    cursor_at(notify, 20)
    notify.query("update txmsg.cursor set seek_to = 7, acked = '{[0,20)}'")  # and none of its consumers runs
    await retention.run_once()
    assert kept(notify) == [2, 3, 4]
    cursor_at(notify, 0)
    notify.query("update txmsg.cursor set seek_to = 20")
    await retention.run_once()
    assert kept(notify) == [3, 4]


async def test_ranges_acknowledged_beyond_the_cursor_count_as_read(notify: Notify, retention: Retention) -> None:
    notify.query("delete from txmsg.segment where id = 1")  # as after a loss: the cursor stands before what is kept
    notify.query("drop table txmsg.message_1, txmsg.rolled_back_1")
    cursor_at(notify, 0, "{[5,20)}")
    await retention.run_once()
    assert kept(notify) == [3, 4]


async def test_retries_and_dead_letters_do_not_keep_segments(notify: Notify, retention: Retention) -> None:
    cursor_at(notify, 20)
    notify.query(
        "insert into txmsg.retry (group_id, queue_id, queue_offset, attempt, due_at, transaction_id, n, body, born_at, "
        "stored_at) select c.group_id, c.queue_id, 3, 1, now(), m.transaction_id, m.n, m.body, m.born_at, m.stored_at "
        "from txmsg.cursor c, txmsg.message m where m.queue_offset = 3"
    )
    assert await retention.run_once() == 2
    async with delivering(notify, retry_poll_s=0.05) as delivery:
        (retried,) = await receive(delivery, 1, group="slow")
        assert (retried.offset, retried.attempt, retried.body) == (3, 2, b"body")


async def test_past_retention_max_unread_messages_are_dropped_with_an_alert_if_configured(
    notify: Notify, retention: Retention, caplog: pytest.LogCaptureFixture
) -> None:
    await receive_nothing(notify)
    cursor_at(notify, 3, "{[4,7)}")
    notify.query("update txmsg.topic set unread = 'drop'")
    assert await retention.run_once() == 0, "not yet: retention_max is for what is unread"
    aged(notify, ANCIENT_S)
    assert await retention.run_once() == 2
    assert kept(notify) == [3, 4]
    assert retention.counts.unread_messages == 1 + 3
    lost = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [line.split(": unread")[0] for line in lost] == [
        "group slow has lost 1 messages of topic t queue 0, in offsets 3 to 3",
        "group slow has lost 3 messages of topic t queue 0, in offsets 7 to 9",
    ]
    async with delivering(notify) as delivery:
        assert offsets(await receive(delivery, 10, group="slow")) == list(range(10, 20)), "goes on at the earliest kept"
    assert "group slow has lost offsets 3 to 9 of topic t queue 0" in caplog.text


async def test_past_retention_max_a_keeping_topic_keeps_all_later_segments_and_logs_once(
    notify: Notify, retention: Retention, caplog: pytest.LogCaptureFixture
) -> None:
    await receive_nothing(notify)
    cursor_at(notify, 3)
    aged(notify, ANCIENT_S)
    for _ in range(3):
        assert await retention.run_once() == 0
    assert kept(notify) == [1, 2, 3, 4]
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "group slow has not read 2 messages of topic t queue 0, from offset 3 on" in said


async def receive_nothing(notify: Notify) -> None:
    """Create a topic and a queue without readers, which keep no segment."""
    await notify.add(1, topic="other")


async def test_a_new_group_does_not_begin_in_a_segment_being_dropped(notify: Notify, retention: Retention) -> None:
    notify.query("update txmsg.segment set dropping = true where id = 1")
    async with delivering(notify) as delivery:
        assert offsets(await receive(delivery, 15)) == list(range(5, 20))


# ---- interruptions


@contextmanager
def reading(notify: Notify) -> Iterator[None]:
    """Keep a transaction open that has read all of `message` and `rolled_back`."""
    with closing(psycopg.connect(notify.url)) as connection:
        connection.execute("select count(*) from txmsg.message, txmsg.rolled_back")
        yield


def _half_detached(notify: Notify, root: str) -> None:
    with reading(notify), psycopg.connect(notify.url, autocommit=True) as connection:
        connection.execute("set lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(f"alter table txmsg.{root} detach partition txmsg.{root}_1 concurrently".encode())
    pending = notify.query("select inhrelid::regclass::text from pg_inherits where inhdetachpending")
    assert pending == [(f"txmsg.{root}_1",)]


def _detached(notify: Notify, root: str) -> None:
    notify.query(f"alter table txmsg.{root} detach partition txmsg.{root}_1 concurrently")


def _dropped(notify: Notify, root: str) -> None:
    notify.query(f"drop table txmsg.{root}_1")


_STEPS: dict[str, list[tuple[Callable[[Notify, str], None], str]]] = {
    "given up": [],
    "message half detached": [(_half_detached, "message")],
    "message detached": [(_detached, "message")],
    "message dropped": [(_dropped, "message")],
    "rolled_back half detached": [(_dropped, "message"), (_half_detached, "rolled_back")],
    "rolled_back detached": [(_dropped, "message"), (_detached, "rolled_back")],
    "both dropped": [(_dropped, "message"), (_dropped, "rolled_back")],
}


@pytest.mark.parametrize("interrupted", _STEPS)
async def test_an_interrupted_drop_is_completed_from_any_step(
    notify: Notify, retention: Retention, interrupted: str
) -> None:
    notify.query("update txmsg.segment set dropping = true where id = 1")
    for step, root in _STEPS[interrupted]:
        step(notify, root)
    async with delivering(notify) as delivery:  # senders and readers continue in each of these states
        assert offsets(await receive(delivery, 15)) == list(range(5, 20))
        delivery.wake(await notify.add(1))
        assert offsets(await receive(delivery, 1)) == [20]
        cursor_at(notify, 0, group="g")
    assert await retention.run_once() == 1
    assert kept(notify) == [2, 3, 4]


# ---- concurrency


async def test_senders_and_readers_continue_while_an_open_reader_prevents_a_drop(
    notify: Notify, retention: Retention, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_DETACH_WAIT_S", 1.0)
    monkeypatch.setattr(store, "_LOCK_WAIT_S", 0.2)
    sent = 0

    async def send(sender: PreparedConnection, segment: int) -> None:
        nonlocal sent
        plain = Columns(
            transaction_id=[new_transaction_id_bytes()],
            queue=[QueueId(queue)],
            producer=[0],
            body=[b"x"],
            born_at_us=[1],
        )
        applied = await apply(sender, WriteBatch(plain=plain), segment=segment, previous=segment - 1, first_check_s=6)
        assert applied.problems == {}
        sent += 1
        delivery.wake(applied.ends)
        assert offsets(await receive(delivery, 1)) == [19 + sent]

    (queue,) = await notify.queue_ids()
    async with (
        delivering(notify) as delivery,
        await connect_writer(notify.url, lock_timeout_s=60, transaction_timeout_s=120) as sender,
    ):
        await receive(delivery, 20)
        cursor_at(notify, 20, group="g")
        with reading(notify):
            for attempt, segment in ((0, 4), (1, 5)):  # the second one finds a table that is half detached
                dropping = asyncio.create_task(retention.run_once())
                while not dropping.done():
                    await send(sender, segment)
                assert await dropping == 0
                assert sent > attempt
                notify.rotate()
                await send(sender, segment + 1)
            assert notify.query("select id from txmsg.segment where dropping") == [(1,), (2,), (3,)]
            assert caplog.text.count("cannot be dropped yet") == 1
        with patient():
            assert await retention.run_once() == 3
    assert kept(notify) == [4, 5, 6]


async def test_one_broker_at_a_time_drops_segments(notify: Notify, retention: Retention) -> None:
    async with upkeep_session(notify.url) as other:
        assert await store.try_upkeep_lock(other)
        assert await retention.run_once() == 0
        assert kept(notify) == [1, 2, 3, 4]
        await store.release_upkeep_lock(other)  # the server ends the session a moment after it was closed
    assert sum(await asyncio.gather(*(retention.run_once() for _ in range(3)))) == 2
    assert kept(notify) == [3, 4]


# ---- queues that a topic gets while a group is away


async def test_messages_in_queues_newer_than_the_last_visit_of_a_group_count_as_waiting(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, open_pool(notify_url) as pool:
        admin = GroupAdministration(pool)

        async def waiting() -> tuple[list[tuple[str, int]], dict[int, int]]:
            groups, shown = await admin.list(10), await admin.show("g")
            waiting = {queue.queue: queue.waiting for queue in shown.queues}
            return [(group.group, group.waiting) for group in groups], waiting

        await notify.add(3)
        async with delivering(notify) as delivery:
            await delivery.settle("g", "c", receipts(await receive(delivery, 3)), [])
        assert await waiting() == ([("g", 0)], {0: 0})

        await notify.grow(2)
        await notify.add(5)
        assert await waiting() == ([("g", 10)], {0: 5, 1: 5})
        notify.query("update txmsg.cursor set next_offset = 8")  # of queue 0: the group has no other cursor
        for _ in range(2):
            notify.rotate()
        aged(notify, OLD_S)
        retention = Retention(BrokerConfig(storage=notify_url))
        with patient():
            assert await retention.run_once() == 0
        assert await waiting() == ([("g", 5)], {0: 0, 1: 5})
        async with delivering(notify, "b2") as delivery:
            got = await receive(delivery, 5)
            assert [(message.queue, message.offset) for message in got] == [(1, offset) for offset in range(5)]
            await delivery.settle("g", "c", receipts(got), [])
        with patient():
            assert await retention.run_once() == 1

        await notify.grow(3)
        await notify.add(2)
        assert await waiting() == ([("g", 6)], {0: 2, 1: 2, 2: 2})
        await admin.seek(Seek(group="g", topic="t", queue=2, to=Start.latest()))
        assert await waiting() == ([("g", 4)], {0: 2, 1: 2, 2: 0})
