"""Parsing of untrusted request bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import CoroutineType
from typing import Any, cast

import grpc
import pytest

from tests.rocketmq.test_guarded import Place
from txmsg.client.channel import Brokers
from txmsg.message import Message
from txmsg.rocketmq import requests, server
from txmsg.rocketmq.admission import CallAdmission, GatewayCaller
from txmsg.rocketmq.api import SERVICE, Api
from txmsg.rocketmq.clients import GatewayClients
from txmsg.rocketmq.grpc.call import GrpcCall
from txmsg.rocketmq.receivers import Receivers
from txmsg.rocketmq.requests import PARTS_MAX, REQUEST_SIZE_BYTES_MAX, SMALL_SIZE_BYTES_MAX, read_request
from txmsg.rocketmq.senders import Senders
from txmsg.rocketmq.server import made_port
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.tasks import Tasks
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.access.principal import ANYONE

_CALL_S_MAX = 60.0
CLIENT = GatewayCaller("client", ANYONE)
_GARBAGE = b"\xff" * 100
_GROUP = b"\x0b" + b"\n\0" * PARTS_MAX * 2 + b"\x0c"
_ONE = pb.SendMessageRequest(messages=[pb.Message()]).SerializeToString()


@pytest.mark.parametrize("raw", [b"", _ONE * PARTS_MAX, b"\x10\x01\x19" + bytes(8) + b"\x25" + bytes(4) + _ONE])
def test_request_is_parsed(raw: bytes) -> None:
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
def test_invalid_request_is_refused(kind: Any, raw: bytes, why: str) -> None:
    with pytest.raises(CallRefused, match=why) as refused:
        read_request(kind, raw)
    assert refused.value.code == pb.BAD_REQUEST


def test_parsing_stops_at_the_limit_of_fields() -> None:
    """Each has a different number, so no single count is too high."""
    fields = b"".join((number << 3 | 0x80).to_bytes(1) + b"\x01\0" for number in range(1, 16))
    numbers = b"".join(bytes([(number & 15) << 3 | 0x80, 1 + (number >> 4), 0]) for number in range(PARTS_MAX + 1))
    assert read_request(pb.HeartbeatRequest, fields)
    with pytest.raises(CallRefused, match="more than 128"):
        read_request(pb.HeartbeatRequest, numbers)


def test_short_request_is_parsed_without_counting_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting costs more than parsing it."""
    looked_at: list[bytes] = []
    monkeypatch.setattr(requests, "_check_parts", looked_at.append)
    longest = b"\n\0" * PARTS_MAX
    assert len(read_request(pb.SendMessageRequest, longest).messages) == PARTS_MAX
    assert not looked_at
    read_request(pb.SendMessageRequest, longest + b"\n\0")
    assert looked_at == [longest + b"\n\0"]


async def test_single_message_of_a_request_is_sent_without_a_task() -> None:
    sent: list[bytes] = []

    class Sending(Senders):
        async def send_message(self, transaction_id: bytes, message: Message, *, born_at_us: int, half: bool) -> None:
            sent.append(transaction_id)

    def request(*numbers: int) -> pb.SendMessageRequest:
        messages = [pb.Message(topic=pb.Resource(name="t"), body=b"x") for _ in numbers]
        for message, number in zip(messages, numbers, strict=True):
            message.system_properties.message_id = f"01{number:032X}"
            message.system_properties.message_type = pb.NORMAL
        return pb.SendMessageRequest(messages=messages)

    none: Any = None
    brokers = Brokers(["none:1"])
    api = Api(Sending(brokers, timeout_s=_CALL_S_MAX), none, GatewayClients(brokers, Tasks()), none, none)
    loop = asyncio.get_running_loop()
    made: list[str] = []

    def make(loop: asyncio.AbstractEventLoop, work: CoroutineType[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:
        made.append(work.cr_code.co_name)
        return asyncio.Task(work, loop=loop, **named)

    before = loop.get_task_factory()
    loop.set_task_factory(cast(Any, make))
    try:
        one, several = await api.send(request(1), CLIENT), await api.send(request(2, 3), CLIENT)
    finally:
        loop.set_task_factory(before)
    assert [one.status.code, several.status.code] == [pb.OK, pb.OK]
    assert sent == [number.to_bytes(16) for number in (1, 2, 3)]
    assert made == ["_send_message", "_send_message"]


@asynccontextmanager
async def heartbeats(place: Place, door: CallAdmission) -> AsyncIterator[Callable[..., Coroutine[Any, Any, pb.Status]]]:
    """A function that sends bytes as a Heartbeat request to a gateway without brokers."""
    none: Any = None
    made = made_port(Api(none, Receivers(none, Tasks()), none, none, none, door=door))
    port = await made.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary(f"/{SERVICE}/Heartbeat")

        async def call(raw: bytes, **changed: str) -> pb.Status:
            headers = tuple(place.call(**changed).headers.items())
            return pb.HeartbeatResponse.FromString(await method(raw, metadata=headers, timeout=_CALL_S_MAX)).status

        yield call
    await made.stop(_CALL_S_MAX)


async def test_unsigned_request_is_not_parsed_and_garbage_is_a_bad_request(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with heartbeats(place, place.door) as call:
        assert (await call(_GARBAGE, without="authorization")).code == pb.UNAUTHORIZED
        assert (await call(_GARBAGE)).code == pb.BAD_REQUEST
        assert (await call(bytes(SMALL_SIZE_BYTES_MAX + 1))).code == pb.BAD_REQUEST
        assert (await call(pb.HeartbeatRequest().SerializeToString())).code == pb.OK
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await call(bytes(REQUEST_SIZE_BYTES_MAX + 1))


class Slow(CallAdmission):
    """Admits no call before the test allows it."""

    def __init__(self) -> None:
        self.is_asked, self.opens = asyncio.Event(), asyncio.Event()

    async def enter(self, call: GrpcCall) -> GatewayCaller:
        self.is_asked.set()
        await self.opens.wait()
        return await super().enter(call)


async def test_gateway_bounds_concurrent_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_CALLS_MAX", 1)
    door = Slow()
    async with heartbeats(Place(tmp_path), door) as call:
        first = asyncio.create_task(call(b""))
        await door.is_asked.wait()
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await call(b"")
        door.opens.set()
        assert (await first).code == pb.OK
