"""Messages that are begun and not finished: a connection may have few of them at once, however small they are."""

from __future__ import annotations

import asyncio

from tests.waiting import until_async
from tests.wire.services import Echo, ask, serving
from txmsg.wire.channel import Channel
from txmsg.wire.connection import greeting
from txmsg.wire.frames import MORE, Kind, frame_of

WAIT_S = 60.0


async def test_who_begins_over_a_thousand_messages_and_ends_none_is_cut_off() -> None:
    """Each costs memory besides its bytes, and time to look at."""
    async with serving() as (address, _, server), Channel(address) as neighbour:
        assert (await neighbour.call(Echo.back, ask(b"before"), timeout_s=WAIT_S)).held == b"before"
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(greeting() + b"".join(frame_of(Kind.CALL, MORE, call, b"x") for call in range(1, 1002)))
        async with asyncio.timeout(WAIT_S):
            try:
                while await reader.read(65536):
                    pass
            except ConnectionError:
                pass  # it is reset, as it had not been read to its end
        writer.close()
        await until_async(lambda: len(server.connections) == 1)
        assert (await neighbour.call(Echo.back, ask(b"behind"), timeout_s=WAIT_S)).held == b"behind"
