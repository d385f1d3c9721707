"""Web servers of consoles and pages: browsers are served while others hold unfinished requests, also by TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tests.waiting import until_async
from tests.wire.certificates import Authority
from txmsg.ops.page.connection import STAY_STRANGER, UNREAD_S
from txmsg.ops.page.listening import PageServer, listening
from txmsg.wire.table import ConnectionTable, ConnectionTableBounds
from txmsg.wire.tls import client_context

WAIT_S = 60.0
NEVER_S = 1e6
WITHOUT_BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nab"
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


class Place:
    """A server on the test's event loop, and a clock of its table."""

    def __init__(self, bounds: ConnectionTableBounds, tls: Any = None) -> None:
        self.now = 0.0
        self.tls = tls

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await self._answer(scope, receive, send)

        self.server = PageServer(answer, tls, ConnectionTable("a web server", bounds, clock=lambda: self.now))
        self.port = 0

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/login":
            scope["state"][STAY_STRANGER]()
            await asyncio.Event().wait()
        if scope["method"] == "POST":
            while (await receive()).get("more_body"):
                pass
        body = "x" * 12_000_000 if scope["path"] == "/large" else scope["scheme"]
        await PlainTextResponse(body)(scope, receive, send)

    def opened(self, first: bytes = b"") -> socket.socket:
        """Open a connection that sends this and reads nothing."""
        opened = socket.create_connection(("127.0.0.1", self.port))
        opened.sendall(first)
        return opened

    async def get(self, context: ssl.SSLContext | None = None) -> bytes:
        async with asyncio.timeout(WAIT_S):
            name = None if context is None else "127.0.0.1"
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name)
            writer.write(HEAD + b"Connection: close\r\n\r\n")
            try:
                return await reader.read()
            finally:
                writer.close()


@asynccontextmanager
async def placed(bounds: ConnectionTableBounds, tls: Any = None) -> AsyncIterator[Place]:
    place = Place(bounds, tls)
    with listening("127.0.0.1:0") as (listener, address):
        place.port = int(address.rpartition(":")[2])
        serving = asyncio.create_task(place.server.serve(sockets=[listener]))
        await until_async(lambda: place.server.started)
        yield place
        place.server.should_exit = True
        await serving


SMALL = ConnectionTableBounds(connections=8, strangers=8, first_byte_s=NEVER_S, greeting_s=NEVER_S)


@pytest.mark.parametrize("first", [b"", HEAD, WITHOUT_BODY])
async def test_browsers_are_served_while_others_hold_unfinished_requests(
    first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with placed(SMALL) as place, AsyncExitStack() as stack:
        for number in range(40):
            stack.enter_context(place.opened(first))
            if not number % 8:
                assert (await place.get()).endswith(b"\r\n\r\nhttp")
        assert len(place.server.watched.table) <= 8
    assert sum("has no room for all connections" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("first", [b"GET /large", b"GET /login"])
async def test_complete_requests_of_unauthenticated_clients_do_not_block_others(first: bytes) -> None:
    """Clients that do not read their answers, or are logging in."""
    async with placed(SMALL) as place, AsyncExitStack() as stack:
        for number in range(24):
            stack.enter_context(place.opened(first + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            if number % 8 == 7:
                assert (await place.get()).endswith(b"\r\n\r\nhttp")
        assert len(place.server.watched.table) <= 8


async def test_invalid_requests_are_logged_briefly_and_upgrades_not_at_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with placed(SMALL) as place:
        for _ in range(5):
            async with asyncio.timeout(WAIT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
                writer.write(HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
                assert b"200 OK" in await reader.readuntil(b"http")
                writer.write(b"nonsense\r\n\r\n")
                assert b"400 " in await reader.read()
                writer.close()
    assert [text for text in caplog.messages if "pgrade" in text or "Invalid" in text] == [
        "Invalid HTTP request received."
    ]


async def test_connections_without_tls_handshake_do_not_block_others(authority: Authority) -> None:
    context = client_context(authority.file)
    async with placed(SMALL, authority.server()) as place, AsyncExitStack() as stack:
        for number in range(40):
            stack.enter_context(place.opened(b"" if number % 2 else b"\x16\x03\x01"))
            if not number % 8:
                assert (await place.get(context)).endswith(b"\r\n\r\nhttps")


async def test_heads_bodies_and_answers_have_timeouts() -> None:
    async with placed(ConnectionTableBounds(connections=8, strangers=8, first_byte_s=5.0, greeting_s=10.0)) as place:
        watched = place.server.watched
        large = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"
        held = [place.opened(first) for first in (b"", HEAD, WITHOUT_BODY, large)]

        def are_open(count: int) -> Callable[[], bool]:
            return lambda: len(watched.connections) == count

        def is_full() -> bool:
            return watched.table.strangers == 4 and any(each.flow.write_paused for each in watched.connections)

        await until_async(is_full)
        place.now = 6.0
        watched.end_slow(0.0)
        await until_async(are_open(3))
        place.now = 11.0
        watched.end_slow(0.0)
        await until_async(are_open(1))
        now = asyncio.get_running_loop().time()
        watched.end_slow(now)
        assert len(watched.connections) == 1
        watched.end_slow(now + UNREAD_S + 5)
        await until_async(are_open(0))
        for each in held:
            each.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))
