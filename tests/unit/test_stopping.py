"""Servers that stop while a client connects: the connection is closed at any moment."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from tests.wire.services import Answers, Echo
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.metrics.http import Endpoint, Probes
from txmsg.rocketmq.grpc.port import Port
from txmsg.wire.address import host_and_port
from txmsg.wire.handlers import Handlers
from txmsg.wire.server import WireServer
from txmsg.wire.shared import Shared

_WAIT_S = 60.0

Stop = Callable[[], Awaitable[None]]


async def _server() -> tuple[str, Stop]:
    server = WireServer(Handlers({Echo: Answers()}), Shared(connections_max=5))
    address = await server.bind("127.0.0.1:0")
    await server.start()
    return address, lambda: server.stop(0)


async def _gateway() -> tuple[str, Stop]:
    port = Port(
        {},
        connections_max=5,
        calls_max=1,
        calls_of_connection_max=1,
        request_size_bytes_max=1,
        requests_size_bytes_max=1,
    )
    return f"127.0.0.1:{await port.start('127.0.0.1:0')}", lambda: port.stop(0)


async def _metrics() -> tuple[str, Stop]:
    async def figures() -> Figures:
        return Figures(ExportingProcess.PAGE)

    endpoint = Endpoint(Probes(figures=figures, unready=lambda: ""))
    return await endpoint.start("127.0.0.1:0"), endpoint.close


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("serve", [_server, _gateway, _metrics])
def test_a_connection_accepted_while_a_server_stops_is_closed(
    serve: Callable[[], Awaitable[tuple[str, Stop]]], loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def stop_after(turns: int) -> socket.socket:
        address, stop = await serve()
        client = socket.create_connection(host_and_port(address), timeout=_WAIT_S)
        for _ in range(turns):  # the first iteration accepts the connection; each further one does another step of it
            await asyncio.sleep(0)
        await stop()
        return client

    for turns in range(8):
        with warnings.catch_warnings(record=True) as left_open, asyncio.Runner(loop_factory=loop_factory) as runner:
            warnings.simplefilter("always")
            client = runner.run(stop_after(turns))
            runner.close()
            gc.collect()  # an open transport would warn
        assert not left_open, f"after {turns} turns: {left_open[0].message}"
        client.close()
