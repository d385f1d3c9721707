"""The presence of a producer at its brokers, as far as it can be tested without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.streams import answering
from tests.waiting import until_async
from txmsg.client import attach
from txmsg.client.attach import AttachedStreams
from txmsg.client.channel import Brokers
from txmsg.errors import BrokerUnavailable, Unauthenticated
from txmsg.message import ReceivedMessage, TransactionState
from txmsg.wire.channel import Channel, ClientStream
from txmsg.wire.handlers import Handlers
from txmsg.wire.method import Method
from txmsg.wire.server import WireServer
from txmsg.wire.server_call import ServerCall
from txmsg.wire.shared import Shared
from txmsg.wire.v1.txmsg_pb2 import BrokerFrame, ClientFrame, RouteChanged
from txmsg.wire.v1.txmsg_rpc import Notify

DEADLINE_S = 60.0


class Listener:
    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN


class AttachOnly:
    """The methods of a broker that a presence calls."""

    attach = Notify.attach


class Attaching:
    """Sends each stream a route and holds it until it is revoked; then refuses this one and all later ones."""

    def __init__(self) -> None:
        self.revoked = asyncio.Event()

    async def attach(self, call: ServerCall[ClientFrame, BrokerFrame]) -> None:
        if not self.revoked.is_set():
            await call.send_reply(BrokerFrame(route_changed=RouteChanged()))
            await self.revoked.wait()
        raise Unauthenticated("the token was revoked")


class KeepingChannel(Channel):
    """Keeps its stream, so that the test can act on it at an exact moment."""

    kept: ClientStream[Any, Any]

    async def stream(self, method: Method[Any, Any], first: Any, *, timeout_s: float) -> ClientStream[Any, Any]:
        self.kept = await super().stream(method, first, timeout_s=timeout_s)
        return self.kept


class OneBroker(Brokers):
    def __init__(self, address: str) -> None:
        super().__init__([address])
        self.one = KeepingChannel(address)

    def channel(self, address: str) -> KeepingChannel:
        return self.one

    async def close(self) -> None:
        await self.one.close()
        await super().close()


@asynccontextmanager
async def attached() -> AsyncIterator[tuple[asyncio.Task[None], AttachedStreams, OneBroker, Attaching]]:
    """A running presence at a broker."""
    answers = Attaching()
    server = WireServer(Handlers({AttachOnly: answers}, request_size_bytes_max=1 << 20), Shared(connections_max=10))
    brokers = OneBroker(await server.bind("127.0.0.1:0"))
    await server.start()
    presence = AttachedStreams(brokers, group="g", client_id="c")
    running = asyncio.create_task(presence.run())
    try:
        await until_async(lambda: bool(presence.attached_to))
        yield running, presence, brokers, answers
    finally:
        running.cancel()
        await asyncio.wait({running}, timeout=DEADLINE_S)
        await brokers.close()
        await server.stop(0)


@asynccontextmanager
async def never_greeting(connected: asyncio.Future[asyncio.StreamWriter]) -> AsyncIterator[str]:
    """The address of a server that accepts connections, sends nothing, and reports the first one."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not connected.done():
            connected.set_result(writer)

    async with answering(take) as address:
        yield address


@pytest.mark.parametrize("turns", [None, *range(8)])
async def test_a_presence_closes_while_connecting_fails(turns: int | None) -> None:
    """turns: of the event loop between a hang-up and the cancellation. None: no hang-up."""
    connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    async with never_greeting(connected) as address:
        brokers = Brokers([address])
        presence = AttachedStreams(brokers, group="g", client_id="c", fence_id=b"", listener=Listener())
        running = asyncio.create_task(presence.run())
        writer = await asyncio.wait_for(asyncio.shield(connected), DEADLINE_S)
        if turns is not None:
            writer.transport.abort()
            for _ in range(turns):
                await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=DEADLINE_S)
        assert done == {running}
        await brokers.close()


async def test_a_presence_closes_while_a_frame_arrives() -> None:
    async with attached() as (running, _, brokers, _):
        brokers.one.kept.put_reply(BrokerFrame(route_changed=RouteChanged()).SerializeToString())
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=DEADLINE_S)
        assert done == {running}


async def test_a_presence_is_not_attached_to_a_broker_that_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "REFUSED_PAUSE_S", 3600)
    async with attached() as (running, presence, _, answers):
        answers.revoked.set()
        await until_async(lambda: not presence.attached_to)
        assert not running.done()


@pytest.mark.parametrize("turns", range(8))
async def test_a_presence_closes_while_its_stream_fails(turns: int) -> None:
    async with attached() as (running, _, brokers, _):
        brokers.one.kept.finish(BrokerUnavailable("the connection was closed"))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=DEADLINE_S)
        assert done, "it goes on though it was cancelled"
