"""Unfinished messages: their number per connection and their bytes per server are bounded."""

from __future__ import annotations

import asyncio

from tests.waiting import until_async
from tests.wire.services import Echo, ask, serving
from txmsg.errors import Overloaded
from txmsg.wire.channel import Channel
from txmsg.wire.connection import greeting
from txmsg.wire.failures import error_of_bytes
from txmsg.wire.frames import (
    LAST,
    MORE,
    PART_SIZE_BYTES,
    FrameReader,
    WireFrame,
    WireFrameKind,
    call_head,
    frame_of,
    parts_of,
)
from txmsg.wire.shared import ConnectionLimits

WAIT_S = 60.0


async def test_connection_with_over_a_thousand_unfinished_messages_is_closed() -> None:
    """Each costs memory besides its bytes, and time to inspect."""
    async with serving() as (address, _, server), Channel(address) as neighbour:
        assert (await neighbour.call(Echo.back, ask(b"before"), timeout_s=WAIT_S)).held == b"before"
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(greeting() + b"".join(frame_of(WireFrameKind.CALL, MORE, call, b"x") for call in range(1, 1002)))
        async with asyncio.timeout(WAIT_S):
            try:
                while await reader.read(65536):
                    pass
            except ConnectionError:
                pass  # it is reset, as it had not been read to its end
        writer.close()
        await until_async(lambda: len(server.shared.connections) == 1)
        assert (await neighbour.call(Echo.back, ask(b"behind"), timeout_s=WAIT_S)).held == b"behind"


async def test_slowest_large_request_is_ended_to_free_memory_for_others() -> None:
    """It gets an error, and its connection stays usable."""
    head, content = call_head(b"Echo/Back", 0), ask(bytes(900_000)).SerializeToString()
    first, *others = parts_of(WireFrameKind.CALL, LAST, 1, head, content)
    async with (
        serving(limits=ConnectionLimits(arriving_bytes=1_000_000)) as (address, _, server),
        Channel(address) as quick,
    ):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(greeting(blocking=True) + first + b"".join(others[:-1]))
        await until_async(lambda: server.shared.arriving_bytes > 500_000)
        assert len((await quick.call(Echo.back, ask(bytes(900_000)), timeout_s=WAIT_S)).held) == 900_000
        assert server.shared.arriving_bytes == 0
        writer.write(
            others[-1] + b"".join(parts_of(WireFrameKind.CALL, LAST, 2, head, ask(b"small").SerializeToString()))
        )
        frames, came = FrameReader(), list[WireFrame]()
        async with asyncio.timeout(WAIT_S):
            while len(came) < 3:
                came += frames.feed(await reader.read(65536))
        assert [(frame.kind, frame.call) for frame in came[1:]] == [(WireFrameKind.ERROR, 1), (WireFrameKind.REPLY, 2)]
        error = error_of_bytes(came[1].payload, "the server")
        assert isinstance(error, Overloaded)
        assert "try again" in str(error)
        writer.close()


async def test_call_with_a_refused_message_ends() -> None:
    """Else its method would wait for ever for the refused message."""
    part = bytes(PART_SIZE_BYTES)
    begin = [frame_of(WireFrameKind.CALL, 0, call, call_head(b"Echo/Joined", 0)) for call in (1, 2)]
    pushed = [frame_of(WireFrameKind.PUSH, MORE, call, part) for call in (1, 2)]
    async with serving(limits=ConnectionLimits(arriving_bytes=3 * PART_SIZE_BYTES // 2)) as (address, _, server):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(greeting(blocking=True) + begin[0] + pushed[0] + begin[1] + pushed[1])
        frames, came = FrameReader(), list[WireFrame]()
        async with asyncio.timeout(WAIT_S):
            while len(came) < 2:
                came += frames.feed(await reader.read(65536))
        assert came[1].kind == WireFrameKind.ERROR
        assert isinstance(error_of_bytes(came[1].payload, "the server"), Overloaded)
        [connection] = server.shared.connections
        await until_async(lambda: connection.calls_in_flight == 1)
        assert list(connection._calls) == [3 - came[1].call]
        writer.close()


async def test_single_request_can_exceed_the_memory_shared_by_many() -> None:
    async with (
        serving(limits=ConnectionLimits(arriving_bytes=1_000)) as (address, _, server),
        Channel(address) as channel,
    ):
        assert len((await channel.call(Echo.back, ask(bytes(900_000)), timeout_s=WAIT_S)).held) == 900_000
        assert server.shared.arriving_bytes == 0
