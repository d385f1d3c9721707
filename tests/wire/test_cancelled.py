"""A call given up by its caller leaves nothing of a message in transit, on either side."""

from __future__ import annotations

import asyncio

import pytest

from tests.raw_client import RawClient
from tests.waiting import until_async
from tests.wire.services import Echo, ask, serving
from txmsg.wire.channel import Channel
from txmsg.wire.connection import WireConnection

WAIT_S = 60.0
LARGE = bytes(20 * 1024 * 1024)


async def test_parts_of_an_unawaited_reply_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """They arrive until the server knows of it; kept, they would end the connection once there are too many."""
    connections: list[WireConnection] = []
    greeted = WireConnection._take_frame

    def noted(self: WireConnection, frame: object) -> None:
        if self not in connections:
            connections.append(self)
        greeted(self, frame)  # type: ignore[arg-type]

    monkeypatch.setattr(WireConnection, "_take_frame", noted)
    async with serving() as (address, _, server), Channel(address) as channel:
        await channel.call(Echo.back, ask(), timeout_s=WAIT_S)
        [mine] = [each for each in connections if each not in server.shared.connections]
        for _ in range(5):
            call = asyncio.create_task(channel.call(Echo.back, ask(LARGE), timeout_s=WAIT_S))
            await until_async(lambda: mine.partial)
            call.cancel()
            await asyncio.wait([call])
            # Its answer follows the last part that the server sent.
            assert (await channel.call(Echo.back, ask(b"next"), timeout_s=WAIT_S)).held == b"next"
            assert mine.partial == {}
        [theirs] = server.shared.connections
        assert (theirs.partial, theirs._lanes) == ({}, {})


async def test_method_is_notified_only_if_its_reply_was_not_sent() -> None:
    async with serving() as (address, answers, server):
        async with Channel(address) as channel:
            for content in (b"x", LARGE):
                assert (await channel.call(Echo.watched, ask(content), timeout_s=WAIT_S)).held == content
            assert answers.unsent == 0
        for cut in ("cancelled", "closed"):
            answers.begun = answers.unsent = 0
            with RawClient(address) as client:  # it reads nothing
                call = await asyncio.to_thread(client.begin, Echo.watched.name, ask(LARGE).SerializeToString())
                await until_async(lambda: answers.begun)
                assert answers.unsent == 0
                if cut == "cancelled":
                    client.cancel(call)
                    await until_async(lambda: answers.unsent)
            await until_async(lambda: answers.unsent)
            await until_async(lambda: not server.shared.connections)
            assert answers.unsent == 1, cut
