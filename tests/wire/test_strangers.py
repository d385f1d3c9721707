"""Harmful connections are refused: silent ones, ones that do not read, send without end, or come in masses."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from tests.waiting import until_async
from tests.wire.services import DEFAULT_LIMITS, Echo, ask, serving
from txmsg.errors import Overloaded
from txmsg.wire.access.guard import Guard
from txmsg.wire.access.permissions import PERMISSIONS
from txmsg.wire.access.snapshot import AccessSnapshot, Credential, User
from txmsg.wire.access.tokens import NewToken, new_token
from txmsg.wire.address import host_and_port
from txmsg.wire.channel import Channel
from txmsg.wire.connection import greeting
from txmsg.wire.frames import LAST, MORE, FrameReader, WireFrame, WireFrameKind, call_head, frame_of, parts_of
from txmsg.wire.shared import ConnectionLimits
from txmsg.wire.v1.txmsg_pb2 import HeldRequest
from txmsg.wire.v1.wire_pb2 import CallError

WAIT_S = 60.0
QUICK = ConnectionLimits(greeting_s=0.2, silence_s=0.2, unread_s=0.2, arrival_s=0.2, look_s=0.05)


async def connect(address: str, first: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(first)
    return reader, writer


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    """The bytes received until the server closes the connection."""
    data = b""
    async with asyncio.timeout(WAIT_S):
        try:
            while more := await reader.read(65536):
                data += more
        except ConnectionError:
            return data
    return data


class Received:
    """The frames received from the server."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._reading = FrameReader()
        self._frames: list[WireFrame] = []

    async def until(self, count: int, kind: WireFrameKind | None = None) -> list[WireFrame]:
        """Read until so many have arrived, of this kind or of any; return them."""
        async with asyncio.timeout(WAIT_S):
            while len(found := [each for each in self._frames if kind in (None, each.kind)]) < count:
                self._frames += self._reading.feed(await self._reader.read(1 << 20))
        return found


def back(call: int, content: bytes, *, flags: int = LAST) -> bytes:
    request = HeldRequest(transaction_ids=content).SerializeToString()
    return frame_of(WireFrameKind.CALL, flags, call, call_head(b"Echo/Back", 0) + request)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"tx",
        b"GET / HTTP/1.1\r\n\r\n",
        greeting()[:-1],
        greeting() + b"\xff" * 20,
        greeting() + frame_of(WireFrameKind.REPLY, 0, 1, b"a server's word"),
        greeting() + frame_of(WireFrameKind.CALL, LAST, 1, b"\x20"),
        greeting() + back(1, b"x", flags=MORE),
        greeting() + frame_of(99, 0, 1, b""),
        greeting()[:8] + frame_of(WireFrameKind.CALL, LAST, 1, b"no greeting"),
        greeting()[:8] + frame_of(WireFrameKind.HELLO, 0, 0, b"\xff\xff"),
        greeting()[:8] + frame_of(WireFrameKind.HELLO, 0, 0, b"\x0a\x01\x63"),  # version 99
    ],
)
async def test_silent_or_invalid_client_is_disconnected_and_others_are_served(said: bytes) -> None:
    async with serving(limits=QUICK) as (address, answers, server), Channel(address) as neighbour:
        reader, writer = await connect(address, said)
        assert (await neighbour.call(Echo.back, ask(), timeout_s=WAIT_S)).held == b"x"
        await read_to_the_end(reader)
        writer.close()
        await until_async(lambda: len(server.shared.connections) == 1)
        assert answers.begun == 1


async def test_silent_peer_is_kept_only_if_it_answers_pings() -> None:
    async with serving(limits=QUICK) as (address, _, server):
        dead, writer = await connect(address, greeting())
        async with Channel(address) as alive:
            await alive.call(Echo.back, ask(), timeout_s=WAIT_S)
            await read_to_the_end(dead)
            await until_async(lambda: len(server.shared.connections) == 1)
            [left] = server.shared.connections
            heard_at = left.heard_at
            await until_async(lambda: left.heard_at > heard_at + 3 * QUICK.silence_s)
            assert not left.is_lost
        writer.close()


async def test_pong_in_the_same_clock_tick_as_its_ping_counts() -> None:
    silence_s = DEFAULT_LIMITS.silence_s
    async with serving() as (address, _, server), Channel(address) as alive:
        await alive.call(Echo.back, ask(), timeout_s=WAIT_S)
        [left] = server.shared.connections
        pinged_at = left.heard_at + silence_s + 1.0
        left.end_if_slow(pinged_at)
        left.heard_at = pinged_at
        left.end_if_slow(pinged_at + silence_s + 1.0)
        assert not left.is_lost


async def test_peer_with_a_blocking_client_is_not_pinged() -> None:
    async with serving(limits=QUICK) as (address, _, server):
        _, silent = await connect(address, greeting(blocking=True))
        other, writer = await connect(address, greeting())
        await read_to_the_end(other)  # cut off, for it answers no ping
        assert len(server.shared.connections) == 1
        writer.close()
        silent.close()


