"""Retries against a scripted broker that speaks the real protocol.

Those of one caller hold for coroutines, and for threads, which make the first attempt by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from txmsg.client import AsyncProducer, Producer
from txmsg.client.sending.half import Half
from txmsg.errors import (
    BrokerUnavailable,
    OutcomeConflict,
    OutcomeUnknown,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    TxmsgError,
    Unauthenticated,
    UnknownTopic,
    error_of_code,
)
from txmsg.message import Message, TransactionState
from txmsg.wire.handlers import Handlers
from txmsg.wire.server import WireServer
from txmsg.wire.shared import Shared
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify

SHARD = b"h" * 16
X = Message("t", b"x")

Step = Callable[[Any, "Script"], Coroutine[Any, Any, Any]]


class Script:
    """Executes the next step for each request, and answers with success when none is left."""

    def __init__(self) -> None:
        self.server = WireServer(Handlers({Notify: self}), Shared(connections_max=100))
        self.sends: list[pb.SendRequest] = []
        self.ends: list[pb.EndTransactionsRequest] = []
        self.steps: deque[Step] = deque()

    async def send(self, request: pb.SendRequest) -> Any:
        self.sends.append(request)
        if self.steps:
            return await self.steps.popleft()(request, self)
        return pb.SendReply(shard=SHARD)

    async def recall(self, request: pb.RecallRequest) -> Any:
        return await self.steps.popleft()(request, self)

    async def end_transactions(self, request: pb.EndTransactionsRequest) -> Any:
        self.ends.append(request)
        if self.steps:
            return await self.steps.popleft()(request, self)
        return pb.EndTransactionsReply()

    def __getattr__(self, name: str) -> Any:
        """Handle the other methods: they are unknown here."""

        async def refused(*request: Any) -> None:
            raise ProtocolError(f"the script has no {name}")

        return refused


async def lose_reply(request: Any, script: Script) -> None:
    """Execute the request and break the connection before the reply."""
    for connection in list(script.server.shared.connections):
        connection.abort("the script says so")
    await asyncio.Event().wait()


async def hang(request: Any, script: Script) -> None:
    await asyncio.Event().wait()


def refuse(code: str) -> Step:
    async def step(request: Any, script: Script) -> None:
        raise error_of_code(code, "told so")

    return step


def fail_item(place: int, code: str, reply: type[Any]) -> Step:
    async def step(request: Any, script: Script) -> Any:
        ids = request.batches[0].transaction_id if isinstance(request, pb.SendRequest) else request.commit
        error = pb.ItemError(transaction_id=ids[16 * place : 16 * place + 16], code=code, text="told so")
        return reply(shard=SHARD, errors=[error]) if reply is pb.SendReply else reply(errors=[error])

    return step


@asynccontextmanager
async def served(script: Script) -> AsyncIterator[str]:
    """Yield the address of a server with this script."""
    address = await script.server.bind("127.0.0.1:0")
    await script.server.start()
    try:
        yield address
    finally:
        await script.server.stop(0)


@asynccontextmanager
async def scripted(*, timeout_s: float = 20.0) -> AsyncIterator[tuple[Script, AsyncProducer]]:
    script = Script()
    async with served(script) as address, AsyncProducer(address, group="g", timeout_s=timeout_s) as producer:
        yield script, producer


class Threaded:
    """A Producer whose calls run on threads, as a test on an event loop calls an AsyncProducer."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._end_soon = producer._end_soon

    async def send(self, message: Message) -> str:
        return await asyncio.to_thread(self._producer.send, message)

    async def half(self, messages: Sequence[Message]) -> Half:
        return await asyncio.to_thread(self._producer.half, messages)

    async def end(self, half: Half, state: TransactionState, *, timeout_s: float | None = None) -> None:
        await asyncio.to_thread(self._producer.end, half, state, timeout_s=timeout_s)


@asynccontextmanager
async def threaded(*, timeout_s: float = 20.0) -> AsyncIterator[tuple[Script, Threaded]]:
    script = Script()
    async with served(script) as address:
        producer = Producer(address, group="g", timeout_s=timeout_s)
        await asyncio.to_thread(producer.start)
        try:
            yield script, Threaded(producer)
        finally:
            await asyncio.to_thread(producer.close)


both_kinds = pytest.mark.parametrize("kind", [scripted, threaded])


def ids_sent(script: Script) -> list[bytes]:
    return [request.batches[0].transaction_id for request in script.sends]


@both_kinds
@pytest.mark.parametrize("failure", [lose_reply, refuse("broker_unavailable"), refuse("outcome_unknown")])
async def test_a_failed_or_ambiguous_request_is_repeated_under_the_same_ids(kind: Any, failure: Step) -> None:
    async with kind() as (script, producer):
        script.steps.extend([failure, failure])
        sent = await producer.send(X)
        assert len(set(ids_sent(script))) == 1
        assert len(script.sends) == 3
        assert sent.startswith("0")
        half = await producer.half([X])
        script.steps.extend([failure, failure])
        await producer.end(half, TransactionState.COMMIT)
        assert [request.commit for request in script.ends] == [half.id_bytes] * 3


