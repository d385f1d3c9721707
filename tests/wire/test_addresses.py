"""Names with several addresses: a client tries them in turn, a server listens at all of them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.wire.services import Answers, Echo, ask, serving
from tests.wire.test_calls import Asking, asking
from txmsg.errors import BrokerUnavailable, MisuseError
from txmsg.wire import blocking as blocking_module
from txmsg.wire import channel as channel_module
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.channel import Channel
from txmsg.wire.handlers import Handlers
from txmsg.wire.server import WireServer
from txmsg.wire.shared import Shared

__all__ = ["asking"]

WAIT_S = 60.0
NOT_LOCAL = "192.0.2.1"
"""An address reserved for documentation: no machine has it."""
Naming = Callable[..., None]


@pytest.fixture
def naming(monkeypatch: pytest.MonkeyPatch) -> Naming:
    """Make the name `several` resolve to these addresses."""
    find = socket.getaddrinfo

    def name(*addresses: str) -> None:
        def found(host: object, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
            if host != "several":
                return find(host, port, *args, **kwargs)  # type: ignore[arg-type]
            return [each for address in addresses for each in find(address, port, *args, **kwargs)]

        monkeypatch.setattr(socket, "getaddrinfo", found)

    return name


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (channel_module, blocking_module):
        monkeypatch.setattr(module, "_CONNECT_S_MAX", 4.0)


async def test_client_tries_the_next_address_when_one_refuses(asking: Asking, naming: Naming) -> None:
    naming("127.0.0.2", "127.0.0.1")
    async with serving() as (address, _, _):
        assert (await asking(f"several:{address.rpartition(':')[2]}", Echo.back)).held == b"x"


@pytest.mark.usefixtures("quick")
async def test_an_address_that_does_not_answer_leaves_time_for_the_next(asking: Asking, naming: Naming) -> None:
    naming("127.0.0.2", "127.0.0.1")
    async with serving() as (address, _, _):
        port = int(address.rpartition(":")[2])
        with socket.create_server(("127.0.0.2", port)):  # accepts connections, and never greets
            assert (await asking(f"several:{port}", Echo.back)).held == b"x"


@pytest.mark.usefixtures("quick")
async def test_error_names_the_reason_when_no_address_answers(asking: Asking, naming: Naming) -> None:
    naming("127.0.0.2", "127.0.0.3")
    with socket.create_server(("127.0.0.2", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(BrokerUnavailable, match=r"refused|Connect call failed"):
            await asking(f"several:{port}", Echo.back)
        with socket.create_server(("127.0.0.3", port)):
            with pytest.raises(BrokerUnavailable, match="did not take a connection in time"):
                await asking(f"several:{port}", Echo.back)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("is_first", [True, False])
async def test_slow_name_resolution_leaves_time_for_the_next_address(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, go_on, asked = socket.getaddrinfo, threading.Event(), []

    def found(host: object, *args: Any, **kwargs: Any) -> list[Any]:
        if host == "hangs":
            asked.append(host)
            go_on.wait()
        return find("127.0.0.1" if host == "hangs" else host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    try:
        async with serving() as (address, _, _):
            addresses = ["hangs:1", address] if is_first else [address, "hangs:1"]
            with BlockingChannel(addresses) as channel:
                assert (await asyncio.to_thread(channel.call, Echo.back, ask(), timeout_s=WAIT_S)).held == b"x"
    finally:
        go_on.set()
    assert len(asked) == is_first


@asynccontextmanager
async def listening(listen: str) -> AsyncIterator[str]:
    """Run a server; yields its port."""
    server = WireServer(Handlers({Echo: Answers()}), Shared(connections_max=5))
    address = await server.bind(listen)
    await server.start()
    try:
        yield address.rpartition(":")[2]
    finally:
        await server.stop(0)


async def answers(address: str) -> bool:
    async with Channel(address) as channel:
        return (await channel.call(Echo.back, ask(), timeout_s=WAIT_S)).held == b"x"


async def test_server_listens_on_the_same_port_at_each_address_of_its_name(naming: Naming) -> None:
    naming("127.0.0.1", "::1", "127.0.0.1")
    async with listening("several:0") as port:
        assert await answers(f"127.0.0.1:{port}")
        assert await answers(f"[::1]:{port}")


async def test_server_skips_an_address_that_is_not_local(naming: Naming) -> None:
    naming(NOT_LOCAL, "127.0.0.1")
    async with listening("several:0") as port:
        assert await answers(f"127.0.0.1:{port}")
    naming(NOT_LOCAL)
    with pytest.raises(MisuseError, match="cannot listen on several:0"):
        async with listening("several:0"):
            pass


async def test_server_is_refused_if_its_port_is_in_use_at_one_address(naming: Naming) -> None:
    naming("127.0.0.1", "127.0.0.2")
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(MisuseError, match=f"cannot listen on several:{port}"):
            async with listening(f"several:{port}"):
                pass
        with socket.create_server(("127.0.0.1", port)):
            pass  # the ports it had bound are free again


async def test_free_port_is_free_at_each_address(naming: Naming, monkeypatch: pytest.MonkeyPatch) -> None:
    naming("127.0.0.1", "127.0.0.2")
    taken: list[socket.socket] = []
    bind = socket.socket.bind

    def bound(sock: socket.socket, address: Any) -> None:
        if address[0] == "127.0.0.2" and not taken:
            taken.append(socket.socket())
            bind(taken[0], address)
            taken[0].listen()
        bind(sock, address)

    monkeypatch.setattr(socket.socket, "bind", bound)
    async with listening("several:0") as port:
        assert int(port) != taken[0].getsockname()[1]
        assert await answers(f"127.0.0.2:{port}")
    taken[0].close()
