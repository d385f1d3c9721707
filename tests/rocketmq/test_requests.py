"""Bytes of strangers as requests: what is parsed, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from tests.rocketmq.test_guarded import Place
from txmsg.rocketmq import server
from txmsg.rocketmq.api import SERVICE, Api
from txmsg.rocketmq.door import Call, Caller, Door
from txmsg.rocketmq.receivers import Receivers
from txmsg.rocketmq.requests import PARTS_MAX, REQUEST_SIZE_BYTES_MAX, SMALL_SIZE_BYTES_MAX, read_request
from txmsg.rocketmq.server import made_server
from txmsg.rocketmq.status import Refused
from txmsg.rocketmq.tasks import Tasks
from txmsg.rocketmq.v2 import messaging_pb2 as pb

_CALL_S_MAX = 60.0
_GARBAGE = b"\xff" * 100
_GROUP = b"\x0b" + b"\n\0" * PARTS_MAX * 2 + b"\x0c"
_ONE = pb.SendMessageRequest(messages=[pb.Message()]).SerializeToString()


@pytest.mark.parametrize("raw", [b"", _ONE * PARTS_MAX, b"\x10\x01\x19" + bytes(8) + b"\x25" + bytes(4) + _ONE])
def test_a_request_is_read(raw: bytes) -> None:
    assert read_request(pb.SendMessageRequest, raw) == pb.SendMessageRequest.FromString(raw)


@pytest.mark.parametrize(
    ("kind", "raw", "why"),
    [
        pytest.param(pb.SendMessageRequest, _ONE * (PARTS_MAX + 1), "more than 128 messages", id="messages"),
        pytest.param(pb.AckMessageRequest, b"\x1a\0" * (PARTS_MAX + 1), "more than 128 messages", id="entries"),
        pytest.param(pb.HeartbeatRequest, bytes(SMALL_SIZE_BYTES_MAX + 1), "at most 262144 are", id="too large"),
        pytest.param(pb.SendMessageRequest, bytes(REQUEST_SIZE_BYTES_MAX + 1), "at most 8388608 are", id="larger"),
        pytest.param(pb.SendMessageRequest, _GARBAGE, "not a SendMessageRequest", id="garbage"),
        pytest.param(pb.SendMessageRequest, _GROUP, "not a SendMessageRequest", id="a group of proto2"),
        pytest.param(pb.SendMessageRequest, _ONE[:-1], "not a SendMessageRequest", id="cut"),
        pytest.param(pb.SendMessageRequest, b"\n", "not a SendMessageRequest", id="cut in a number"),
    ],
)
def test_what_is_no_request_is_refused(kind: Any, raw: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        read_request(kind, raw)
    assert refused.value.code == pb.BAD_REQUEST


def test_of_too_many_fields_only_the_first_are_looked_at() -> None:
    """Each has a number of its own: the count of none is too high."""
    fields = b"".join((number << 3 | 0x80).to_bytes(1) + b"\x01\0" for number in range(1, 16))
    numbers = b"".join(bytes([(number & 15) << 3 | 0x80, 1 + (number >> 4), 0]) for number in range(PARTS_MAX + 1))
    assert read_request(pb.HeartbeatRequest, fields)
    with pytest.raises(Refused, match="more than 128"):
        read_request(pb.HeartbeatRequest, numbers)


@asynccontextmanager
async def heartbeats(place: Place, door: Door) -> AsyncIterator[Callable[..., Coroutine[Any, Any, pb.Status]]]:
    """What bytes get as a request, by a gateway that has nothing behind its door."""
    none = cast(Any, None)
    made = made_server(Api(none, Receivers(none, Tasks()), none, none, none, door=door))
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary(f"/{SERVICE}/Heartbeat")

        async def call(raw: bytes, **changed: str) -> pb.Status:
            headers = tuple(cast(Any, place.call(**changed).invocation_metadata()))
            return pb.HeartbeatResponse.FromString(await method(raw, metadata=headers, timeout=_CALL_S_MAX)).status

        yield call
    await made.stop(None)


async def test_nothing_is_read_of_who_has_not_signed_and_garbage_is_a_bad_request(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with heartbeats(place, place.door) as call:
        assert (await call(_GARBAGE, without="authorization")).code == pb.UNAUTHORIZED
        assert (await call(_GARBAGE)).code == pb.BAD_REQUEST
        assert (await call(bytes(SMALL_SIZE_BYTES_MAX + 1))).code == pb.BAD_REQUEST
        assert (await call(pb.HeartbeatRequest().SerializeToString())).code == pb.OK
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await call(bytes(REQUEST_SIZE_BYTES_MAX + 1))


class Slow(Door):
    """Lets nobody in before it is told to."""

    def __init__(self) -> None:
        self.is_asked, self.opens = asyncio.Event(), asyncio.Event()

    async def enter(self, call: Call) -> Caller:
        self.is_asked.set()
        await self.opens.wait()
        return await super().enter(call)


async def test_a_gateway_takes_calls_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_CALLS_MAX", 1)
    door = Slow()
    async with heartbeats(Place(tmp_path), door) as call:
        first = asyncio.create_task(call(b""))
        await door.is_asked.wait()
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await call(b"")
        door.opens.set()
        assert (await first).code == pb.OK
