"""Idle connections to a broker and a MetaQ server do not keep users and probes from being served."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.acceptance.served import served as served_broker
from tests.metaq.servers import served as served_log
from tests.ports import own_port
from tests.waiting import until
from txmsg.broker.config import BrokerConfig
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.wire.address import host_and_port
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.connection import greeting
from txmsg.wire.v1 import metaq_pb2, txmsg_pb2
from txmsg.wire.v1.metaq_rpc import MetaQ
from txmsg.wire.v1.txmsg_rpc import Notify

WAIT_S = 60.0
STRANGERS = 100
FIRST = {"says nothing": b"", "says half a greeting": greeting()[:-1]}


def ask_broker(channel: BlockingChannel) -> object:
    return channel.call(Notify.route, txmsg_pb2.RouteRequest(), timeout_s=WAIT_S)


def ask_log(channel: BlockingChannel) -> object:
    return channel.call(MetaQ.describe, metaq_pb2.DescribeLogRequest(), timeout_s=WAIT_S)


Place = tuple[str, str, Callable[[BlockingChannel], object]]


@pytest.fixture(params=["broker", "log"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A server with a low connection limit, its metrics endpoint, and a call."""
    http = f"127.0.0.1:{own_port()}"
    if request.param == "broker":
        storage = request.getfixturevalue("notify_url")
        broker = BrokerConfig(storage=storage, listen="127.0.0.1:0", http_listen=http, connections_max=20)
        with served_broker(broker) as address:
            yield address, http, ask_broker
    else:
        log = MetaQConfig(data_dir=tmp_path / "log", listen="127.0.0.1:0", http_listen=http, connections_max=20)
        with served_log(log) as address:
            yield address, http, ask_log


@pytest.mark.parametrize("first", FIRST)
def test_silent_and_half_greeted_connections_do_not_block_other_clients(place: Place, first: str) -> None:
    address, _, ask = place
    with ExitStack() as stack:
        lasting = stack.enter_context(BlockingChannel(address))
        assert ask(lasting)
        for number in range(STRANGERS):
            stranger = stack.enter_context(socket.create_connection(host_and_port(address), WAIT_S))
            stranger.sendall(FIRST[first])
            if not number % 20:
                with BlockingChannel(address) as channel:
                    assert ask(channel)
        assert ask(lasting)


def test_probes_and_metrics_are_answered_despite_idle_connections(place: Place) -> None:
    _, http, _ = place

    def is_ready() -> bool:
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(f"http://{http}/readyz", timeout=WAIT_S):
            return True
        return False

    until(is_ready)  # it holds its leases a moment after it listens
    with ExitStack() as stack:
        for number in range(STRANGERS):
            idle = stack.enter_context(socket.create_connection(host_and_port(http), WAIT_S))
            idle.sendall(b"" if number % 2 else b"GET /livez HTTP/1.1\r\n")
            if not number % 20:
                for path in ("livez", "readyz", "metrics"):
                    with urllib.request.urlopen(f"http://{http}/{path}", timeout=WAIT_S) as answer:
                        assert answer.status == 200
