"""A group in memory: fairness, waiting members, settlements."""

from __future__ import annotations

import asyncio
import random

import pytest

from txmsg.broker.delivery.group import Fetch, Group, GroupQueueReader
from txmsg.broker.delivery.offsets import Expiry, Visibility
from txmsg.broker.delivery.retries import Retries
from txmsg.broker.delivery.values import MessageBatch, Receipt, Refusal
from txmsg.broker.delivery.window import TIME_IS_OVER, InFlightWindow
from txmsg.broker.store.rows import RetryRow, StoredRow
from txmsg.errors import BrokerUnavailable
from txmsg.message import Offset, QueueId, QueueNumber
from txmsg.wire.tags import ALL_TAGS, parse_tags

T = {"t": ALL_TAGS}
LARGE = 1 << 30


def row(offset: int, tag: str | None = None) -> StoredRow:
    return StoredRow(Offset(offset), bytes(16), 0, None, tag, None, b"body", 0, 0, None)


def group_of(*lengths: int, tag: str | None = None) -> Group:
    """Return a group with one topic t; queue i (id 10 + i) has as many messages ready as `lengths` says."""
    group = Group(1, "g", Retries())
    for number, length in enumerate(lengths):
        window = InFlightWindow(0)
        window.put_rows([row(offset, tag) for offset in range(length)])
        group.add(["t"], [GroupQueueReader(group, "t", QueueNumber(number), QueueId(10 + number), 3, window)])
    return group


def queues_of(group: Group, count: int, token: int = 1) -> list[int]:
    return [
        each.queue
        for each in group.take_batches(Fetch(T, count, LARGE), Visibility(token=token, deadline=30))
        for _ in each.rows
    ]


def test_queues_are_served_evenly() -> None:
    got = queues_of(group_of(100, 100, 100, 100), 40)
    assert [got.count(number) for number in range(4)] == [10, 10, 10, 10]


def test_single_messages_come_from_the_queues_in_turn() -> None:
    group = group_of(100, 100, 100)
    got = [queues_of(group, 1, token)[0] for token in range(30)]
    assert [got.count(number) for number in range(3)] == [10, 10, 10]


def test_another_queue_fills_a_batch_that_one_cannot() -> None:
    assert sorted(queues_of(group_of(100, 1, 0, 2), 40)) == [0] * 37 + [1] + [3] * 2


def test_retries_take_at_most_half_of_a_batch() -> None:
    group = group_of(100)
    group.retries.put_retries([RetryRow(QueueId(10), 1, 0, row(1000 + n)) for n in range(100)])
    retries, first = group.take_batches(Fetch(T, 10, LARGE), Visibility(token=1, deadline=30))
    assert retries.attempts == [2] * 5
    assert (len(first.rows), first.attempts) == (5, None)


def test_a_consumer_of_single_messages_gets_retries_and_new_ones_in_turn() -> None:
    group = group_of(50)
    group.retries.put_retries([RetryRow(QueueId(10), 1, 0, row(1000 + n)) for n in range(50)])
    first = [
        group.take_batches(Fetch(T, 1, LARGE), Visibility(token=token, deadline=30))[0].attempts is None
        for token in range(40)
    ]
    assert first.count(True) == first.count(False) == 20


def test_a_consumer_of_single_messages_gets_a_retry_when_new_ones_have_other_tags() -> None:
    group = group_of(2, tag="theirs")
    group.members.join("c", {"t": parse_tags("mine")}, 0, 60)
    group.members.join("d", {"t": parse_tags("theirs")}, 0, 60)
    group.retries.put_retries([RetryRow(QueueId(10), 1, 0, row(1000 + n, "mine")) for n in range(4)])
    for token in range(4):
        (retry,) = group.take_batches(Fetch({"t": parse_tags("mine")}, 1, LARGE), Visibility(token=token, deadline=30))
        assert retry.attempts == [2]


def test_an_ordering_key_is_blocked_by_a_redelivered_dead_letter_in_a_new_table() -> None:
    def keyed(offset: int) -> StoredRow:
        return row(offset)._replace(ordering_key="k")

    group = group_of(0)
    window = group.feeds[QueueId(10)].window
    empty = [(QueueId(10), "k")]  # as read, while the dead letter is redriven
    assert window.block("k")
    group.retries.put_retries([RetryRow(QueueId(10), 0, 1, keyed(0))])
    group.unblock(empty)
    window.put_rows([keyed(offset) for offset in range(2)])
    assert window.ready_count == 0, "the retry of the key is out first"
    (retry,) = group.take_batches(Fetch(T, 10, LARGE), Visibility(token=1, deadline=30))
    group.settle("c", [retry.receipt], [], 0)
    group.retries.written(group.retries.outcomes())
    window.stored(window.failing())
    group.unblock(empty)
    assert window.blocked_keys() == []


