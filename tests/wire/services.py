"""A service for tests of the protocol: it echoes, waits, streams and fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from txmsg.errors import OffsetOutOfRange, UnknownTopic
from txmsg.wire.access.guard import Guard
from txmsg.wire.handlers import Handlers
from txmsg.wire.method import Method
from txmsg.wire.server import WireServer
from txmsg.wire.server_call import ServerCall, with_call
from txmsg.wire.shared import ConnectionLimits, Shared
from txmsg.wire.tls import ServerTls
from txmsg.wire.v1.txmsg_pb2 import HeldReply, HeldRequest

Call = ServerCall[HeldRequest, HeldReply]
DEFAULT_LIMITS = ConnectionLimits()


class Echo:
    """The service: messages are bytes."""

    back = Method("Echo/Back", HeldRequest, HeldReply)
    watched = Method("Echo/Watched", HeldRequest, HeldReply)
    wait = Method("Echo/Wait", HeldRequest, HeldReply)
    refuse = Method("Echo/Refuse", HeldRequest, HeldReply)
    fail = Method("Echo/Fail", HeldRequest, HeldReply)
    several = Method("Echo/Several", HeldRequest, HeldReply, gives_many=True)
    joined = Method("Echo/Joined", HeldRequest, HeldReply, takes_many=True)
    each = Method("Echo/Each", HeldRequest, HeldReply, takes_many=True, gives_many=True)


class Answers:
    """The implementation of the service."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.cancelled = 0
        self.unsent = 0
        """Replies of `watched` that were not sent."""
        self.go = asyncio.Event()
        """Awaited by `wait`."""

    async def back(self, request: HeldRequest) -> HeldReply:
        self.begun += 1
        return HeldReply(held=request.transaction_ids)

    @with_call
    async def watched(self, request: HeldRequest, call: Call) -> HeldReply:
        def unsent() -> None:
            self.unsent += 1

        call.unsent = unsent
        self.begun += 1
        return HeldReply(held=request.transaction_ids)

    async def wait(self, request: HeldRequest) -> HeldReply:
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.ended += 1
        return HeldReply(held=request.transaction_ids)

    async def refuse(self, request: HeldRequest) -> HeldReply:
        if request.transaction_ids:
            error = OffsetOutOfRange("out of range")
            error.begin, error.end = 3, 5
            raise error
        raise UnknownTopic("no topic of this name")

    async def fail(self, request: HeldRequest) -> HeldReply:
        raise ZeroDivisionError

    async def several(self, request: HeldRequest, call: Call) -> None:
        for letter in request.transaction_ids:
            await call.send_reply(HeldReply(held=bytes([letter])))

    async def joined(self, call: Call) -> HeldReply:
        return HeldReply(held=b"".join([request.transaction_ids async for request in call]))

    async def each(self, call: Call) -> None:
        async for request in call:
            await call.send_reply(HeldReply(held=request.transaction_ids))


@asynccontextmanager
async def serving(
    *,
    limits: ConnectionLimits = DEFAULT_LIMITS,
    connections_max: int = 100,
    size_bytes_max: int = 1 << 26,
    tls: ServerTls | None = None,
    answers: Answers | None = None,
    guard: Guard | None = None,
) -> AsyncIterator[tuple[str, Answers, WireServer]]:
    """Run a server of the service on this loop: yields its address and implementation."""
    answers = answers or Answers()
    server = WireServer(
        Handlers({Echo: answers}, request_size_bytes_max=size_bytes_max),
        Shared(connections_max=connections_max, limits=limits, tls=tls, guard=guard),
    )
    address = await server.bind("127.0.0.1:0")
    await server.start()
    try:
        yield address, answers, server
    finally:
        await server.stop(0)


def ask(content: bytes = b"x") -> HeldRequest:
    """Return a request with this content."""
    return HeldRequest(transaction_ids=content)
