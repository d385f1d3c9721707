"""Ordering keys on a real PostgreSQL: one at a time, in order, across failures, restarts and dead letters."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from tests.integration.delivery_harness import (
    AT_ONCE,
    NEVER_S,
    Delivered,
    Notify,
    T,
    delivering,
    each_of,
    eventually,
    notify_at,
    offsets,
    poll,
    receipts,
    receive,
    receive_only,
)
from tests.waiting import until_async
from txmsg.administration.dead_letters import DeadLetterBatch, DeadLetterFilter
from txmsg.administration.groups import Seek
from txmsg.broker.delivery import Delivery
from txmsg.broker.delivery.values import PollSequenceStep, Refusal
from txmsg.broker.store.connect import open_pool, session
from txmsg.broker.store.dead_letters import DeadLetters
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.retries import due_retries
from txmsg.errors import BrokerUnavailable
from txmsg.runtime.backoff import Backoff
from txmsg.wire.start import Start

QUICK: dict[str, Any] = {"retry_poll_s": 0.02, "backoff": AT_ONCE}
DEAD_AT_ONCE: dict[str, Any] = {"retry_poll_s": 0.02, "settings_s": 0.05, "backoff": Backoff(retries_max=0)}


async def add_keyed(notify: Notify, *keys: str | None) -> dict[int, int]:
    """Store one message per ordering key at the end of the only queue and return the ends for `wake`."""
    ends: dict[int, int] = {}
    for key in keys:
        ends = await notify.add(1)
        notify.query(
            "update txmsg.message set ordering_key = %s where queue_offset = %s", key, next(iter(ends.values())) - 1
        )
    return ends


async def settle(delivery: Delivery, *messages: Delivered) -> None:
    assert await delivery.settle("g", "c", receipts(messages), []) == []


async def fail(delivery: Delivery, message: Delivered) -> None:
    assert await delivery.settle("g", "c", [], [Refusal(message.receipt, "boom", None)]) == []


def _of_group(limit: int) -> DeadLetterBatch:
    return DeadLetterBatch(which=DeadLetterFilter(group="g"), limit=limit)


def retry_rows(notify: Notify) -> list[tuple[Any, ...]]:
    return notify.query("select queue_offset, attempt, due_at = 'infinity' from txmsg.retry order by 1")


async def test_messages_of_a_key_are_delivered_one_after_the_other(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await add_keyed(notify, "a", "a", "b", None, "a")
        first = await receive_only(delivery, 3)
        assert offsets(first) == [0, 2, 3]
        await settle(delivery, *first[1:])
        assert await receive(delivery, 5, wait_s=0.2) == []
        await settle(delivery, first[0])
        (second,) = await receive_only(delivery, 1)
        await settle(delivery, second)
        assert [second.offset, *offsets(await receive_only(delivery, 1))] == [1, 4]


async def test_a_receive_returns_a_run_of_a_key_that_blocks_the_key_until_settled(
    notify_url: str,
) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, **QUICK) as delivery:
        await add_keyed(notify, "a", "a", "b", "a", "a")
        run = await receive(delivery, 4, in_runs=True)
        assert offsets(run) == [0, 1, 2, 3]
        await settle(delivery, *run[1:])
        assert await receive(delivery, 1, wait_s=0.2, client="d", in_runs=True) == []
        await fail(delivery, run[0])
        assert retry_rows(notify) == [(0, 1, False), (4, 0, True)], "what is acknowledged does not come again"
        (again,) = await receive_only(delivery, 1, in_runs=True)
        assert (again.offset, again.attempt) == (0, 2)
        await settle(delivery, again)
        assert offsets(await receive(delivery, 1)) == [4]


async def test_a_partly_failed_run_stays_in_order_across_a_crash(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await add_keyed(notify, "a", "a", "a", "a")
        async with delivering(notify, graceful=False) as delivery:
            run = await receive(delivery, 3, in_runs=True)
            await fail(delivery, run[2])
            assert retry_rows(notify) == [], "a broker that starts with it would deliver it first"
            await fail(delivery, run[0])
            assert retry_rows(notify) == [(0, 1, False)]
        notify.bury("b1")
        notify.query("update txmsg.cursor set held_until = now()")  # as when that time has passed
        async with delivering(notify, **QUICK) as delivery:
            got: list[tuple[int, int]] = []
            while len(got) < 4:
                (message,) = await receive(delivery, 1, in_runs=True)
                got.append((message.offset, message.attempt))
                await settle(delivery, message)
            assert got == [(0, 2), (1, 1), (2, 1), (3, 1)]


async def test_a_queue_opens_when_all_members_report_that_they_hold_none_of_its_messages(
    notify_url: str,
) -> None:
    async with notify_at(notify_url) as notify:
        await add_keyed(notify, "a", "a", "b")
        async with delivering(notify, graceful=False) as delivery:
            (first,) = await receive(delivery, 1, client="c")
            await receive(delivery, 1, client="d")
            await settle(delivery, first)
            await delivery.flush()
        assert notify.query("select held_by from txmsg.cursor") == [(["c", "d"],)]
        notify.bury("b1")
        async with delivering(notify, "b2") as delivery:
            await until_async(lambda: bool(delivery._state.leases.epochs()))
            polling = asyncio.create_task(receive(delivery, 1, client="e", wait_s=300.0))
            await until_async(lambda: "g" in delivery._state.groups)
            assert delivery.awaited("g", "e") == []
            ((queue_id, epoch),) = delivery.awaited("g", "c")
            delivery.free("g", "c", [(queue_id, epoch - 1)])
            assert delivery.awaited("g", "c") == [(queue_id, epoch)], "that is not about what the broker before gave"
            delivery.free("g", "c", [(queue_id, epoch)])
            assert delivery.awaited("g", "c") == []
            assert not polling.done(), "the other one may hold a message"
            delivery.free("g", "d", [(queue_id, epoch)])
            assert offsets(await polling) == [1]


async def test_a_waiting_poll_ends_to_ask_for_messages_held_of_a_dead_broker(notify_url: str) -> None:
    """While the member holds messages its polls also end soon, since a reply that asks may be lost."""
    async with notify_at(notify_url) as notify, AsyncExitStack() as stack:
        await add_keyed(notify, "a", "a")
        async with delivering(notify, graceful=False) as dead:
            await until_async(lambda: bool(dead._state.leases.epochs()))
            heir = await stack.enter_async_context(delivering(notify, "b2"))
            line = PollSequenceStep(7, 0)
            polling = asyncio.create_task(heir.receive(poll("g", "c", T, 1, NEVER_S, NEVER_S, line=line)))
            await until_async(lambda: bool(heir._parked))
            (message,) = await receive(dead, 1, visibility_timeout_s=NEVER_S)
        notify.bury("b1")
        assert await polling == []
        ((queue_id, epoch),) = heir.awaited("g", "c")
        assert await heir.receive(poll("g", "c", T, 1, NEVER_S, NEVER_S)) == []
        heir.free("g", "c", [(queue_id, epoch)])
        assert offsets(await receive(heir, 1)) == [message.offset]


async def test_concurrent_holders_of_messages_are_all_recorded(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        clients = [f"c{number}" for number in range(8)]
        await add_keyed(notify, *clients)
        await asyncio.gather(*(receive(delivery, 1, client=client) for client in clients))
        assert notify.query("select held_by from txmsg.cursor") == [(clients,)]


async def test_a_failure_in_a_run_is_retried_when_the_rest_is_settled(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, **QUICK) as delivery:
        await add_keyed(notify, "a", "a", "a", "a")
        first, second, third = await receive(delivery, 3, in_runs=True)
        await fail(delivery, second)
        await settle(delivery, first)
        assert retry_rows(notify) == [(1, 1, False)]
        assert await receive(delivery, 1, wait_s=0.2, client="d") == []
        await settle(delivery, third)
        done: list[tuple[int, int]] = []
        while len(done) < 2:
            (message,) = await receive(delivery, 1, client="d")
            done.append((message.offset, message.attempt))
            await settle(delivery, message)
        assert done == [(1, 2), (3, 1)]


async def test_an_acknowledgement_wakes_the_member_waiting_for_the_next_of_the_key(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await add_keyed(notify, "a", "a")
        (first,) = await receive(delivery, 1)
        waiting = asyncio.create_task(receive(delivery, 1, wait_s=30))
        await until_async(lambda: delivery._state.groups["g"].has_waiting)
        await settle(delivery, first)
        assert offsets(await asyncio.wait_for(waiting, 60)) == [1]


async def test_a_reply_contains_a_retry_and_a_new_message_of_an_ordered_queue(notify_url: str) -> None:
    async with (
        notify_at(notify_url) as notify,
        delivering(notify, background=False, monotonic=(clock := Clock())) as delivery,
    ):
        await add_keyed(notify, "a")
        await receive(delivery, 1, wait_s=0)
        (feed,) = delivery._state.groups["g"].feeds.values()
        await delivery.reader.read_once(feed)
        (first,) = await receive(delivery, 1, wait_s=0)
        assert await delivery.settle("g", "c", [], [Refusal(first.receipt, "boom", 0.0)]) == []
        delivery.wake(await add_keyed(notify, "b"))
        await delivery.reader.read_once(feed)
        await delivery.maintenance.retries_once()
        clock.now += 60  # by now the stored time is too early
        got = each_of(await delivery.receive(poll("g", "c", T, 10, 0, 60)))
        assert [(message.offset, message.attempt) for message in got] == [(0, 2), (1, 1)]


async def test_a_queue_with_a_stale_epoch_is_reread_and_delays_no_other(
    notify_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with notify_at(notify_url, queues=2) as notify, delivering(notify, background=False) as delivery:
        await notify.add(1)
        notify.query("update txmsg.message set ordering_key = queue::text")
        await receive(delivery, 1, wait_s=0)
        refused, other = delivery._state.groups["g"].feeds.values()
        for feed in (refused, other):
            await delivery.reader.read_once(feed)
        notify.query("update txmsg.cursor set epoch = epoch + 1 where queue_id = %s", refused.queue_id)
        with pytest.raises(BrokerUnavailable, match="leases"):
            await delivery.receive(poll("g", "c", T, 9, 0, 60))
        assert f"queue {refused.number} is no longer" in caplog.text
        await delivery.reader.read_once(other)
        (message,) = await receive(delivery, 9, wait_s=0)
        assert (message.queue, message.attempt) == (other.number, 1)
        notify.query("update txmsg.cursor set epoch = %s where queue_id = %s", refused.epoch, refused.queue_id)
        await delivery.maintenance.queues_once()
        again = delivery._state.groups["g"].feeds[refused.queue_id]
        assert again is not refused
        again.opens_at = None  # no consumer holds its messages
        await delivery.reader.read_once(again)
        (message,) = await receive(delivery, 9, wait_s=0)
        assert (message.queue, message.attempt) == (refused.number, 1)


async def test_a_failing_message_blocks_only_its_own_key(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, **QUICK) as delivery:
        await add_keyed(notify, "a", "a", "b", "a")
        head, other = await receive(delivery, 2)
        await fail(delivery, head)
        assert [row[:2] for row in retry_rows(notify)] == [(0, 1), (1, 0), (3, 0)]
        delivery.wake(await add_keyed(notify, "a", "b"))
        await settle(delivery, other)
        done: list[tuple[int, int]] = []
        while len(done) < 5:
            for message in await receive(delivery, 1):
                done.append((message.offset, message.attempt))
                await settle(delivery, message)
        assert [each for each in done if each[0] != 5] == [(0, 2), (1, 1), (3, 1), (4, 1)]
        assert (5, 1) in done
        delivery.wake(await add_keyed(notify, "a"))
        (message,) = await receive(delivery, 1)
        assert (message.offset, message.attempt, retry_rows(notify)) == (6, 1, []), "the key has left the table"


async def test_later_messages_of_a_failing_key_wait_for_earlier_ones(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, retry_poll_s=0.02) as delivery:
        await add_keyed(notify, "a", "a", "a")
        (head,) = await receive(delivery, 1)
        assert await delivery.settle("g", "c", [], [Refusal(head.receipt, "boom", 0.0)]) == []
        assert retry_rows(notify)[1:] == [(1, 0, True), (2, 0, True)]
        (again,) = await receive_only(delivery, 1)
        await settle(delivery, again)
        await delivery.flush()
        assert [row[2] for row in retry_rows(notify)] == [False, True]


async def test_messages_behind_a_failure_need_no_poll_each(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, background=False) as delivery:
        await add_keyed(notify, *"aaaaa")
        await receive(delivery, 1, wait_s=0)
        (feed,) = delivery._state.groups["g"].feeds.values()
        await delivery.reader.read_once(feed)
        (head,) = await receive(delivery, 1, wait_s=0)
        assert await delivery.settle("g", "c", [], [Refusal(head.receipt, "boom", 0.0)]) == []
        await delivery.maintenance.retries_once()
        got: list[tuple[int, int]] = []
        for _ in range(5):
            (message,) = await receive(delivery, 9, wait_s=0)
            await settle(delivery, message)
            got.append((message.offset, message.attempt))
        assert got == [(0, 2), (1, 1), (2, 1), (3, 1), (4, 1)]
        assert retry_rows(notify) == []
        assert feed.window.blocked_keys() == [], "the key has left the table"


async def test_acknowledged_retries_lost_in_a_crash_are_redelivered_in_order(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await add_keyed(notify, *"aaaa")
        async with delivering(notify, retry_poll_s=0.02, expire_s=NEVER_S, graceful=False) as delivery:
            (head,) = await receive(delivery, 1)
            assert await delivery.settle("g", "c", [], [Refusal(head.receipt, "boom", 0.0)]) == []
            for _ in range(2):
                await settle(delivery, *await receive(delivery, 1))
            assert [row[0] for row in retry_rows(notify)] == [0, 1, 2, 3], "they are written with those that follow"
            assert offsets(await receive(delivery, 1)) == [2]
        notify.bury("b1")
        notify.query("update txmsg.cursor set held_until = now()")  # as when that time has passed
        async with delivering(notify, **QUICK) as delivery:
            got: list[int] = []
            while len(got) < 4:
                (message,) = await receive(delivery, 1)
                got.append(message.offset)
                await settle(delivery, message)
            assert got == [0, 1, 2, 3]
            assert retry_rows(notify) == [], "the last one is written at once"


async def test_unblocked_retries_are_read_at_once(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, background=False, retry_count_max=1) as delivery:
        await add_keyed(notify, "a", "a")
        await receive(delivery, 1, wait_s=0)
        (feed,) = delivery._state.groups["g"].feeds.values()
        await delivery.reader.read_once(feed)
        (head,) = await receive(delivery, 1, wait_s=0)
        assert await delivery.settle("g", "c", [], [Refusal(head.receipt, "boom", 0.0)]) == []
        await delivery.maintenance.retries_once()
        (again,) = await receive(delivery, 1, wait_s=0)
        assert not delivery._state.retries_due.is_set()
        await settle(delivery, again)
        assert delivery._state.retries_due.is_set()


async def test_no_message_waits_in_memory_behind_a_scheduled_or_blocked_retry(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await add_keyed(notify, *"aaaabbbb")
        async with delivering(notify, **QUICK, graceful=False) as delivery:
            first, second = await receive(delivery, 2)
            for head in (first, second):
                assert await delivery.settle("g", "c", [], [Refusal(head.receipt, "boom", NEVER_S)]) == []
        notify.query("update txmsg.retry set due_at = now() where attempt = 1")
        notify.query("update txmsg.retry set due_at = now() + interval '1 h' where queue_offset = 2")
        notify.query(
            """
            with dead as (delete from txmsg.retry where queue_offset = 6 returning *)
            insert into txmsg.dead_letter
                (group_id, queue_id, queue_offset, transaction_id, n, body, born_at, stored_at, ordering_key, attempts,
                 blocks_key)
            select group_id, queue_id, queue_offset, transaction_id, n, body, born_at, stored_at, ordering_key, 1, true
              from dead
            """
        )
        ((group, queue_id),) = notify.query("select distinct group_id, queue_id from txmsg.retry")
        async with open_pool(notify_url) as pool, session(pool) as conn:
            rows = await due_retries(
                conn, group, [queue_id], [], count=9, size_bytes=99, behind_count=9, behind_size_bytes=99
            )
            assert [row.message.offset for row in rows] == [0, 4, 1]
            rows = await due_retries(
                conn, group, [queue_id], [], count=9, size_bytes=99, behind_count=9, behind_size_bytes=0
            )
            assert [row.message.offset for row in rows] == [0, 4]


async def test_a_failed_key_stays_in_order_across_a_crash(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await add_keyed(notify, "a", "a", "b")
        async with delivering(notify, graceful=False) as delivery:
            (head, _) = await receive(delivery, 2)
            assert await delivery.settle("g", "c", [], [Refusal(head.receipt, "boom", 0.0)]) == []
        await add_keyed(notify, "a")
        notify.bury("b1")
        notify.query("update txmsg.cursor set held_until = now()")  # as when that time has passed
        async with delivering(notify, **QUICK) as delivery:
            got: list[int] = []
            while len(got) < 4:
                (message,) = await receive(delivery, 1)
                got.append(message.offset)
                await settle(delivery, message)
            assert [offset for offset in got if offset != 2] == [0, 1, 3]


async def test_a_key_continues_after_a_dead_letter(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, **DEAD_AT_ONCE) as delivery:
        await add_keyed(notify, "a", "a")
        (head,) = await receive(delivery, 1)
        await fail(delivery, head)
        assert notify.query("select queue_offset, blocks_key from txmsg.dead_letter") == [(0, False)]
        assert offsets(await receive(delivery, 1)) == [1]


async def test_a_parked_key_waits_for_an_operator_across_a_restart(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await add_keyed(notify, "a", "a", "b")
        async with delivering(notify, **DEAD_AT_ONCE) as delivery:
            await receive(delivery, 1, wait_s=0, topics=[("other", "*")])
            notify.query("update txmsg.consumer_group set poisoned_key = 'park', version = version + 1")
            await until_async(lambda: delivery._state.groups["g"].settings.parks_keys)
            head, other = await receive_only(delivery, 2, in_runs=True)  # nothing behind a dead letter is in flight
            await fail(delivery, head)
            await settle(delivery, other)
            assert notify.query("select queue_offset, blocks_key, ordering_key from txmsg.dead_letter") == [
                (0, True, "a")
            ]
            assert await receive(delivery, 1, wait_s=0.3) == []
        await add_keyed(notify, "a")
        async with delivering(notify, **DEAD_AT_ONCE) as delivery:
            assert await receive(delivery, 1, wait_s=0.5) == []
            assert retry_rows(notify) == [(1, 0, True), (3, 0, True)]
            notify.query("delete from txmsg.dead_letter")
            for offset in (1, 3):
                (message,) = await receive(delivery, 1)
                assert message.offset == offset
                await settle(delivery, message)
            delivery.wake(await add_keyed(notify, "a"))
            assert offsets(await receive(delivery, 1)) == [4]


async def test_a_redriven_dead_letter_waits_for_a_message_of_its_key_in_flight(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, **DEAD_AT_ONCE) as delivery:
        await add_keyed(notify, "a", "a", "a")
        (head,) = await receive(delivery, 1)
        await fail(delivery, head)
        (second,) = await receive(delivery, 1)
        assert second.offset == 1
        notify.query(
            "with gone as (delete from txmsg.dead_letter returning *) "
            "insert into txmsg.retry (group_id, queue_id, queue_offset, attempt, due_at, transaction_id, n, body, "
            "born_at, stored_at, ordering_key, failures, generation) "
            "select group_id, queue_id, queue_offset, 0, now(), transaction_id, n, body, born_at, stored_at, "
            "ordering_key, failures, generation + 1 from gone"
        )
        assert await receive(delivery, 2, wait_s=0.3) == []
        await settle(delivery, second)
        (redriven,) = await receive(delivery, 1)
        assert (redriven.offset, redriven.attempt, redriven.generation) == (0, 1, 1)
        assert await receive(delivery, 2, wait_s=0.3) == []
        await settle(delivery, redriven)
        assert offsets(await receive(delivery, 1)) == [2]


async def test_a_message_redriven_while_the_last_retry_of_its_key_completes_is_delivered_at_once(
    notify_url: str,
) -> None:
    async with (
        notify_at(notify_url) as notify,
        delivering(notify, retry_poll_s=0.02, backoff=Backoff(retries_max=0)) as delivery,
        await psycopg.AsyncConnection.connect(notify_url) as broker,
    ):
        dead_letters = DeadLetters(notify.topics._pool)
        await add_keyed(notify, "a", "a")
        for _ in range(2):
            (head,) = await receive(delivery, 1)
            await fail(delivery, head)
        assert (await dead_letters.redrive(_of_group(1))).count == 1
        assert retry_rows(notify) == [(0, 0, False)]
        # As a broker that writes its acknowledgement and sees no other row of the key.
        await broker.execute("delete from txmsg.retry")
        redriving = asyncio.create_task(dead_letters.redrive(_of_group(1)))
        waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'txmsg.retry'"
        await until_async(lambda: redriving.done() or bool(notify.query(waits)))
        await broker.commit()
        assert (await redriving).count == 1
        assert retry_rows(notify) == [(1, 0, False)]


async def test_a_dead_letter_with_a_pending_retry_can_be_redriven(notify_url: str) -> None:
    async with (
        notify_at(notify_url) as notify,
        delivering(notify, retry_poll_s=NEVER_S, backoff=Backoff(retries_max=0)) as delivery,
    ):
        dead_letters = DeadLetters(notify.topics._pool)
        await notify.add(2)
        for message in await receive(delivery, 2):
            await fail(delivery, message)
        notify.query(
            "insert into txmsg.retry (group_id, queue_id, queue_offset, attempt, due_at, transaction_id, n, body, "
            "born_at, stored_at) select group_id, queue_id, queue_offset, 1, now(), transaction_id, n, body, "
            "born_at, stored_at from txmsg.dead_letter where queue_offset = 0"
        )
        assert (await dead_letters.redrive(_of_group(10))).count == 2
        assert notify.query("select queue_offset, generation from txmsg.retry order by 1") == [(0, 1), (1, 1)]
        assert (await dead_letters.redrive(_of_group(10))).count == 0


async def test_a_dead_letter_keeps_the_error_of_every_attempt(notify_url: str) -> None:
    settings: dict[str, Any] = {"retry_poll_s": 0.02, "backoff": Backoff(delays_s=(0.0,), retries_max=2)}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await add_keyed(notify, "a", "a")
        for attempt in (1, 2, 3):
            (message,) = await receive(delivery, 1)
            refusal = Refusal(message.receipt, f"boom {attempt} " + 400 * "x", None)
            assert await delivery.settle("g", "c", [], [refusal]) == []
            if attempt < 3:
                ((follower,),) = notify.query("select failures from txmsg.retry where queue_offset = 1")
                assert follower == []
        ((attempts, failures),) = notify.query("select attempts, failures from txmsg.dead_letter")
        assert attempts == 3
        assert [failure["attempt"] for failure in failures] == [1, 2, 3]
        assert [failure["error"][:7] for failure in failures] == ["boom 1 ", "boom 2 ", "boom 3 "]
        assert {len(failure["error"]) for failure in failures} == {300}
        assert all(failure["at"] for failure in failures)


async def test_a_seek_in_an_ordered_queue_applies_when_messages_in_flight_are_settled(
    notify_url: str,
) -> None:
    async with (
        notify_at(notify_url) as notify,
        delivering(notify, settings_s=0.05, hand_over_s=NEVER_S) as delivery,
    ):
        groups = GroupAdministration(notify.topics._pool)
        await add_keyed(notify, "a", "a", "a")
        await settle(delivery, *await receive(delivery, 1))
        (held,) = await receive(delivery, 1)
        (feed,) = delivery._state.groups["g"].feeds.values()
        await groups.seek(Seek(group="g", topic="t", to=Start.earliest()))
        await until_async(lambda: feed.leaving)
        assert await receive(delivery, 1, wait_s=0.3) == []
        await settle(delivery, held)
        (again,) = await receive(delivery, 1)
        assert again.offset == 0
        await settle(delivery, again)


async def test_after_a_crash_an_ordered_queue_waits_until_its_messages_cannot_be_held(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await add_keyed(notify, "a", "a")
        async with delivering(notify, "b1", graceful=False) as crashed:
            assert offsets(await receive_only(crashed, 1)) == [0]
            (noted,) = notify.query("select held_until > now() + interval '60 s' from txmsg.cursor")
            assert noted == (True,)
        notify.bury("b1")
        notify.query("update txmsg.cursor set held_until = held_until + interval '1 h'")  # the clock was set back
        clock = Clock()
        async with delivering(notify, "b2", monotonic=clock, lease_ttl_s=1e6, background=False) as delivery:
            assert await receive(delivery, 5, wait_s=0.2) == []
            (feed,) = delivery._state.groups["g"].feeds.values()
            await delivery.reader.read_once(feed)
            assert await receive(delivery, 5, wait_s=0) == [], "the consumer of the dead broker may be at it"
            (noted,) = notify.query("select held_until <= now() + interval '70 s' from txmsg.cursor")
            assert noted == (True,), "a broker that gets the queue later does not wait from the beginning"
            clock.now += 71
            await delivery.maintenance.notes_once()
            assert offsets(await receive(delivery, 5, wait_s=0)) == [0]


async def test_a_broker_that_regains_its_queue_waits_only_for_its_own_deliveries(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        clock = Clock()
        await add_keyed(notify, "a", "a", "a", "a")
        async with delivering(notify, monotonic=clock, lease_ttl_s=1e6, background=False) as delivery:

            async def lost_and_back() -> None:
                delivery.drop("the database was away")
                await delivery._membership.step_once()

            async def opens_in_s() -> float:
                await receive(delivery, 1, wait_s=0)
                (feed,) = delivery._state.groups["g"].feeds.values()
                await delivery.reader.read_once(feed)
                return 0 if feed.opens_at is None else round(feed.opens_at - clock.now, 3)

            assert await opens_in_s() == 0
            await settle(delivery, *await receive(delivery, 1, wait_s=0))
            await delivery.writer.flush_once()
            await lost_and_back()
            assert await opens_in_s() == 0, "nobody has anything of it"
            assert offsets(await receive(delivery, 1, wait_s=0)) == [1]
            clock.now += 5
            await lost_and_back()
            assert await opens_in_s() == 55, "until the visibility timeout of what is out ends, not until the note"
            clock.now += 5
            await lost_and_back()
            assert await opens_in_s() == 50, "what was out before is out still"
            clock.now += 50
            await delivery.maintenance.notes_once()
            assert offsets(await receive(delivery, 1, wait_s=0)) == [1]
            delivery.drop("the database was away")
            notify.query("update txmsg.cursor set epoch = epoch + 1")  # another broker owned it meanwhile
            await delivery._membership.step_once()
            assert 60 < await opens_in_s() <= 70


async def test_a_handed_over_ordered_queue_is_delivered_at_once(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await add_keyed(notify, "a", "a")
        async with delivering(notify, "b1") as delivery:
            await settle(delivery, *await receive(delivery, 1))
        async with delivering(notify, "b2") as delivery:
            assert offsets(await receive(delivery, 1)) == [1]


async def test_after_a_crash_a_queue_without_ordering_keys_is_delivered_at_once(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await add_keyed(notify, None)
        async with delivering(notify, "b1", graceful=False) as crashed:
            await receive(crashed, 1)
        notify.bury("b1")
        async with delivering(notify, "b2") as delivery:
            assert offsets(await receive(delivery, 1)) == [0]


async def test_a_renewal_is_stored_before_the_member_is_answered(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, background=False) as delivery:
        await add_keyed(notify, "a")
        await receive(delivery, 1, wait_s=0)
        (feed,) = delivery._state.groups["g"].feeds.values()
        await delivery.reader.read_once(feed)
        (message,) = await receive(delivery, 1, wait_s=0)
        is_noted = "select held_until > now() + interval '1 h' from txmsg.cursor"
        assert notify.query(is_noted) == [(False,)]
        assert await delivery.renew("g", "c", [message.receipt], 2 * 3600) == []
        assert notify.query(is_noted) == [(True,)]


async def test_the_hold_of_a_message_is_stored_until_it_is_settled(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        clock = Clock()
        await add_keyed(notify, "a")
        async with delivering(notify, monotonic=clock, lease_ttl_s=1e6, background=False) as delivery:
            await receive(delivery, 1, wait_s=0)
            (feed,) = delivery._state.groups["g"].feeds.values()
            await delivery.reader.read_once(feed)
            (first,) = await receive(delivery, 1, wait_s=0)
            notify.query("update txmsg.cursor set held_until = now()")
            clock.now += 30  # it is in flight, renewed or not
            await delivery.maintenance.notes_once()
            assert notify.query("select held_until > now() + interval '60 s' from txmsg.cursor") == [(True,)]
            await settle(delivery, first)
            await delivery.maintenance.notes_once()
            assert notify.query("select held_until is null from txmsg.cursor") == [(False,)]
            clock.now += 6
            await delivery.maintenance.notes_once()
            assert notify.query("select held_until is null from txmsg.cursor") == [(True,)]


class Clock:
    """A clock that stands still until set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_messages_taken_for_a_departed_member_are_delivered_to_the_next_at_once(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, flush_s=NEVER_S, poll_s=0.05) as delivery:
        assert await receive(delivery, 1, wait_s=0) == []
        (feed,) = delivery._state.groups["g"].feeds.values()
        with psycopg.connect(notify_url, connect_timeout=10) as other:
            other.execute("select from txmsg.cursor for update")  # deliveries are stored there before they are sent
            delivery.wake(await add_keyed(notify, "a", "b"))
            gone = asyncio.create_task(delivery.receive(poll("g", "gone", T, 9, 30, 60)))
            await until_async(lambda: feed.window.unsettled_count == 2)
            gone.cancel()
            await asyncio.wait({gone})
        got = await eventually(lambda: receive(delivery, 2))
        assert [(message.offset, message.attempt) for message in got] == [(0, 1), (1, 1)]
