"""The presence of a producer at its brokers, where no broker is needed to see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.streams import answering
from tests.waiting import until_async
from txmsg.client import attach
from txmsg.client.attach import Presence
from txmsg.client.channel import Brokers
from txmsg.errors import BrokerUnavailable, Unauthenticated
from txmsg.message import ReceivedMessage, TransactionState
from txmsg.wire.channel import Channel
from txmsg.wire.v1.txmsg_pb2 import BrokerFrame, ClientFrame, RouteChanged

DEADLINE_S = 60.0


class Listener:
    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN


class StreamOfRoutes:
    """The first comes at once, the second when `comes` is set, and no more."""

    def __init__(self, began: asyncio.Event, comes: asyncio.Event) -> None:
        self._began = began
        self._events = iter([None, comes, asyncio.Event()])

    async def receive(self) -> BrokerFrame:
        event = next(self._events)
        if event is not None:
            self._began.set()
            await event.wait()
        return BrokerFrame(route_changed=RouteChanged())

    def close(self) -> None:
        return


class OneStream(Channel):
    """Its calls begin this stream."""

    def __init__(self, stream: object) -> None:
        super().__init__("a:7700")
        self._stream = stream

    async def stream(self, method: object, first: object, *, timeout_s: float) -> Any:
        return self._stream


class OneBroker(Brokers):
    def __init__(self, stream: object) -> None:
        super().__init__(["a:7700"])
        self._one = OneStream(stream)

    def channel(self, address: str) -> Channel:
        return self._one


@asynccontextmanager
async def never_greeting(connected: asyncio.Future[asyncio.StreamWriter]) -> AsyncIterator[str]:
    """The address of a server that takes connections, says nothing, and tells of the first one."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not connected.done():
            connected.set_result(writer)

    async with answering(take) as address:
        yield address


@pytest.mark.parametrize("turns", [None, *range(8)])
async def test_a_presence_ends_while_it_connects_and_though_that_fails_at_the_same_moment(turns: int | None) -> None:
    """turns: of the loop, between a hang-up and the cancellation. None: no hang-up."""
    connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    async with never_greeting(connected) as address:
        brokers = Brokers([address])
        presence = Presence(brokers, group="g", client_id="c", fence_id=b"", listener=Listener())
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


async def test_a_presence_ends_though_a_frame_comes_at_the_same_moment() -> None:
    began, comes = asyncio.Event(), asyncio.Event()
    brokers = OneBroker(StreamOfRoutes(began, comes))
    running = asyncio.create_task(Presence(brokers, group="g", client_id="c").run())
    await asyncio.wait_for(began.wait(), DEADLINE_S)
    comes.set()
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=DEADLINE_S)
    assert done == {running}


class StreamThatFails:
    """It fails when `fails` is set."""

    def __init__(self, began: asyncio.Event, fails: asyncio.Event) -> None:
        self._began = began
        self._fails = fails

    async def receive(self) -> BrokerFrame:
        self._began.set()
        await self._fails.wait()
        raise BrokerUnavailable("the connection was closed")

    async def send(self, frame: ClientFrame) -> None:
        raise AssertionError("no check came, so there is nothing to answer")

    def close(self) -> None:
        return


class StreamThatIsRefused:
    """It says something, and is then refused; begun again it is refused at once."""

    def __init__(self, refused: asyncio.Event) -> None:
        self._refused = refused
        self._frames = iter([BrokerFrame(route_changed=RouteChanged())])

    async def receive(self) -> BrokerFrame:
        if (frame := next(self._frames, None)) is not None:
            return frame
        self._refused.set()
        raise Unauthenticated("the token was revoked")

    async def send(self, frame: ClientFrame) -> None:
        raise AssertionError("no check came, so there is nothing to answer")

    def close(self) -> None:
        return


async def test_a_presence_is_not_attached_to_a_broker_that_refuses_it_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "REFUSED_PAUSE_S", 3600)
    refused = asyncio.Event()
    presence = Presence(OneBroker(StreamThatIsRefused(refused)), client_id="c", group="g")
    running = asyncio.create_task(presence.run())
    await asyncio.wait_for(refused.wait(), DEADLINE_S)
    await until_async(lambda: not presence.attached_to)
    assert not running.done()
    running.cancel()
    await asyncio.wait({running}, timeout=DEADLINE_S)


@pytest.mark.parametrize("turns", range(8))
async def test_a_presence_ends_though_its_stream_fails_at_the_same_moment(turns: int) -> None:
    began, fails = asyncio.Event(), asyncio.Event()
    brokers = OneBroker(StreamThatFails(began, fails))
    running = asyncio.create_task(Presence(brokers, client_id="c", group="g").run())
    await began.wait()
    fails.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=DEADLINE_S)
    assert done, "it goes on though it was cancelled"
