"""The caller, as methods called by the answering code see it."""

from __future__ import annotations

import asyncio

from tests.waiting import until_async
from tests.wire.services import Answers, Echo, ask, serving
from txmsg.wire.caller import Caller, calling_as, current_caller
from txmsg.wire.channel import Channel
from txmsg.wire.v1.txmsg_pb2 import HeldReply, HeldRequest


async def test_each_call_knows_its_caller_even_after_waiting() -> None:
    class Named(Answers):
        async def wait(self, request: HeldRequest) -> HeldReply:
            await super().wait(request)
            return HeldReply(held=current_caller().address.encode())

    async with serving(answers=(answers := Named())) as (address, _, server), Channel(address) as one:
        async with Channel(address) as other:
            calls = [asyncio.create_task(each.call(Echo.wait, ask(), timeout_s=30)) for each in (one, other)]
            await until_async(lambda: answers.begun == 2)
            answers.go.set()
            told = {(await call).held.decode() for call in calls}
            assert told == {connection.peer_name for connection in server.shared.connections}
            assert len(told) == 2


def test_caller_outside_calls_is_this_process_unless_it_is_named() -> None:
    assert current_caller() == Caller("", "")
    with calling_as(Caller("ada", "terminal")):
        assert current_caller() == Caller("ada", "terminal")
    assert current_caller() == Caller("", "")
