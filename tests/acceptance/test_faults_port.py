"""Strangers on the broker's port: bytes that are no gRPC, requests that are no messages, connections that say nothing.

Each is answered or closed, and a good client beside it does not notice.
"""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import psutil
import pytest

from tests.acceptance.neighbour import neighbour
from tests.acceptance.served import served
from tests.broker_process import BrokerProcess
from tests.waiting import until
from txmsg.broker.config import BrokerConfig
from txmsg.client import Producer
from txmsg.errors import BrokerUnavailable, ProtocolError
from txmsg.message import Message
from txmsg.wire.codec import error_of_rpc

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000040000000000")
SETTINGS_ACK = bytes.fromhex("000000040100000000")
RANDOM = random.Random(20)
WAIT_S = 45.0

STRANGE = {
    "an HTTP/1.1 request": b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    "a TLS client": bytes.fromhex("16030100c8010000c40303") + RANDOM.randbytes(190),
    "a PostgreSQL client": bytes.fromhex("0000000804d2162f"),
    "a huge frame": PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(100_000),
    "a header block of garbage": PREFACE + SETTINGS + bytes.fromhex("000400010400000001") + RANDOM.randbytes(1024),
    "one byte": b"\x00",
    "zeros": bytes(65_536),
}


@contextmanager
def connected(broker: BrokerProcess, count: int, say: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many plain TCP connections, each of which has said the same."""
    host, _, port = broker.address.rpartition(":")
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S)))
            made[-1].sendall(say)
        yield made


def is_closed(connection: socket.socket, *, within_s: float) -> bool:
    """Whether the other side closes the connection in this time; what it says before is passed over."""
    connection.settimeout(within_s)
    try:
        while connection.recv(65_536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def send_from_a_new_client(broker: BrokerProcess, *, timeout_s: float = 30.0) -> None:
    with Producer(broker.address, group="shop", timeout_s=timeout_s) as producer:
        producer.send(Message("orders", b"new"))


@contextmanager
def file_limit_raised() -> Iterator[int]:
    """The test's own processes may open as many files as the system lets them; how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    try:
        yield most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- bytes


def test_what_is_no_grpc_is_closed_and_harms_no_neighbour(broker: BrokerProcess) -> None:
    strange = [*STRANGE.items(), *((f"random bytes {n}", RANDOM.randbytes(RANDOM.randint(1, 5000))) for n in range(50))]
    with neighbour(broker.address) as good, ExitStack() as stack:
        said = []
        for name, data in strange:
            [connection] = stack.enter_context(connected(broker, 1))
            with contextlib.suppress(ConnectionError):  # closed before it has all been said
                connection.sendall(data)
            said.append((name, connection))
        assert [name for name, connection in said if not is_closed(connection, within_s=WAIT_S)] == []
        good.goes_on()
    assert good.errors == []
    assert "Traceback" not in broker.log.read_text()


async def test_a_call_of_a_newer_client_says_that_the_broker_is_older(broker: BrokerProcess) -> None:
    async with grpc.aio.insecure_channel(broker.address) as channel:
        method: Any = channel.unary_unary("/txmsg.v1.Notify/SendAndDream")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"", timeout=10)
    error = error_of_rpc(caught.value, broker=broker.address)
    assert isinstance(error, ProtocolError)
    assert "older release than this client" in str(error)


def test_a_request_that_swells_past_the_limit_is_refused_without_taking_the_memory(broker: BrokerProcess) -> None:
    size_bytes = 320 * 1024**2
    process = psutil.Process(broker.pid)
    before = process.memory_info().rss
    options = [("grpc.max_send_message_length", -1)]
    with neighbour(broker.address) as good:
        with grpc.insecure_channel(broker.address, options=options, compression=grpc.Compression.Gzip) as channel:
            method: Any = channel.unary_unary("/txmsg.v1.Notify/Send")
            with pytest.raises(grpc.RpcError) as caught:
                method(bytes(size_bytes), timeout=60)
        good.goes_on()
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert process.memory_info().rss - before < size_bytes * 2 // 3
    assert good.errors == []


# ---- connections


@pytest.mark.takes_long
def test_thousands_of_half_open_connections_are_closed_and_harm_nobody(
    broker: BrokerProcess, request: pytest.FixtureRequest
) -> None:
    with file_limit_raised() as files:
        count = min(request.config.getoption("--half-open"), files - 1000)
        process = psutil.Process(broker.pid)
        with neighbour(broker.address) as good:
            good.goes_on()
            files_before, memory_before = process.num_fds(), process.memory_info().rss
            with (
                connected(broker, count) as silent,
                connected(broker, 20, PREFACE) as without_settings,
                connected(broker, 20, PREFACE + SETTINGS + SETTINGS_ACK) as without_calls,
            ):
                until(lambda: process.num_fds() > files_before + count // 3)  # the first ones may be closed by now
                good.goes_on()
                send_from_a_new_client(broker)
                per_connection = (process.memory_info().rss - memory_before) / count
                assert per_connection < 50_000, "bytes of memory for each"
                # The broker closes them; nobody here does.
                assert all(is_closed(each, within_s=WAIT_S) for each in (*silent, *without_settings, *without_calls))
                until(lambda: process.num_fds() < files_before + 20)
            good.goes_on()
    assert good.errors == []
    assert broker.stop() == 0


def test_clients_go_on_while_the_broker_can_open_no_more_files(broker: BrokerProcess) -> None:
    process = psutil.Process(broker.pid)
    with neighbour(broker.address) as good:
        good.goes_on()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (process.num_fds() + 10, hard))
        with connected(broker, 50):
            until(lambda: "File descriptor limit reached" in broker.log.read_text())
            good.goes_on()
            with pytest.raises(BrokerUnavailable, match="cannot be reached"):
                send_from_a_new_client(broker, timeout_s=2)
        send_from_a_new_client(broker)
        good.goes_on()
    assert good.errors == []
    assert broker.stop() == 0


def test_connections_past_the_limit_are_closed_at_once(notify_url: str) -> None:
    config = BrokerConfig(storage=notify_url, listen="127.0.0.1:0", connections_max=5)
    with served(config) as address, ExitStack() as stack:
        host, _, port = address.rpartition(":")
        made = [stack.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(12)]
        until(lambda: sum(is_closed(each, within_s=0.01) for each in made) == 7)
        assert sum(is_closed(each, within_s=0.1) for each in made) == 7, "the first five stay, until their time is up"


def test_the_broker_takes_the_files_it_may_have_and_says_when_they_are_too_few() -> None:
    program = (
        "import resource, logging; logging.basicConfig(); "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, {hard})); "
        "from txmsg.wire.server import connections_allowed; "
        "print(connections_allowed(1000), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )

    def run(hard: int) -> tuple[str, str]:
        command = [sys.executable, "-c", program.format(hard=hard)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip(), done.stderr

    assert run(4000) == ("1000 1256", "")
    said, warned = run(1000)
    assert said == "744 1000"
    assert "at most 744 clients can be connected" in warned
    assert "ulimit -Hn" in warned
