"""What `txmsg capture` prints of real connections."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.conftest import StartBroker
from tests.ports import own_port
from tests.streams import answering
from tests.waiting import until_async
from tests.wire.services import serving
from txmsg.access.tokens import new_token
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.errors import ProtocolError
from txmsg.message import Message, ReceivedMessage, TransactionState
from txmsg.wire.address import host_and_port
from txmsg.wire.capture import METHODS, Capture, redact
from txmsg.wire.channel import Channel
from txmsg.wire.server import Server
from txmsg.wire.v1.messages_pb2 import BodyKeysReply
from txmsg.wire.v1.txmsg_pb2 import RecallReply, RecallRequest, SendReply, SendRequest
from txmsg.wire.v1.txmsg_rpc import Notify

WAIT_S = 60.0


class _Broker:
    async def send(self, request: SendRequest) -> SendReply:
        return SendReply(shard=b"s" * 300_000)

    async def recall(self, request: RecallRequest) -> RecallReply:
        raise ProtocolError("not \x1b[31m today")

    def __getattr__(self, name: str) -> None:
        return None


async def test_each_frame_is_a_line_with_its_message() -> None:
    lines: list[str] = []
    server = Server({Notify: _Broker()}, connections_max=5)
    target = await server.bind("127.0.0.1:0")
    await server.start()
    token = new_token().text
    async with answering(Capture(target, lines.append, length_max=30).relay) as address:
        async with Channel(address, token=token) as channel:
            await channel.call(Notify.send, SendRequest(group="shop", half=True), timeout_s=WAIT_S)
            with pytest.raises(ProtocolError):
                await channel.call(Notify.recall, RecallRequest(n=[5]), timeout_s=WAIT_S)
        await until_async(lambda: lines[-1].endswith("-- closed"))
    await server.stop(0)
    said = [re.sub(r"^[0-9:.]+ ", "", re.sub("within [0-9]{5} ms", "within 60000 ms", line)) for line in lines]
    assert said[0] == "1 -- connected"
    assert token not in "".join(lines)
    assert sum(" HELLO " in line for line in said) == 2
    assert [line for line in said if "#" in line] == [
        '1 >> CALL last #1 24 B Notify/Send within 60000 ms group: "shop" half: true',
        f'1 << REPLY #1 300004 B shard: "{"s" * 22} ...',
        "1 >> CALL last #2 21 B Notify/Recall within 60000 ms n: 5",
        r'1 << ERROR #2 27 B code: "protocol" text: "not \0 ...',
    ]


async def test_a_foreign_protocol_is_passed_on_and_named() -> None:
    lines: list[str] = []
    async with (
        serving() as (target, _, _),
        answering(Capture(target, lines.append, length_max=30).relay) as address,
    ):
        reader, writer = await asyncio.open_connection(*host_and_port(address))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            await reader.read()
        writer.close()
        await until_async(lambda: lines[-1].endswith("-- closed"))
    assert any("unreadable" in line and "GET / HTTP" in line for line in lines)


async def test_a_server_that_is_away_is_named() -> None:
    lines: list[str] = []
    async with serving() as (target, _, _):
        pass
    async with answering(Capture(target, lines.append, length_max=30).relay) as address:
        reader, writer = await asyncio.open_connection(*host_and_port(address))
        async with asyncio.timeout(WAIT_S):
            await reader.read()
        writer.close()
    assert f"{target} cannot be reached" in lines[-1]


class _Knows:
    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


async def test_a_transaction_can_be_read_from_its_half_message_over_a_check_back_to_its_acknowledgement(
    start_broker: StartBroker,
) -> None:
    lines: list[str] = []
    listen = f"127.0.0.1:{own_port()}"
    broker = await asyncio.to_thread(start_broker, "--advertise", listen)
    consumer = AsyncConsumer(listen, group="mailer")
    got = asyncio.Event()

    @consumer.subscribe("order")
    async def note(_: ReceivedMessage) -> None:
        got.set()

    def has(*words: str) -> bool:
        return any(all(word in line for word in words) for line in lines)

    async with answering(Capture(broker.address, lines.append, length_max=10_000).relay, *host_and_port(listen)):
        async with consumer, AsyncProducer(listen, group="shop", check_listener=_Knows()) as producer:
            half = await producer.half([Message("order", b"tea")])
            await producer.end(half, TransactionState.UNKNOWN)
            async with asyncio.timeout(WAIT_S):
                await got.wait()
            await until_async(lambda: has(">> CALL", "Notify/Receive", "acks {"))
        await until_async(
            lambda: sum("-- connected" in line for line in lines) == sum("-- closed" in line for line in lines)
        )
    assert has(">> CALL", "Notify/Send", 'group: "shop"', "half: true", 'topic: "order"', 'body: "tea"')
    assert has(">> CALL", "Notify/EndTransactions", "unknown: ")
    assert has(">> CALL", "Notify/Attach", 'producer_group: "shop"')
    assert has("<< PUSH", "check {", 'body: "tea"')
    assert has(">> PUSH", "check_answer {", "COMMIT")
    assert has(">> CALL", "Notify/Receive", 'group: "mailer"', 'topic: "order"')
    assert has("<< REPLY", "batches {", 'body: "tea"')
    unread = [line for line in lines if "cannot be read" in line or re.search(r"(CALL|PUSH|REPLY) .*[1-9]\d* B$", line)]
    assert not unread


def test_all_methods_are_known() -> None:
    known = {"Notify/Attach", "Admin/Stats", "MetaQ/Fetch", "MetaQGroups/Join", "Topics/Alter", "Settings/Watch"}
    assert known <= set(METHODS)


def test_secrets_are_hidden_wherever_they_are() -> None:
    keys = BodyKeysReply(keys=[b"of a body", b"of another"])
    redact(keys)
    assert list(keys.keys) == [b"***", b"***"]
