"""Repeated, late and contradicting outcomes are answered one by one, while remembered and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import psycopg
import pytest
from psycopg import AsyncConnection

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.batch_harness import Notify, columns_of
from tests.integration.client_harness import collecting, half_count, message_count
from tests.postgres_proxy import CUT_AFTER, FORWARD, PostgresProxy, Request, Verdict
from txmsg.broker.config import BrokerConfig
from txmsg.broker.segments import Segments
from txmsg.broker.store.batch import WriteBatch
from txmsg.broker.store.connect import open_pool
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.client import AsyncProducer
from txmsg.errors import MisuseError, OutcomeConflict
from txmsg.message import Message, TransactionState, new_transaction_id_bytes
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1 import txmsg_rpc as rpc

_TIMEOUT_S = 60


class Client:
    """A client of the raw protocol: exactly these requests, without repeats."""

    def __init__(self, address: str) -> None:
        self.channel = BlockingChannel(address)

    def halves(self, ids: Sequence[bytes]) -> dict[bytes, str]:
        columns = pb.MessageColumns(
            topic="orders",
            transaction_id=b"".join(ids),
            body=[b"body"] * len(ids),
            born_at_us=[1_700_000_000_000_000] * len(ids),
        )
        request = pb.SendRequest(group="shop", half=True, batches=[columns])
        reply = self.channel.call(rpc.Notify.send, request, timeout_s=_TIMEOUT_S)
        return {error.transaction_id: error.code for error in reply.errors}

    def end(self, *, commit: Sequence[bytes] = (), rollback: Sequence[bytes] = ()) -> dict[bytes, str]:
        request = pb.EndTransactionsRequest(commit=b"".join(commit), rollback=b"".join(rollback))
        reply = self.channel.call(rpc.Notify.end_transactions, request, timeout_s=_TIMEOUT_S)
        return {error.transaction_id: error.code for error in reply.errors}


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    client = Client(broker.address)
    yield client
    client.channel.close()


def _rotate(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("select txmsg.rotate((select id from txmsg.segment where state = 'open'))")
        connection.execute("select txmsg.add_segment()")


def test_outcomes_are_answered_while_remembered_and_expired_afterwards(client: Client, notify_url: str) -> None:
    committed, rolled_back, undecided, never = ids = [new_transaction_id_bytes() for _ in range(4)]
    assert client.halves(ids[:3]) == {}
    assert client.end(commit=[committed], rollback=[rolled_back]) == {}
    for _ in ("in the open segment", "in the one before"):
        assert client.end(commit=[committed, never], rollback=[rolled_back]) == {never: "outcome_expired"}
        assert client.end(commit=[rolled_back], rollback=[committed, never]) == {
            rolled_back: "outcome_conflict",
            committed: "outcome_conflict",
            never: "outcome_expired",
        }
        assert client.halves(ids[:3]) == {committed: "outcome_conflict", rolled_back: "outcome_conflict"}
        assert half_count(notify_url) == 1, "a late copy of a half came back to life"
        _rotate(notify_url)
    assert client.end(commit=[committed, undecided], rollback=[rolled_back]) == {
        committed: "outcome_expired",
        rolled_back: "outcome_expired",
    }, "of an outcome that is forgotten nothing is known, be it the same or the other; a half is not forgotten"
    assert client.end(commit=[rolled_back], rollback=[committed, undecided]) == {
        committed: "outcome_expired",
        rolled_back: "outcome_expired",
        undecided: "outcome_conflict",
    }
    assert (message_count(notify_url), half_count(notify_url)) == (2, 0)


async def test_a_repeated_batch_whose_answer_was_lost_has_the_same_result(
    start_broker: StartBroker, notify_url: str
) -> None:
    """The database executes the batch and its answer is lost: once for each kind of batch."""
    with PostgresProxy(notify_url) as proxy:
        lose_next = False

        def cut(request: Request) -> Verdict:
            nonlocal lose_next
            if not lose_next or "write_batch" not in request.sql:
                return FORWARD
            lose_next = False
            return CUT_AFTER

        proxy.on_request = cut
        broker = start_broker(storage=proxy.url)

        with collecting(broker.address, "orders") as got:
            async with AsyncProducer(broker.address, group="shop", timeout_s=_TIMEOUT_S) as producer:
                lose_next = True
                sent = await producer.send(Message("orders", b"plain"))
                assert (await asyncio.to_thread(got.get, timeout=_TIMEOUT_S)).id == sent
                lose_next = True
                committed = await producer.half([Message("orders", b"commit")])
                rolled_back = await producer.half([Message("orders", b"rollback")])
                for half, state, other in (
                    (committed, TransactionState.COMMIT, TransactionState.ROLLBACK),
                    (rolled_back, TransactionState.ROLLBACK, TransactionState.COMMIT),
                ):
                    lose_next = True
                    await producer.end(half, state)
                    assert not lose_next, "no answer was lost"
                    lose_next = True
                    with pytest.raises(OutcomeConflict):
                        await producer.end(half, other)
                while (body := (await asyncio.to_thread(got.get, timeout=_TIMEOUT_S)).body) != b"commit":
                    assert body == b"plain", "nothing else may come, and that only again"
    assert (message_count(notify_url), half_count(notify_url)) == (2, 0)


async def test_transactions_of_a_deleted_topic_keep_their_outcome(db: Notify) -> None:
    """One is committed and held back by an undecided half of its key, one committed and not due, one undecided."""
    undecided, held_back, scheduled = (columns_of(db.queues[:1]) for _ in range(3))
    undecided.ordering_key = held_back.ordering_key = ["k"]
    scheduled.deliver_at_us = [2 * scheduled.born_at_us[0]]
    for half in (undecided, held_back, scheduled):
        await db.apply(WriteBatch(half=half))
    committed = [*held_back.transaction_id, *scheduled.transaction_id]
    assert (await db.apply(WriteBatch(commit=committed))).problems == {}
    await db.connection.execute("update txmsg.topic set permission = 0, write_changed_at = now() - interval '1 h'")
    async with open_pool(db.url) as pool:
        topics = TopicAdministration(pool)
        with pytest.raises(MisuseError) as refused:
            await topics.delete("orders", force=False)
        assert "1 halves are undecided, 1 committed messages wait for an earlier" in str(refused.value)
        assert "1 messages are not due yet; --force deletes all of it" in str(refused.value)
        await topics.delete("orders", force=True)
    for table in ("half_message", "scheduled", "queue"):
        assert await db.rows(f"select count(*) from txmsg.{table}") == [(0,)]
    assert (await db.apply(WriteBatch(commit=committed, rollback=undecided.transaction_id))).problems == {}
    against = await db.apply(WriteBatch(commit=undecided.transaction_id, rollback=committed))
    assert against.problems == dict.fromkeys([*undecided.transaction_id, *committed], "conflict")


# ---- how long the memory is


async def test_quickly_filled_segments_stay_open_while_outcomes_must_be_remembered(db: Notify) -> None:
    config = BrokerConfig(storage=db.url, segment_size_bytes=1, outcome_memory_s=600)
    half = db.columns(2)
    await db.apply(WriteBatch(half=half))
    await db.apply(WriteBatch(commit=half.transaction_id[:1], rollback=half.transaction_id[1:]))
    async with open_pool(db.url) as pool:
        clock = [1000.0]
        brokers = [Segments(pool, config, lambda: clock[0]) for _ in range(3)]

        async def look() -> int:
            await asyncio.gather(*(broker.run_once() for broker in brokers))
            (place,) = {(broker.open, broker.previous) for broker in brokers}
            assert place[1] == place[0] - 1
            return place[0]

        async def opened(ago_s: int) -> None:
            await db.connection.execute(
                f"update txmsg.segment set opened_at = now() - interval '{ago_s} s' where state = 'open'".encode()
            )

        await opened(300)
        assert await look() == 1
        await opened(601)
        assert await look() == 1, "the database's clock may have been set forward"
        clock[0] += 599
        assert await look() == 1
        clock[0] += 1
        assert await look() == 2, "one rotation, though three brokers found that it is time"
        await opened(300)
        assert await look() == 2
        remembered = await db.apply(
            WriteBatch(commit=half.transaction_id[1:], rollback=half.transaction_id[:1]), segment=2, previous=1
        )
        assert remembered.problems == dict.fromkeys(half.transaction_id, "conflict")
        await db.apply(WriteBatch(plain=db.columns(1)), segment=2, previous=1)
        assert await look() == 2
        await opened(601)
        assert await look() == 2
        clock[0] += 600
        assert await look() == 3


async def test_the_age_of_a_segment_counts_from_its_last_batch(db: Notify) -> None:
    """A rotation may wait; batches written meanwhile must be remembered as long as all others."""
    half = columns_of(db.queues)
    await db.apply(WriteBatch(half=half))
    async with (
        await AsyncConnection.connect(db.url) as batch,
        await AsyncConnection.connect(db.url, autocommit=True) as keeper,
    ):
        await batch.execute("select pg_advisory_xact_lock_shared(7701, 0)")
        rotating = asyncio.create_task(keeper.execute("select txmsg.rotate(1)"))
        async with asyncio.timeout(60):
            while await db.rows("select from pg_locks where locktype = 'advisory' and not granted") == []:
                pass
        cursor = await batch.execute("select clock_timestamp()")
        written_at = await cursor.fetchone()
        await batch.commit()
        await rotating
    (opened_at,) = await db.rows("select opened_at from txmsg.segment where state = 'open'")
    assert written_at is not None
    assert opened_at[0] > written_at[0]