async def test_peer_that_does_not_read_is_disconnected() -> None:
    async with serving(limits=QUICK) as (address, _, server):
        _, writer = await connect(address, greeting(blocking=True))
        content = bytes(100_000)
        for call in range(1, 200):  # more than buffers of the kernel hold
            writer.write(back(call, content))
        await until_async(lambda: not server.shared.connections)
        writer.close()


async def test_server_stops_cleanly_with_an_unread_large_reply() -> None:
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with serving() as (address, _, server):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            host, _, port = address.rpartition(":")
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (host, int(port)))
            head, content = call_head(b"Echo/Back", 0), ask(bytes(20_000_000)).SerializeToString()
            parts = b"".join(parts_of(WireFrameKind.CALL, LAST, 1, head, content))
            await loop.sock_sendall(client, greeting() + parts)
            await until_async(lambda: [each for each in server.shared.connections if each._lanes])
            [connection] = server.shared.connections
            stopping = asyncio.create_task(server.stop(0))
            await until_async(lambda: connection._is_finished)
            assert connection.is_full
            while connection.is_full and not connection.is_lost:
                await loop.sock_recv(client, 65536)
            await stopping
    assert failures == []


async def test_unread_replies_apply_back_pressure() -> None:
    """Unread replies do not pile up: the requests behind them wait in the peer."""
    async with serving() as (address, answers, _):
        reader, writer = await connect(address, greeting(blocking=True))
        content = bytes(100_000)
        for call in range(1, 501):
            writer.write(back(call, content))
        await until_async(lambda: answers.begun > 20)
        seen = -1
        while seen != answers.begun:  # until no more are started
            seen = answers.begun
            await asyncio.sleep(0.2)
        assert seen < 400
        await Received(reader).until(500, WireFrameKind.REPLY)
        assert answers.begun == 500
        writer.close()


async def test_pending_requests_are_bounded_in_bytes() -> None:
    async with serving(limits=ConnectionLimits(held_bytes=1_000_000)) as (address, answers, _):
        async with Channel(address) as channel:
            calls = [
                asyncio.create_task(channel.call(Echo.wait, ask(bytes(120_000)), timeout_s=WAIT_S)) for _ in range(100)
            ]
            await until_async(lambda: answers.begun >= 8)
            answers.go.set()
            await asyncio.gather(*calls)
        assert answers.ended == 100


async def test_connection_above_the_limit_gets_an_error() -> None:
    async with serving(connections_max=2) as (address, _, server):
        async with Channel(address) as one, Channel(address) as two:
            await one.call(Echo.back, ask(), timeout_s=WAIT_S)
            await two.call(Echo.back, ask(), timeout_s=WAIT_S)
            async with Channel(address) as three:
                with pytest.raises(Overloaded, match="2 connections, as many as it takes"):
                    await three.call(Echo.back, ask(), timeout_s=WAIT_S)
        await until_async(lambda: not server.shared.connections)
        async with Channel(address) as four:
            await four.call(Echo.back, ask(), timeout_s=WAIT_S)


async def test_expired_call_ends_even_if_its_caller_does_not_cancel_it() -> None:
    async with serving(limits=QUICK) as (address, answers, _):
        request = HeldRequest(transaction_ids=b"x").SerializeToString()
        head = call_head(b"Echo/Wait", 100)
        _, writer = await connect(
            address, greeting(blocking=True) + frame_of(WireFrameKind.CALL, LAST, 1, head + request)
        )
        await until_async(lambda: answers.cancelled)
        writer.close()


async def test_cancelled_incomplete_call_leaves_nothing_behind() -> None:
    async with serving() as (address, answers, _):
        first = back(1, bytes(100_000), flags=MORE)
        cancel = frame_of(WireFrameKind.CANCEL, 0, 1)
        reader, writer = await connect(address, greeting(blocking=True) + first + cancel + back(1, b"again"))
        await Received(reader).until(1, WireFrameKind.REPLY)
        assert answers.begun == 1
        writer.close()


async def test_unreadable_request_is_refused_and_the_connection_stays_open() -> None:
    async with serving() as (address, answers, _):
        wrong = frame_of(WireFrameKind.CALL, LAST, 1, call_head(b"Echo/Back", 0) + b"\xff")
        reader, writer = await connect(address, greeting(blocking=True) + wrong + back(2, b"x"))
        frames = await Received(reader).until(3)
        assert [(frame.kind, frame.call) for frame in frames[1:]] == [
            (WireFrameKind.ERROR, 1),
            (WireFrameKind.REPLY, 2),
        ]
        assert CallError.FromString(frames[1].payload).code == "protocol"
        assert answers.begun == 1
        writer.close()


