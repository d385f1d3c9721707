"""Refused and expired messages on a real PostgreSQL: retries and dead letters."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.integration.delivery_harness import (
    AT_ONCE,
    NEVER_S,
    Delivered,
    delivering,
    each_of,
    notify_at,
    poll,
    receipts,
    receive,
    receive_only,
)
from tests.waiting import until_async
from txmsg.administration.dead_letters import DeadLetterBatch, DeadLetterFilter
from txmsg.administration.groups import RetrySkip
from txmsg.administration.halves import GroupLag
from txmsg.broker.delivery.offsets import Expiry
from txmsg.broker.delivery.values import Refusal
from txmsg.broker.store.connect import open_pool
from txmsg.broker.store.dead_letters import DeadLetters
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.retry_administration import RetryAdministration
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.message import QueueId
from txmsg.runtime.backoff import Backoff


async def test_a_refused_message_is_redelivered_and_removed_when_acknowledged(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, retry_poll_s=0.02) as delivery:
        await notify.add(3)
        first = await receive(delivery, 3)
        assert await delivery.settle("g", "c", receipts(first[1:]), [Refusal(first[0].receipt, "boom\0\n", 0.0)]) == []
        ((attempt, error, key, body),) = notify.query("select attempt, last_error, key, body from txmsg.retry")
        assert (attempt, error, key, bytes(body)) == (1, "boom\\0\n", "k0", b"body")
        await delivery.writer.flush_once()
        assert notify.query("select next_offset from txmsg.cursor") == [(3,)]
        (again,) = await receive(delivery, 1)
        assert (again.offset, again.attempt, again.transaction_id) == (0, 2, first[0].transaction_id)
        assert (again.born_at_us, again.stored_at_us) == (first[0].born_at_us, first[0].stored_at_us)
        assert await delivery.settle("g", "c", receipts(first[:1]), []) == receipts(first[:1])
        assert await delivery.settle("g", "c", [again.receipt], []) == []
        assert notify.query("select * from txmsg.retry") == []
        assert await receive(delivery, 1, wait_s=0.2) == []


async def test_an_exact_visibility_timeout_can_be_shortened_and_has_no_backoff(notify_url: str) -> None:
    now = 1000.0
    settings: dict[str, Any] = {"expire_s": 0.02, "retry_poll_s": 0.02, "lease_ttl_s": 1e9}
    async with (
        notify_at(notify_url) as notify,
        delivering(notify, monotonic=lambda: now, backoff=Backoff(delays_s=(NEVER_S,)), **settings) as delivery,
    ):
        await notify.add(1)
        (first,) = await receive(delivery, 1, visibility_timeout_s=NEVER_S)
        assert await delivery.renew("g", "c", [first.receipt], 5, is_exact=True) == []
        now += 5
        (second,) = await receive(delivery, 1, visibility_timeout_s=5, expiry=Expiry.EXACT)
        now += 5
        (third,) = await receive(delivery, 1, visibility_timeout_s=NEVER_S)
        assert [first.attempt, second.attempt, third.attempt] == [1, 2, 3]
        gone = [first.receipt, second.receipt]
        assert await delivery.renew("g", "c", gone, 0, is_exact=True) == gone
        assert await delivery.settle("g", "c", [third.receipt], []) == []


async def test_a_message_not_acknowledged_in_time_is_redelivered(notify_url: str) -> None:
    now = 1000.0
    settings: dict[str, Any] = {"expire_s": 0.02, "retry_poll_s": 0.02, "backoff": AT_ONCE, "lease_ttl_s": 1e9}
    async with (
        notify_at(notify_url) as notify,
        delivering(notify, monotonic=lambda: now, **settings) as delivery,
    ):
        await notify.add(2)
        kept, late = await receive(delivery, 2, visibility_timeout_s=60)
        assert await delivery.settle("g", "c", [kept.receipt], []) == []
        now += 61
        (again,) = await receive(delivery, 1)
        assert (again.offset, again.attempt) == (late.offset, 2)
        refused = Refusal(late.receipt, "boom", None)
        assert await delivery.settle("g", "c", [], [refused]) == [late.receipt], "only a late acknowledgement counts"
        ((error,),) = notify.query("select last_error from txmsg.retry")
        assert "visibility timeout" in error


async def test_the_default_backoff_delays_the_first_retry_by_a_second(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await notify.add(1)
        for attempt, delay_s in ((1, 1), (2, 5)):
            (message,) = await receive(delivery, 1)
            ((before,),) = notify.query("select clock_timestamp()")
            await delivery.settle("g", "c", [], [Refusal(message.receipt, "boom", None)])
            ((failed, is_due_then),) = notify.query(
                "select attempt, due_at - make_interval(secs => %s) between %s and clock_timestamp() from txmsg.retry",
                *(delay_s, before),
            )
            assert (failed, is_due_then) == (attempt, True)


@pytest.mark.parametrize("retries_max", [0, 1, 3])
async def test_a_message_that_always_fails_becomes_a_dead_letter(notify_url: str, retries_max: int) -> None:
    backoff = Backoff(delays_s=(0.0,), retries_max=retries_max)
    async with (
        notify_at(notify_url) as notify,
        delivering(notify, retry_poll_s=0.02, backoff=backoff) as delivery,
    ):
        await notify.add(1)
        for attempt in range(1, retries_max + 2):
            (message,) = await receive(delivery, 1)
            assert message.attempt == attempt
            await delivery.settle("g", "c", [], [Refusal(message.receipt, f"boom {attempt}", None)])
        assert await receive(delivery, 1, wait_s=0.2) == []
        assert notify.query("select attempts, last_error, key from txmsg.dead_letter") == [
            (retries_max + 1, f"boom {retries_max + 1}", "k0")
        ]
        assert notify.query("select * from txmsg.retry") == []
        assert await notify.lag(delivery) == [GroupLag(group="g", topic="t", waiting=0, retrying=0, dead=1)]


async def test_a_refused_message_is_redelivered_once_after_a_crash_before_the_cursor_write(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await notify.add(2)
        async with delivering(notify, graceful=False, flush_s=NEVER_S) as delivery:
            got = await receive(delivery, 2)
            await delivery.settle("g", "c", [], [Refusal(got[0].receipt, "boom", 0.0)])
        assert notify.query("select next_offset from txmsg.cursor") == [(0,)]
        notify.bury("b1")
        async with delivering(notify, retry_poll_s=0.02) as delivery:
            again = await receive_only(delivery, 2)
            assert sorted((m.offset, m.attempt) for m in again) == [(0, 2), (1, 1)]


async def test_a_completed_retry_is_not_redelivered_after_a_crash_before_the_cursor_write(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await notify.add(2)
        async with delivering(notify, graceful=False, flush_s=NEVER_S) as delivery:
            first, second = await receive(delivery, 2)
            await delivery.settle("g", "c", [], [Refusal(second.receipt, "boom", 0.0)])
            await delivery.settle("g", "c", [], [Refusal(first.receipt, "boom", 0.0)])
        assert notify.query("select next_offset from txmsg.cursor") == [(0,)]
        notify.bury("b1")
        async with delivering(notify, retry_poll_s=0.02) as delivery:
            await delivery.settle("g", "c", receipts(await receive(delivery, 2)), [])
            assert await notify.lag(delivery) == [GroupLag(group="g", topic="t", waiting=0, retrying=0, dead=0)]
        async with delivering(notify) as delivery:
            assert await receive(delivery, 1, wait_s=0.2) == []


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_purged_dead_letter_is_not_redelivered_after_a_crash_before_the_cursor_write(
    notify_url: str, is_loaded: bool
) -> None:
    async with notify_at(notify_url) as notify, open_pool(notify_url) as pool:
        await notify.add(3)
        async with delivering(notify, graceful=False, flush_s=NEVER_S, backoff=Backoff(retries_max=0)) as delivery:
            first, second, _ = await receive(delivery, 3)
            await delivery.settle("g", "c", [], [Refusal(each.receipt, "boom") for each in (first, second)])
        notify.bury("b1")
        if is_loaded:
            async with delivering(notify) as delivery:
                assert [message.offset for message in await receive_only(delivery, 1)] == [2]
        assert (await DeadLetters(pool).purge(DeadLetterBatch(which=DeadLetterFilter()))).count == 2
        async with delivering(notify) as delivery:
            assert [message.offset for message in await receive_only(delivery, 1)] == [2]


async def test_a_skipped_retry_is_not_redelivered_after_a_crash_before_the_cursor_write(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, open_pool(notify_url) as pool:
        await notify.add(2)
        async with delivering(notify, graceful=False, flush_s=NEVER_S) as delivery:
            _, second = await receive(delivery, 2)
            await delivery.settle("g", "c", [], [Refusal(second.receipt, "boom", NEVER_S)])
        notify.bury("b1")
        skip = RetrySkip(group="g", id=str(UUID(bytes=second.transaction_id)))
        assert (await RetryAdministration(pool).skip(skip)).skipped == 1
        async with delivering(notify) as delivery:
            assert [message.offset for message in await receive_only(delivery, 1)] == [0]


async def test_a_retry_in_flight_at_a_crash_is_redelivered(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await notify.add(1)
        async with delivering(notify, graceful=False, retry_poll_s=0.02) as delivery:
            (message,) = await receive(delivery, 1)
            await delivery.settle("g", "c", [], [Refusal(message.receipt, "boom", 0.0)])
            (message,) = await receive(delivery, 1)
            assert message.attempt == 2
        notify.bury("b1")
        async with delivering(notify, retry_poll_s=0.02) as delivery:
            (message,) = await receive(delivery, 1)
            assert message.attempt == 2


async def test_an_interrupted_refusal_is_completed_in_the_background(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, expire_s=0.02) as delivery:
        await notify.add(1)
        (message,) = await receive(delivery, 1)
        settling = asyncio.create_task(delivery.settle("g", "c", [], [Refusal(message.receipt, "boom", 60.0)]))
        await asyncio.sleep(0)
        settling.cancel()
        await asyncio.wait({settling})
        await until_async(lambda: bool(notify.query("select * from txmsg.retry")))
        await until_async(
            lambda: not delivery._state.groups["g"].feeds[QueueId(message.receipt.queue_id)].window.failing()
        )


async def test_retries_of_an_unsubscribed_topic_do_not_block_those_of_another(notify_url: str) -> None:
    now = 1000.0
    settings: dict[str, Any] = {"backoff": AT_ONCE, "retry_count_max": 2, "lease_ttl_s": 1e9, "background": False}
    async with (
        notify_at(notify_url) as notify,
        delivering(notify, monotonic=lambda: now, **settings) as delivery,
    ):

        async def ask(client: str, topic: str) -> list[Delivered]:
            return each_of(await delivery.receive(poll("g", client, [(topic, "*")], 10, 0, 60)))

        for client, topic in (("left", "t"), ("stays", "u")):
            await ask(client, topic)
            delivery.wake(await notify.add(3, topic=topic))
            while len(delivery._state.to_read):
                await delivery.reader.read_once(delivery._state.to_read.pop())
            refusals = [Refusal(each.receipt, "boom", None) for each in await ask(client, topic)]
            assert await delivery.settle("g", client, [], refusals) == []
            await delivery.maintenance.retries_once()
        assert len(await ask("stays", "u")) == 0, "there is room for two, of the topic that came first"
        now += 61
        await ask("stays", "u")
        for _ in range(2):
            await delivery.maintenance.retries_once()
        got = await ask("stays", "u")
        assert [(message.topic, message.attempt) for message in got] == [("u", 2), ("u", 2)]
        await ask("left", "t")
        assert await delivery.settle("g", "stays", receipts(got), []) == []
        await delivery.maintenance.retries_once()
        assert {each.topic for each in await ask("left", "t")} == {"t"}, "what was put back is in its table"


async def test_failures_of_a_deleted_topic_or_group_are_dropped_and_delay_no_other_group(
    notify_url: str,
) -> None:
    settings: dict[str, Any] = {"retry_poll_s": 0.02, "backoff": AT_ONCE, "settings_s": NEVER_S}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        for topic in ("gone", "t"):
            await notify.add(1, topic=topic)
        for group, topic in (("deleted", "t"), ("reads-gone", "gone"), ("other", "t")):
            assert await receive(delivery, 1, group=group, topics=[(topic, "*")], visibility_timeout_s=2)
        notify.query("update txmsg.topic set permission = 0, write_changed_at = '2020-01-01' where name = 'gone'")
        await TopicAdministration(notify.topics._pool).delete("gone", force=True)
        await GroupAdministration(notify.topics._pool).delete("deleted", force=True)
        (again,) = await receive(delivery, 1, group="other")
        assert again.attempt == 2
        await until_async(lambda: not delivery._state.groups["reads-gone"].feeds)


async def test_deleting_a_topic_waits_for_a_broker_that_writes_its_failures(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, background=False) as delivery:
        await notify.add(1)
        await receive(delivery, 1, wait_s=0)
        (queue_id,) = await notify.queue_ids()
        notify.query("update txmsg.topic set permission = 0, write_changed_at = '2020-01-01'")
        async with await psycopg.AsyncConnection.connect(notify_url) as writer:
            await writer.execute("select from txmsg.queue_lease where queue_id = %s for share", [queue_id])
            deleting = asyncio.create_task(TopicAdministration(notify.topics._pool).delete("t", force=True))
            waits = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            await until_async(lambda: notify.query(waits) or deleting.done())
            # A foreign key takes this lock when a retry is written.
            await writer.execute("select from txmsg.queue where id = %s for key share", [queue_id])
        await deleting
        assert notify.query("select queue_id from txmsg.queue_lease") == []


async def test_failures_of_several_segments_become_retries(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        await notify.add(2)
        notify.rotate()
        await notify.add(2)
        got = await receive(delivery, 4)
        await delivery.settle("g", "c", [], [Refusal(m.receipt, f"boom {m.offset}", 60.0) for m in got])
        assert notify.query("select queue_offset, last_error from txmsg.retry order by 1") == [
            (offset, f"boom {offset}") for offset in range(4)
        ]
