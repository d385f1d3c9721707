"""The Notify database goes back while brokers run: nothing acknowledged afterwards is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from tests.conftest import PostgresServer, StartBroker
from tests.going_back import GoingBack
from tests.integration.batch_harness import Notify, columns_of
from tests.integration.client_harness import collecting, different
from tests.integration.delivery_harness import (
    NEVER_S,
    Delivered,
    delivering,
    eventually,
    notify_at,
    offsets,
    receipts,
    receive,
)
from tests.postgres_proxy import PostgresProxy
from txmsg.broker.delivery import Delivery
from txmsg.broker.journal import JournalBuffer, JournalEvent, JournalWriter
from txmsg.broker.store import connect
from txmsg.broker.store.batch import WriteBatch, apply
from txmsg.broker.store.connect import OTHER_INCARNATION, UNKNOWN_ID
from txmsg.client import Producer
from txmsg.errors import BrokerUnavailable
from txmsg.message import Message, MessageId, ReceivedMessage, TransactionState

BY_ITSELF_NOTHING: dict[str, Any] = {
    **dict.fromkeys(
        ("flush_s", "expire_s", "retry_poll_s", "poll_s", "settings_s", "upkeep_s", "heartbeat_s"), NEVER_S
    ),
    "lease_ttl_s": 3 * NEVER_S,
}
"""A delivery that only reads: it notices changes only by steps of the test."""
TOPICS = ("orders", "quotes")


@pytest.fixture
def proxy(notify_url: str) -> Iterator[PostgresProxy]:
    with PostgresProxy(notify_url) as proxy:
        yield proxy


@pytest.fixture
def past(postgres: PostgresServer, notify_url: str, proxy: PostgresProxy) -> Iterator[GoingBack]:
    past = GoingBack(postgres, notify_url, [proxy])
    yield past
    past.close()


class Commits:
    """A listener that answers COMMIT."""

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


def ids(messages: Sequence[Delivered]) -> set[bytes]:
    return {message.transaction_id for message in messages}


async def settle(delivery: Delivery, messages: Sequence[Delivered]) -> None:
    assert await delivery.settle("g", "c", receipts(messages), []) == []
    await delivery.writer.flush_once()


async def test_messages_at_reused_offsets_are_delivered_after_a_restore(
    proxy: PostgresProxy, past: GoingBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "_FRESH_S", 0.0)  # a cut connection would reveal the restart
    async with notify_at(proxy.url) as notify, delivering(notify, graceful=False, **BY_ITSELF_NOTHING) as delivery:
        await notify.add(10)
        await settle(delivery, await receive(delivery, 10))
        await asyncio.to_thread(past.keep)
        delivery.wake(await notify.add(10))
        await settle(delivery, await receive(delivery, 10))
        await asyncio.to_thread(past.go_back)

        delivery.wake(await notify.add(15))
        rows = notify.query("select transaction_id from txmsg.message where queue_offset >= 10")
        new = {transaction_id.bytes for (transaction_id,) in rows}
        ahead = await receive(delivery, 5)
        assert offsets(ahead) == [20, 21, 22, 23, 24], "the window is of before"
        assert await delivery.settle("g", "c", receipts(ahead), []) == []  # in memory, and refused when written
        await eventually(delivery._membership.step_once)

        after = await receive(delivery, 15)
        assert ids(after) == new
        assert min(each.receipt.epoch for each in after) > max(each.receipt.epoch for each in ahead)
        assert await delivery.settle("g", "c", receipts(ahead), []) == receipts(ahead)
        await settle(delivery, after)
        assert notify.query("select next_offset from txmsg.cursor") == [(25,)]


def test_running_brokers_use_the_restored_queues_and_deliver_all_messages(
    start_broker: StartBroker, notify_url: str, proxy: PostgresProxy, past: GoingBack
) -> None:
    def send(topics: Sequence[str]) -> set[MessageId]:
        """Send messages plainly and in transactions, some of which are left to a check."""
        sent = {producer.send(Message(topic, b"plain")) for topic in topics for _ in range(8)}
        for each in range(8):
            half = producer.half([Message(topic, b"half") for topic in topics])
            if each % 2:
                producer.end(half, TransactionState.COMMIT)
            sent |= {MessageId(f"{half.transaction_id}.{n}") for n in range(len(topics))}
        return sent

    past.keep()
    broker = start_broker("--topic-queues", "2", "--first-check-s", "0.5", storage=proxy.url)
    with (
        Producer(broker.address, group="shop", timeout_s=60, check_listener=Commits()) as producer,
        collecting(broker.address, TOPICS[0]) as orders,
        collecting(broker.address, TOPICS[1]) as quotes,
    ):
        before = send(TOPICS)
        assert different(orders, 16) | different(quotes, 16) == before
        past.go_back()
        after = send(TOPICS[::-1])  # so that queues of one have the ids of the other's former queues
        assert different(orders, 16) | different(quotes, 16) == after
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        lost = "select count(*) from txmsg.message m where not exists (select from txmsg.queue q where q.id = m.queue)"
        assert connection.execute(lost).fetchone() == (0,)


CHANGES = {
    "emptied by a crash or a promotion": "delete from txmsg.incarnation",
    "kept by a cold copy": "update txmsg.incarnation set server_started_at = server_started_at - interval '1 us'",
    "kept by a dump": "update txmsg.incarnation set database = 1",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_an_incarnation_ends_when_its_row_is_gone(db: Notify, change: str) -> None:
    (((first,),), (((same,)),)) = [await db.rows("select txmsg.begin_incarnation()") for _ in range(2)]
    assert first == same
    await db.connection.execute("update txmsg.lease_epoch set epoch = 7")
    await db.connection.execute(CHANGES[change].encode())
    with pytest.raises(psycopg.DatabaseError) as refused:
        await apply(db.connection, WriteBatch(), segment=1, previous=0, first_check_s=6, incarnation=first)
    assert (refused.value.sqlstate, refused.value.diag.message_detail) == (OTHER_INCARNATION, str(first))
    ((second,),) = await db.rows("select txmsg.begin_incarnation()")
    assert second != first
    await apply(db.connection, WriteBatch(), segment=1, previous=0, first_check_s=6, incarnation=second)
    ((epoch, now_ms),) = await db.rows("select epoch, extract(epoch from now()) * 1000 from txmsg.lease_epoch")
    assert 0 <= now_ms - epoch < 120_000


async def test_the_journal_of_an_earlier_incarnation_is_not_written(db: Notify) -> None:
    journal = JournalBuffer()
    async with connect.open_pool(db.url) as pool:
        writing = JournalWriter(pool, journal)
        await db.connection.execute("update txmsg.topic set journal_since = now()")
        await writing.look_once()
        assert journal.queues == frozenset(db.queues)
        journal.note(JournalEvent.DELIVERED, db.queues[0], [1], "mail")
        await writing.write_once()
        journal.note(JournalEvent.DELIVERED, db.queues[0], [2], "mail")
        await db.connection.execute("delete from txmsg.incarnation")
        with pytest.raises(BrokerUnavailable):
            await writing.write_once()
        assert (journal.waiting, journal.lost, journal.queues) == (0, 1, frozenset())
        await writing.look_once()
        journal.note(JournalEvent.DELIVERED, db.queues[0], [3], "mail")
        await writing.write_once()
    rows = await db.rows("select event, first_offset, entries from txmsg.journal order by seq")
    assert rows == [("delivered", 1, None), ("delivered", 3, None), ("lost", None, 1)]


async def test_a_batch_with_an_unknown_queue_or_producer_is_refused(db: Notify) -> None:
    unknown_queue = columns_of([db.queues[0], 4711], producer=db.producer)
    unknown_producer = columns_of([db.queues[0]], producer=4711)
    for batch in (WriteBatch(plain=unknown_queue), WriteBatch(half=unknown_queue), WriteBatch(half=unknown_producer)):
        with pytest.raises(psycopg.DatabaseError) as refused:
            await db.apply(batch)
        assert refused.value.sqlstate == UNKNOWN_ID
    assert await db.rows("select from txmsg.half_message union all select from txmsg.message") == []
