"""The presence of a producer at its brokers, where no broker is needed to see it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc.aio

from txmsg.client.attach import Presence
from txmsg.client.channel import Brokers
from txmsg.message import ReceivedMessage, TransactionState
from txmsg.wire.v1.txmsg_pb2 import BrokerFrame, Heartbeat

DEADLINE_S = 60.0


class Listener:
    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN


class StreamThatLosesACancellation:
    """As gRPC's, when it comes while the call is being prepared, and the call then fails."""

    def __init__(self, began: asyncio.Event) -> None:
        self._began = began

    async def read(self) -> Any:
        self._began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "refused") from None

    def cancel(self) -> None:
        return


class StreamOfHeartbeats:
    """The first comes at once, the second when `comes` is set, and no more."""

    def __init__(self, began: asyncio.Event, comes: asyncio.Event) -> None:
        self._began = began
        self._events = iter([None, comes, asyncio.Event()])

    async def read(self) -> BrokerFrame:
        event = next(self._events)
        if event is not None:
            self._began.set()
            await event.wait()
        return BrokerFrame(heartbeat=Heartbeat())

    def cancel(self) -> None:
        return


class OneBroker:
    addresses = ("a:7700",)

    def watch(self, changed: object) -> None:
        return

    def __init__(self, stream: object) -> None:
        self._stream = stream

    def stub(self, address: str) -> OneBroker:
        return self

    def Attach(self, frames: object) -> object:  # noqa: N802 - gRPC's name
        return self._stream


async def test_a_presence_ends_though_grpc_loses_its_cancellation() -> None:
    began = asyncio.Event()
    brokers = cast(Brokers, OneBroker(StreamThatLosesACancellation(began)))
    presence = Presence(brokers, group="g", client_id="c", fence_id=b"", listener=Listener())
    running = asyncio.create_task(presence.run())
    await asyncio.wait_for(began.wait(), DEADLINE_S)
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=DEADLINE_S)
    assert done == {running}


async def test_a_presence_ends_though_a_frame_comes_at_the_same_moment() -> None:
    began, comes = asyncio.Event(), asyncio.Event()
    brokers = cast(Brokers, OneBroker(StreamOfHeartbeats(began, comes)))
    running = asyncio.create_task(Presence(brokers, group="g", client_id="c").run())
    await asyncio.wait_for(began.wait(), DEADLINE_S)
    comes.set()
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=DEADLINE_S)
    assert done == {running}