def test_a_retry_with_a_tag_without_subscriber_is_delivered_to_any_member() -> None:
    group = group_of(0)
    group.members.join("c", {"t": parse_tags("new")}, 0, 60)
    group.retries.put_retries([RetryRow(QueueId(10), 1, 0, row(5, "old"))])
    assert len(group.take_batches(Fetch({"t": parse_tags("new")}, 10, LARGE), Visibility(token=1, deadline=30))) == 1


def test_a_silent_member_is_removed() -> None:
    group = group_of(0)
    group.members.join("a", {"t": parse_tags("a")}, 0, 60)
    group.members.join("b", {"t": parse_tags("b")}, 50, 60)
    assert group.members.wanted("t") == parse_tags("a || b")
    group.members.join("b", {"t": parse_tags("b")}, 70, 60)
    assert group.members.wanted("t") == parse_tags("b")


def test_settlements_with_another_epoch_or_queue_are_late() -> None:
    group = group_of(2)
    (batch,) = group.take_batches(Fetch(T, 2, LARGE), Visibility(token=1, deadline=30))
    good, bad = (batch.receipt._replace(offsets=[offset]) for offset in batch.receipt.offsets)
    old, alien = bad._replace(epoch=2), Receipt(99, 1, 3, [0])
    expired, feeds = group.settle("c", [good, old, alien], [Refusal(old, "x"), Refusal(alien, "x")], 0)
    assert sorted(r.queue_id for r in expired) == [10, 10, 99, 99]
    assert good not in expired
    assert [feed.queue_id for feed in feeds] == [10]


def test_a_message_renewed_with_an_exact_timeout_is_redelivered_without_backoff() -> None:
    group = group_of(3)
    group.retries.put_retries([RetryRow(QueueId(10), 2, 0, row(8))])
    given = group.take_batches(Fetch(T, 10, LARGE), Visibility(token=1, deadline=30))
    receipts = [batch.receipt._replace(offsets=[offset]) for batch in given for offset in batch.receipt.offsets]
    retried, first, second, _ = receipts
    assert group.renew([retried, first, Receipt(10, 1, 3, [99])], 5, is_exact=True) == [Receipt(10, 1, 3, [99])]
    assert group.renew([second], 5) == [], "only an exact timeout becomes shorter"
    group.expire(29)
    feed = group.feeds[QueueId(10)]
    backoff = group.settings.backoff
    assert {offset: failure.next_s(backoff, 1) for offset, failure in feed.window.failing().items()} == {0: 0.0}
    assert [outcome.failure for outcome in group.retries.outcomes().values()] == [TIME_IS_OVER]
    group.expire(30)
    assert [failure.next_s(backoff, 1) for failure in feed.window.failing().values()] == [0.0, 1.0, 1.0]


def test_a_message_fetched_with_an_exact_timeout_is_redelivered_without_backoff() -> None:
    group = group_of(1)
    group.retries.put_retries([RetryRow(QueueId(10), 2, 0, row(8))])
    group.take_batches(Fetch(T, 10, LARGE), Visibility(token=1, deadline=30, expiry=Expiry.EXACT))
    group.expire(30)
    assert group.feeds[QueueId(10)].window.failing() == {0: TIME_IS_OVER}
    assert [outcome.failure for outcome in group.retries.outcomes().values()] == [TIME_IS_OVER]


def test_a_suspect_message_is_delivered_alone_and_others_in_turn() -> None:
    group = group_of(4)
    retries = [RetryRow(QueueId(10), 0, 0, row(100 + n), losses) for n, losses in enumerate((2, 1, 2, 3))]
    group.retries.put_retries(retries)
    replies = [
        [
            each.offset
            for batch in group.take_batches(
                Fetch(T, 2, LARGE), Visibility(token=token, deadline=30, expiry=Expiry.LOST)
            )
            for each in batch.rows
        ]
        for token in range(7)
    ]
    assert [replies[place] for place in (0, 2, 4)] == [[100], [102], [103]]
    assert sorted(offset for place in (1, 3, 5) for offset in replies[place]) == [0, 1, 2, 3, 101]
    assert replies[6] == []


def test_suspect_messages_are_delivered_one_by_one_to_members_that_isolate() -> None:
    group = group_of(0)
    group.retries.put_retries([RetryRow(QueueId(10), 0, 0, row(n), 2) for n in range(4)])
    for token in (1, 2):
        (batch,) = group.take_batches(Fetch(T, 10, LARGE), Visibility(token=token, deadline=30, expiry=Expiry.LOST))
        assert (len(batch.rows), batch.losses) == (1, [2])
    (batch,) = group.take_batches(Fetch(T, 10, LARGE), Visibility(token=3, deadline=30))
    assert len(batch.rows) == 2