@both_kinds
async def test_a_send_that_may_be_stored_is_never_reported_as_failed(kind: Any) -> None:
    async with kind(timeout_s=1.5) as (script, producer):
        script.steps.extend([lose_reply] + [refuse("broker_unavailable")] * 1000)
        with pytest.raises(OutcomeUnknown, match="may have been carried out"):
            await producer.send(X)


@both_kinds
@pytest.mark.parametrize("refusal", [PermissionDenied, Unauthenticated, UnknownTopic])
async def test_a_refusal_after_an_unanswered_attempt_is_still_an_unknown_outcome(
    kind: Any, refusal: type[TxmsgError]
) -> None:
    async with kind() as (script, producer):
        for step in (refuse(refusal.code), fail_item(0, refusal.code, pb.SendReply)):
            script.steps.extend([lose_reply, step])
            with pytest.raises(OutcomeUnknown, match="told so; an earlier attempt may have been carried out") as caught:
                await producer.send(X)
            assert isinstance(caught.value.__cause__, refusal)
        half = await producer.half([X])
        for step in (refuse(refusal.code), fail_item(0, refusal.code, pb.EndTransactionsReply)):
            script.steps.extend([lose_reply, step])
            with pytest.raises(OutcomeUnknown) as caught:
                await producer.end(half, TransactionState.COMMIT)
            assert isinstance(caught.value.__cause__, refusal)
        script.steps.append(refuse(refusal.code))
        with pytest.raises(refusal):
            await producer.send(X)


@both_kinds
async def test_an_item_error_of_a_repeated_request_counts_for_the_first_attempt(kind: Any) -> None:
    async with kind() as (script, producer):
        half = await producer.half([X])
        script.steps.extend([lose_reply, fail_item(0, "outcome_conflict", pb.EndTransactionsReply)])
        with pytest.raises(OutcomeConflict):
            await producer.end(half, TransactionState.COMMIT)


async def test_a_recall_that_may_have_succeeded_is_never_reported_as_refused() -> None:
    async with scripted() as (script, producer):
        sent = await producer.send(X)
        script.steps.extend([lose_reply, refuse("permission_denied")])
        with pytest.raises(OutcomeUnknown) as caught:
            await producer.recall(sent)
        assert isinstance(caught.value.__cause__, PermissionDenied)


@both_kinds
async def test_a_send_that_is_certainly_not_stored_is_reported_as_failed(kind: Any) -> None:
    async with kind(timeout_s=3.0) as (script, producer):
        script.steps.extend([refuse("overloaded")] * 1000)
        with pytest.raises(Overloaded):
            await producer.send(X)


@both_kinds
@pytest.mark.parametrize("failure", [lose_reply, hang])
async def test_an_unanswered_half_is_unavailable_because_it_is_never_delivered(kind: Any, failure: Step) -> None:
    async with kind(timeout_s=1.5) as (script, producer):
        script.steps.extend([failure] * 1000)
        with pytest.raises(BrokerUnavailable, match="its check-back removes it"):
            await producer.half([X])


async def test_only_failed_items_are_sent_again() -> None:
    async with scripted() as (script, producer):
        script.steps.append(fail_item(1, "outcome_unknown", pb.SendReply))
        await asyncio.gather(*(producer.send(X) for _ in range(3)))
        first, second = ids_sent(script)
        assert second == first[16:32]


async def test_an_error_of_an_item_reaches_only_its_caller() -> None:
    async with scripted() as (script, producer):
        script.steps.append(fail_item(1, "unknown_topic", pb.SendReply))
        results = await asyncio.gather(*(producer.half([X]) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [Half, UnknownTopic, Half]
        halves = [result for result in results if isinstance(result, Half)]
        script.steps.append(fail_item(0, "outcome_conflict", pb.EndTransactionsReply))
        ends = [producer.end(half, TransactionState.COMMIT) for half in halves]
        ended = await asyncio.gather(*ends, return_exceptions=True)
        assert [type(result) for result in ended] == [OutcomeConflict, type(None)]


@both_kinds
async def test_a_timed_out_wait_does_not_withdraw_the_outcome(kind: Any) -> None:
    go_on = asyncio.Event()

    async def slow(request: Any, script: Script) -> pb.EndTransactionsReply:
        await go_on.wait()
        return pb.EndTransactionsReply()

    async with kind() as (script, producer):
        half = await producer.half([X])
        script.steps.extend([slow, slow])
        with pytest.raises(OutcomeUnknown, match="still being tried"):
            await producer.end(half, TransactionState.COMMIT, timeout_s=0.1)
        go_on.set()
        producer._end_soon(half, TransactionState.COMMIT)  # it has no waiter and is still sent
    assert len(script.ends) >= 2  # the request of a thread that leaves is repeated on the event loop
    assert {request.commit for request in script.ends} == {half.id_bytes}