async def test_connection_that_reuses_a_call_number_is_closed() -> None:
    async with serving() as (address, _, server):
        wait = frame_of(WireFrameKind.CALL, LAST, 1, call_head(b"Echo/Wait", 0))
        reader, writer = await connect(address, greeting(blocking=True) + wait + wait)
        await read_to_the_end(reader)
        assert not server.shared.connections
        writer.close()


async def test_goaway_reason_is_an_error_with_its_code() -> None:
    async with serving(connections_max=0) as (address, _, _):
        reader, writer = await connect(address, greeting())
        frames = FrameReader().feed(await read_to_the_end(reader))
        assert [frame.kind for frame in frames] == [WireFrameKind.HELLO, WireFrameKind.GOAWAY]
        assert CallError.FromString(frames[1].payload).code == "overloaded"
        writer.close()


async def test_goaway_names_the_greatest_started_call_number() -> None:
    """A small call overtakes a large one, so calls can begin in another order than their numbers."""
    async with serving() as (address, answers, server):
        waits = [frame_of(WireFrameKind.CALL, LAST, call, call_head(b"Echo/Wait", 0)) for call in (3, 2)]
        reader, writer = await connect(address, greeting(blocking=True) + b"".join(waits))
        await until_async(lambda: answers.begun == 2)
        stopping = asyncio.create_task(server.stop(WAIT_S))
        received = Received(reader)
        frames = await received.until(2)
        assert (frames[1].kind, frames[1].call) == (WireFrameKind.GOAWAY, 3)
        writer.write(back(1, b"late") + back(4, b"later"))
        frames = await received.until(3)
        assert (frames[2].kind, frames[2].call) == (WireFrameKind.ERROR, 1)  # 4 gets none: the client knows from GOAWAY
        answers.go.set()
        await stopping
        writer.close()
        assert answers.begun == 2


def guarding(monkeypatch: pytest.MonkeyPatch, **roles: tuple[str, ...]) -> tuple[Guard, dict[str, NewToken]]:
    """Return a guard with these users, who may all call, and their tokens."""
    monkeypatch.setitem(PERMISSIONS, Echo.back.name, ())
    guard, tokens = Guard(), {name: new_token() for name in roles}
    users = {name: User(name=name, roles=frozenset(of)) for name, of in roles.items()}
    credentials = [Credential(id=each.id, user=name, secret_sha256=each.secret_sha256) for name, each in tokens.items()]
    guard.use_snapshot(AccessSnapshot(users=users, credentials={each.id: each for each in credentials}))
    return guard, tokens


async def test_unauthenticated_connections_cannot_fill_a_server_and_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All from one address, silent or with half a greeting: a user of that address is still served."""
    guard, tokens = guarding(monkeypatch, app=(), other=(), ops=("admin",))
    token = tokens["app"]
    patient = ConnectionLimits(first_byte_s=9 * WAIT_S, greeting_s=9 * WAIT_S, look_s=0.05)
    async with (
        serving(limits=patient, connections_max=8, guard=guard) as (address, _, server),
        AsyncExitStack() as stack,
    ):
        lasting = await stack.enter_async_context(Channel(address, token=token.text))
        await lasting.call(Echo.back, ask(), timeout_s=WAIT_S)
        for number in range(64):
            _, writer = await connect(address, greeting()[:5] if number % 2 else b"")
            stack.callback(writer.close)
            if not number % 8:
                async with Channel(address, token=token.text) as channel:
                    await channel.call(Echo.back, ask(), timeout_s=WAIT_S)
        await lasting.call(Echo.back, ask(), timeout_s=WAIT_S)
        assert server.shared.table.strangers <= server.shared.table.bounds.strangers_max
    assert sum("has no room for all connections" in record.getMessage() for record in caplog.records) == 1


async def test_all_clients_reconnecting_at_once_are_served() -> None:
    """As after a restart: all are accepted in one turn of the loop, before any greeting is read."""
    count = 300
    async with serving(connections_max=count) as (address, _, server):
        server.shared.table.bounds = replace(server.shared.table.bounds, young_s=WAIT_S)
        assert server.shared.table.bounds.strangers_max < count / 2
        clients = [socket.create_connection(host_and_port(address)) for _ in range(count)]
        for client in clients:
            client.sendall(greeting(blocking=True))
        await until_async(lambda: server.shared.table.known == count)
        assert not server.shared.table.closed
        for client in clients:
            client.close()


async def test_full_server_still_accepts_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, tokens = guarding(monkeypatch, app=(), other=(), ops=("admin",))
    async with serving(connections_max=4, guard=guard) as (address, _, _), AsyncExitStack() as stack:

        async def call(user: str) -> None:
            channel = await stack.enter_async_context(Channel(address, token=tokens[user].text))
            await channel.call(Echo.back, ask(), timeout_s=WAIT_S)

        for _ in range(3):
            await call("app")
        with pytest.raises(Overloaded, match="user app has 3 connections"):
            await call("app")
        await call("other")
        with pytest.raises(Overloaded, match="4 connections, as many as it takes"):
            await call("other")
        await call("ops")