def test_a_refusal_may_request_a_minimum_delay() -> None:
    group = group_of(2)
    (batch,) = group.take_batches(Fetch(T, 2, LARGE), Visibility(token=1, deadline=30))
    soon, late = (batch.receipt._replace(offsets=[offset]) for offset in batch.receipt.offsets)
    group.settle("c", [], [Refusal(soon, "x", 0.001, is_least=True), Refusal(late, "x", 60.0, is_least=True)], 0)
    failing = group.feeds[QueueId(10)].window.failing()
    assert [failure.next_s(group.settings.backoff, 1) for failure in failing.values()] == [1.0, 60.0]


def test_a_queue_that_is_lost_loses_its_retries_and_no_others() -> None:
    group = group_of(2, 2)
    group.retries.put_retries([RetryRow(QueueId(10), 1, 0, row(5)), RetryRow(QueueId(11), 1, 0, row(6))])
    given = group.take_batches(Fetch(T, 10, LARGE), Visibility(token=1, deadline=30))
    assert sum(len(each.rows) for each in given) == 6
    group.retries.put_retries([RetryRow(QueueId(10), 1, 0, row(7)), RetryRow(QueueId(11), 1, 0, row(8))])
    assert [feed.queue_id for feed in group.remove([QueueId(10), QueueId(99)])] == [10]
    assert [
        (each.queue, [r[0] for r in each.rows])
        for each in group.take_batches(Fetch(T, 10, LARGE), Visibility(token=2, deadline=30))
    ] == [(1, [8])]
    assert group.retries.known() == [(11, 6), (11, 8)]
    expired, _ = group.settle("c", [each.receipt for each in given], [], 0)
    assert {receipt.queue_id for receipt in expired} == {10}
    assert group.retries.expire(31) == [(2, [(11, 8)], Expiry.COUNTED)], "the retry of the other queue is still out"


def test_periodic_steps_visit_busy_feeds_and_no_idle_groups() -> None:
    """This holds after any events of the queues of a group."""
    rng = random.Random(7)
    for _ in range(100):
        group = group_of(0, 0, 0)
        now, given = 0.0, list[MessageBatch]()
        for step in range(60):
            feed = rng.choice(list(group.feeds.values()))
            match rng.randrange(9):
                case 0:
                    start = feed.window.position
                    keys = [rng.choice((None, "a", "b")) for _ in range(rng.randrange(1, 4))]
                    feed.window.put_rows([row(start + n)._replace(ordering_key=key) for n, key in enumerate(keys)])
                case 1:
                    given += group.take_batches(
                        Fetch(T, rng.randrange(1, 5), LARGE), Visibility(token=step, deadline=now + rng.randrange(1, 9))
                    )
                case 2 if given:
                    group.settle("c", [given.pop(rng.randrange(len(given))).receipt], [], now)
                case 3 if given:
                    group.settle("c", [], [Refusal(given.pop(rng.randrange(len(given))).receipt, "boom")], now)
                case 4:
                    feed.window.block(rng.choice("ab"))
                case 5:
                    now += rng.randrange(4)
                    group.expire(now)
                case 6:
                    feed.window.written(feed.window.progress())
                case 7:
                    feed.window.unblock(feed.window.blocked_keys())
                    group.sweep()
                case _:
                    feed.window.stored(feed.window.failing())
            assert {feed for feed in group.feeds.values() if feed.is_busy} <= group.busy
        group.expire(now + 99)
        for feed in group.feeds.values():
            feed.window.stored(feed.window.failing())
            feed.window.written(feed.window.progress())
            feed.window.unblock(feed.window.blocked_keys())
        assert group.sweep(), "it is idle"
        assert not group.busy


async def _waiters(group: Group, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(group.wait(T)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_as_many_members_wake_as_messages_arrive_in_order_of_waiting() -> None:
    group = group_of(0)
    tasks = await _waiters(group, 3)
    group.wake(["other"], 5)
    group.wake(["t"], 2)
    await asyncio.wait(tasks[:2], timeout=60)
    assert [task.done() for task in tasks] == [True, True, False]
    group.wake_all()
    await asyncio.wait_for(tasks[2], 60)
    assert not group.has_waiting


async def test_a_woken_member_that_gives_up_wakes_the_next() -> None:
    group = group_of(0)
    first, second = await _waiters(group, 2)
    group.wake(["t"], 1)
    first.cancel()
    await asyncio.wait({second}, timeout=60)
    assert first.cancelled()
    assert second.done()


async def test_all_members_wake_when_tags_differ() -> None:
    group = group_of(0)
    a, b = {"t": parse_tags("a")}, {"t": parse_tags("b")}
    group.members.join("a", a, 0, 60)
    group.members.join("b", b, 0, 60)
    tasks = [asyncio.create_task(group.wait(wants)) for wants in (a, b)]
    await asyncio.sleep(0)
    group.wake(["t"], 1)
    done, _ = await asyncio.wait(tasks, timeout=60)
    assert len(done) == 2


async def test_dropping_a_group_fails_its_waiting_members() -> None:
    group = group_of(0)
    (task,) = await _waiters(group, 1)
    group.drop(BrokerUnavailable("gone"))
    with pytest.raises(BrokerUnavailable, match="gone"):
        await task
