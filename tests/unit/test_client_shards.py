"""Producers with two Notify databases, against scripted brokers that speak the real protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine

from tests.unit.test_client_sender import Script, lose_reply, refuse, served
from tests.waiting import until_async
from txmsg.checker.fence import FenceCheckListener
from txmsg.checker.tables import create_tables
from txmsg.client import AsyncProducer, Consumer, Producer, Settings
from txmsg.client.sending.batch import SendEntry
from txmsg.client.sending.shards import Shards
from txmsg.errors import BrokerUnavailable, InvalidMessage, InvalidName, MisuseError, OutcomeUnknown, TxmsgError
from txmsg.message import Message, TransactionState, message_id, new_transaction_id
from txmsg.wire.brokers import shards_of
from txmsg.wire.v1 import txmsg_pb2 as pb

A, B, ELSEWHERE = b"a" * 16, b"b" * 16, b"e" * 16
X = Message("t", b"x")


class Shard(Script):
    """A broker of one database that executes the next step for each request, and answers with success when none is
    left.
    """

    def __init__(self, shard: bytes) -> None:
        super().__init__()
        self.shard = shard
        self.recalls = pb.RecallReply.UNKNOWN

    async def send(self, request: pb.SendRequest) -> Any:
        self.sends.append(request)
        if self.steps:
            return await self.steps.popleft()(request, self)
        return pb.SendReply(shard=self.shard)

    async def recall(self, request: pb.RecallRequest) -> Any:
        return pb.RecallReply(results=[self.recalls])

    async def route(self, request: pb.RouteRequest) -> Any:
        return pb.RouteReply(shard=self.shard)

    def always(self, step: Any) -> None:
        self.steps.extend([step] * 1000)

    def ids(self) -> list[bytes]:
        return [request.batches[0].transaction_id for request in self.sends]


@asynccontextmanager
async def two_shards(*, timeout_s: float = 20.0, **options: Any) -> AsyncIterator[tuple[Shard, Shard, AsyncProducer]]:
    a, b = Shard(A), Shard(B)
    async with served(a) as of_a, served(b) as of_b:
        async with AsyncProducer(f"{of_a};{of_b}", group="g", timeout_s=timeout_s, **options) as producer:
            yield a, b, producer


async def first_error(call: Callable[[], Coroutine[Any, Any, Any]], shard: Shard) -> TxmsgError:
    """Return the error of the first call that reaches the failing shard."""
    for _ in range(100):
        try:
            await call()
        except TxmsgError as exc:
            if shard.sends:  # otherwise a busy machine has made the other one fail as well
                return exc
    raise AssertionError("no call has failed")


def key_of(shard: bytes, producer: AsyncProducer) -> str:
    """Return an ordering key that belongs to this shard."""
    lanes = producer._sender
    assert isinstance(lanes, Shards)
    for number in range(1000):
        message = Message("t", b"x", ordering_key=f"k{number}")
        if lanes.plain._way_of_keys(SendEntry(b"i" * 16, (message,), None)).brokers.shard == shard:
            return f"k{number}"
    raise AssertionError("no key has this shard")


async def test_sends_are_spread_over_shards_and_outcomes_follow_their_halves() -> None:
    async with two_shards() as (a, b, producer):
        for _ in range(60):
            await producer.send(X)
        assert min(len(a.sends), len(b.sends)) > 10
        halves = [await producer.half([X]) for _ in range(40)]
        assert {half.shard for half in halves} == {A, B}
        await asyncio.gather(*(producer.end(half, TransactionState.COMMIT) for half in halves))
        for shard in (a, b):
            ended = b"".join(request.commit for request in shard.ends)
            assert {ended[i : i + 16] for i in range(0, len(ended), 16)} == {
                half.id_bytes for half in halves if half.shard == shard.shard
            }


async def test_concurrent_sends_share_few_requests() -> None:
    async with two_shards() as (a, b, producer):
        await asyncio.gather(*(producer.send(X) for _ in range(500)))
        assert len(a.sends) + len(b.sends) <= 6


async def test_messages_certainly_not_stored_are_sent_to_the_other_shard_under_the_returned_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txmsg.client.channel._AVOIDED_S", 600.0)

    async with two_shards() as (a, b, producer):
        a.always(refuse("broker_unavailable"))
        sent = {await producer.send(X) for _ in range(20)}
        halves = [await producer.half([X]) for _ in range(20)]
        at_b = {UUID(bytes=id_bytes) for id_bytes in b.ids()}
        assert {UUID(sent_id.partition(".")[0]) for sent_id in sent} <= at_b
        assert {half.transaction_id for half in halves} <= at_b
        assert {half.shard for half in halves} == {B}
        assert len(a.sends) <= 4, "a shard that fails is left alone for a while"


@pytest.mark.parametrize("failure", [lose_reply, refuse("outcome_unknown")])
async def test_a_plain_send_that_may_be_stored_is_retried_only_in_its_shard(failure: Any) -> None:
    async with two_shards(timeout_s=1.0) as (a, b, producer):
        a.always(failure)
        assert isinstance(await first_error(lambda: producer.send(X), a), OutcomeUnknown)
        assert set(a.ids()).isdisjoint(b.ids())
        assert len(set(a.ids())) == 1


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'fence.db'}")
    create_tables(engine)
    yield engine
    engine.dispose()


async def test_a_fenced_half_that_may_be_stored_goes_to_the_other_shard_under_another_id(engine: Engine) -> None:
    listener = FenceCheckListener(engine)

    async with two_shards(check_listener=listener) as (a, b, producer):
        a.always(lose_reply)
        while not a.sends:
            half = await producer.half([X])
        assert half.shard == B
        assert half.id_bytes == b.ids()[-1]
        assert half.id_bytes not in a.ids()


@pytest.mark.parametrize("known_by", ["its listener", "its caller"])
async def test_a_half_that_may_be_stored_and_is_known_by_id_stays_in_its_shard(known_by: str, engine: Engine) -> None:
    listener = FenceCheckListener(engine)
    of_caller = known_by == "its caller"
    options = {"check_listener": listener} if of_caller else {}
    async with two_shards(timeout_s=1.0, **options) as (a, b, producer):
        a.always(lose_reply)
        error = await first_error(
            lambda: producer.half([X], transaction_id=new_transaction_id() if of_caller else None), a
        )
        assert "its check-back removes it" in str(error)
        assert len(set(a.ids())) == 1
        assert set(a.ids()).isdisjoint(b.ids())


async def test_messages_waiting_for_a_stuck_shard_are_sent_to_the_other() -> None:
    go_on = asyncio.Event()

    async def stand_still(request: Any, script: Script) -> pb.SendReply:
        await go_on.wait()
        return pb.SendReply(shard=A)

    async with two_shards() as (a, b, producer):
        lanes = producer._sender
        assert isinstance(lanes, Shards)
        a.always(stand_still)
        way = lanes.plain.ways[0]
        stuck = []
        for _ in range(2):  # both of its requests
            stuck.append(asyncio.create_task(_offered(way, producer)))
            await until_async(lambda: len(a.sends) == len(stuck))
        waiting = [asyncio.create_task(_offered(way, producer)) for _ in range(3)]
        await asyncio.gather(*waiting)
        assert len(a.sends) == 2
        assert len(b"".join(b.ids())) == 3 * 16
        for _ in range(20):
            await producer.send(X)
        assert len(a.sends) == 2, "nothing new goes there meanwhile"
        go_on.set()
        await asyncio.gather(*stuck)


async def _offered(way: Any, producer: AsyncProducer) -> None:
    assert producer._sender is not None
    waiter = producer._sender.new_waiter()
    way.lane.offer(SendEntry(new_transaction_id().bytes, (X,), waiter))
    await waiter


async def test_messages_of_an_ordering_key_wait_for_its_shard() -> None:
    async with two_shards(timeout_s=3.0) as (a, b, producer):
        of_a, of_b = key_of(A, producer), key_of(B, producer)
        for _ in range(10):
            await producer.send(Message("t", b"x", ordering_key=of_a))
            await producer.half([Message("t", b"x", ordering_key=of_b)])
        assert (len(a.sends), len(b.sends)) == (10, 10)
        a.always(refuse("broker_unavailable"))
        with pytest.raises(BrokerUnavailable, match="told so"):
            await producer.send(Message("t", b"x", ordering_key=of_a))
        await producer.send(Message("t", b"x", ordering_key=of_b))
        assert len(b.sends) == 11


async def test_a_transaction_with_ordering_keys_of_different_shards_is_refused() -> None:
    async with two_shards() as (a, b, producer):
        messages = [Message("t", b"x", ordering_key=key_of(shard, producer)) for shard in (A, B)]
        with pytest.raises(InvalidMessage, match="have different Notify databases"):
            await producer.half(messages)
        assert not a.sends
        assert not b.sends


async def test_ordered_messages_are_refused_until_every_database_is_known() -> None:
    shard = Shard(A)
    async with served(shard) as address:
        async with AsyncProducer([[address], ["127.0.0.1:1"]], group="g", timeout_s=3) as producer:
            await producer.send(X)
            with pytest.raises(BrokerUnavailable, match="1 of 2 Notify databases have not answered"):
                await producer.send(Message("t", b"x", ordering_key="k"))
            assert len(shard.sends) == 1


async def test_an_outcome_of_a_foreign_transaction_is_refused() -> None:
    async with two_shards() as (_, _, producer):
        half = (await producer.half([X]))._replace(shard=ELSEWHERE)
        with pytest.raises(InvalidMessage, match="which this producer does not know"):
            await producer.end(half, TransactionState.COMMIT)


async def test_a_recall_finds_the_message_in_any_shard() -> None:
    async with two_shards() as (a, b, producer):
        sent = message_id(new_transaction_id(), 0)
        for shard in (a, b):
            shard.recalls = pb.RecallReply.RECALLED
            assert await producer.recall(sent)
            shard.recalls = pb.RecallReply.UNKNOWN


def test_databases_are_separated_by_semicolons_or_lists() -> None:
    assert shards_of("a:1, b:1; c:1") == shards_of([["a:1", "b:1"], "c:1"]) == [["a:1", "b:1"], ["c:1"]]
    assert shards_of(["a:1", "b:1"]) == shards_of("a:1,b:1") == [["a:1", "b:1"]]
    wrong: object
    for wrong in ("a:1;", ";", [[]], [["a:1"], []], ["a:1;b:1"], 7):
        with pytest.raises(InvalidName):
            shards_of(wrong)
    with pytest.raises(MisuseError, match="listed for two Notify databases"):
        shards_of("a:1;a:1")


def test_clients_without_brokers_use_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXMSG_BROKERS", "a:1,b:1;c:1")
    assert shards_of(None) == [["a:1", "b:1"], ["c:1"]]
    for make in (Producer, Consumer):
        monkeypatch.setenv("TXMSG_BROKERS", "a:1,b:1")
        make(group="g").close()
        monkeypatch.setenv("TXMSG_BROKERS", "nowhere")
        with pytest.raises(InvalidName, match="the variable TXMSG_BROKERS: broker address 'nowhere'"):
            make(group="g")
    monkeypatch.delenv("TXMSG_BROKERS")
    assert shards_of(None) == [["localhost:7700"]]


def test_a_single_database_client_refuses_brokers_of_two_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXMSG_BROKERS", "a:1;b:1")
    with pytest.raises(MisuseError, match="brokers of 2 Notify databases are in the variable TXMSG_BROKERS"):
        Settings()
