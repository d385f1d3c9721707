"""Foreign traffic on the broker's port: other protocols, invalid requests, silent connections.

Each is answered or closed, and a good client beside it does not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from tests.acceptance.neighbour import neighbour
from tests.acceptance.served import served
from tests.broker_process import BrokerProcess
from tests.raw_client import RawClient
from tests.waiting import until
from txmsg.broker.config import BrokerConfig
from txmsg.client import Producer
from txmsg.errors import BrokerUnavailable, MessageTooLarge, ProtocolError
from txmsg.message import Message
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.channel import Channel
from txmsg.wire.connection import greeting
from txmsg.wire.frames import LAST, MORE, PART_SIZE_BYTES, PREFACE, WireFrameKind, call_head, frame_of, header_of
from txmsg.wire.method import Method
from txmsg.wire.shared import ConnectionLimits
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify
from txmsg.wire.v1.wire_pb2 import Greeting

RANDOM = random.Random(20)
WAIT_S = 45.0

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
LASTING = greeting(blocking=True)
"""After these bytes a silent connection stays open for longer than any test."""
ROUTE = call_head(Notify.route.wire_name, 0)
STRANGE = {
    "an HTTP/1.1 request": b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    "a gRPC client": HTTP2 + bytes.fromhex("00000c0104000000018387") + RANDOM.randbytes(10),
    "a TLS client": bytes.fromhex("16030100c8010000c40303") + RANDOM.randbytes(190),
    "a PostgreSQL client": bytes.fromhex("0000000804d2162f"),
    "one byte": b"\x00",
    "zeros": bytes(65_536),
    "half of the first bytes": PREFACE[:4],
    "another framing": PREFACE.replace(b"\1", b"\2") + greeting()[len(PREFACE) :],
    "half a greeting": greeting()[:-1],
    "a greeting that cannot be read": PREFACE + frame_of(WireFrameKind.HELLO, payload=b"\xff\xff"),
    "a greeting of a later version": PREFACE
    + frame_of(WireFrameKind.HELLO, payload=Greeting(versions=[9]).SerializeToString()),
    "a call in the place of a greeting": PREFACE + frame_of(WireFrameKind.CALL, LAST, 1, ROUTE),
    "a greeting, then nothing": greeting(),
    "a greeting, then HTTP/1.1": greeting() + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a greeting, then another one": greeting() + greeting(),
    "a greeting, then half a header": greeting() + header_of(WireFrameKind.CALL, LAST, 1, 100)[:7],
    "a greeting, then half a frame": greeting() + frame_of(WireFrameKind.CALL, LAST, 1, ROUTE)[:-5],
    "a greeting, then half a request": greeting() + frame_of(WireFrameKind.CALL, LAST | MORE, 1, ROUTE),
    "a frame of one byte too many": greeting() + frame_of(WireFrameKind.CALL, LAST, 1, ROUTE + bytes(PART_SIZE_BYTES)),
    "a frame of 4 GiB": greeting() + header_of(WireFrameKind.CALL, LAST, 1, 2**32 - 1) + bytes(100_000),
    "a frame of no kind": greeting() + frame_of(99, 0, 1, RANDOM.randbytes(100)),
    "a frame of a server": greeting() + frame_of(WireFrameKind.REPLY, 0, 1, RANDOM.randbytes(100)),
    "a call that is too short": greeting() + frame_of(WireFrameKind.CALL, LAST, 1, b"\x05"),
    "a call without a method": greeting() + frame_of(WireFrameKind.CALL, LAST, 1, RANDOM.randbytes(1024)),
}


@contextmanager
def connected(broker: BrokerProcess, count: int, say: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open so many plain TCP connections, each of which sends these bytes."""
    host, _, port = broker.address.rpartition(":")
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S)))
            made[-1].sendall(say)
        yield made


def is_closed(connection: socket.socket, *, within_s: float) -> bool:
    """Return True if the other side closes the connection in time; received bytes are ignored."""
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
    """Raise the file limit of the test's process to the maximum and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    try:
        yield most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- bytes


def test_a_connection_with_a_foreign_protocol_is_closed_and_affects_no_other_client(broker: BrokerProcess) -> None:
    strange = [*STRANGE.items()]
    for n in range(50):
        data = RANDOM.randbytes(RANDOM.randint(1, 5000))
        strange += [(f"random bytes {n}", data), (f"a greeting, then random bytes {n}", greeting() + data)]
    with neighbour(broker.address) as good, ExitStack() as stack:
        said = []
        for name, data in strange:
            [connection] = stack.enter_context(connected(broker, 1))
            with contextlib.suppress(ConnectionError):  # closed before all was sent
                connection.sendall(data)
            said.append((name, connection))
        assert [name for name, connection in said if not is_closed(connection, within_s=WAIT_S)] == []
        good.goes_on()
    assert good.errors == []
    assert "Traceback" not in broker.log.read_text()


async def test_a_call_of_a_newer_client_is_refused_because_the_broker_is_older(broker: BrokerProcess) -> None:
    newer = Method("Notify/SendAndDream", pb.SendRequest, pb.SendReply)
    async with Channel(broker.address) as channel:
        with pytest.raises(ProtocolError, match=r"Notify/SendAndDream is not known here: .* older release than the cl"):
            await channel.call(newer, pb.SendRequest(), timeout_s=10)
        assert (await channel.call(Notify.route, pb.RouteRequest(), timeout_s=10)).this, "the connection is good"


def test_a_request_that_decompresses_past_the_limit_is_refused_without_using_the_memory(broker: BrokerProcess) -> None:
    size_bytes = 320 * 1024**2
    process = psutil.Process(broker.pid)
    before = process.memory_info().rss
    with neighbour(broker.address) as good, RawClient(broker.address) as client:
        error = client.answer(client.begin("Notify/Send", bytes(size_bytes))).error
        assert isinstance(error, MessageTooLarge)
        assert process.memory_info().rss - before < size_bytes * 2 // 3
        assert client.answer(client.begin("Notify/Route", b"")).reply, "the connection is good"
        good.goes_on()
    assert good.errors == []


@pytest.mark.long  # one that decompresses to more is refused above
def test_concurrent_decompressing_requests_are_cut_off_before_they_use_the_memory(broker: BrokerProcess) -> None:
    count, size_bytes = 16, 48 * 1024**2
    process = psutil.Process(broker.pid)
    before = process.memory_info().rss
    part = bytes(PART_SIZE_BYTES)
    with neighbour(broker.address) as good, RawClient(broker.address) as client:

        def swell() -> None:
            for place in range(size_bytes // PART_SIZE_BYTES):
                for call in range(1, count + 1):
                    data = part if place else call_head(Notify.send.wire_name, 0)
                    client.socket.sendall(frame_of(WireFrameKind.CALL, LAST | MORE, call, data))
            while True:
                client.read()

        with pytest.raises(ConnectionError):
            swell()
        assert process.memory_info().rss - before < count * size_bytes // 2
        good.goes_on()
    assert good.errors == []
    assert "Traceback" not in broker.log.read_text()


@pytest.mark.takes_long
def test_a_client_that_does_not_read_its_replies_is_blocked_and_cut_off(broker: BrokerProcess) -> None:
    items = 600
    ids = b"".join(number.to_bytes(16) for number in range(items))
    refused = pb.MessageColumns(topic="no name", transaction_id=ids, body=[b""] * items, born_at_us=[0] * items)
    request = pb.SendRequest(group="g", batches=[refused]).SerializeToString()
    process = psutil.Process(broker.pid)
    with neighbour(broker.address) as good, RawClient(broker.address) as client:
        first = client.answer(client.begin(Notify.send.name, request)).reply
        assert first is not None
        assert 64 * 1024 < len(first) < PART_SIZE_BYTES
        us, before, peak = client.socket.getsockname(), process.memory_info().rss, 0
        client.socket.setblocking(False)
        calls, rest = 1, b""
        with contextlib.suppress(ConnectionError):  # cut off with an error
            while True:
                if not rest:
                    calls += 1
                    rest = frame_of(WireFrameKind.CALL, LAST, calls, call_head(Notify.send.wire_name, 0) + request)
                _, writable, _ = select.select([], [client.socket], [], 0.1)
                peak = max(peak, process.memory_info().rss - before)
                if writable:
                    rest = rest[client.socket.send(rest) :]
                elif us not in [each.raddr for each in process.net_connections("tcp")]:
                    break
        good.goes_on()
    assert calls * len(first) > 8 * 1024**2, "more than the kernel keeps for both"
    assert peak < 2 * ConnectionLimits().calls * (len(request) + len(first)), "calls under way, and little more"
    assert good.errors == []
    assert "Traceback" not in broker.log.read_text()


# ---- connections


@pytest.mark.long  # connections past a lower limit are closed below
def test_thousands_of_half_open_connections_are_closed_and_affect_no_other_client(
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
                connected(broker, 20, PREFACE) as without_greeting,
                connected(broker, 20, greeting()) as without_calls,
            ):
                until(lambda: process.num_fds() > files_before + count // 3)  # the first ones may be closed by now
                good.goes_on()
                send_from_a_new_client(broker)
                per_connection = (process.memory_info().rss - memory_before) / count
                assert per_connection < 50_000, "bytes of memory for each"
                # The broker closes them; the test does not.
                assert all(is_closed(each, within_s=WAIT_S) for each in (*silent, *without_greeting, *without_calls))
                until(lambda: process.num_fds() < files_before + 20)
            good.goes_on()
    assert good.errors == []
    assert broker.stop() == 0


def test_clients_continue_while_the_broker_cannot_open_more_files(broker: BrokerProcess) -> None:
    process = psutil.Process(broker.pid)
    with neighbour(broker.address) as good:
        good.goes_on()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = process.num_fds() + 10
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (files, hard))
        with connected(broker, 50, LASTING):
            until(lambda: process.num_fds() >= files)
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
        made = [stack.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S)) for _ in range(12)]
        for each in made:
            with contextlib.suppress(ConnectionError):  # closed already
                each.sendall(LASTING)
        until(lambda: sum(is_closed(each, within_s=0.01) for each in made) == 7)
        assert sum(is_closed(each, within_s=0.1) for each in made) == 7, "the first five stay"


async def test_a_client_past_the_limit_is_refused_at_once_and_served_when_there_is_room(notify_url: str) -> None:
    config = BrokerConfig(storage=notify_url, listen="127.0.0.1:0", connections_max=1)
    request = pb.RouteRequest()
    with served(config) as address:
        async with Channel(address) as other:
            with BlockingChannel(address) as first:
                assert first.call(Notify.route, request, timeout_s=WAIT_S).this
                with BlockingChannel(address) as second:
                    with pytest.raises(BrokerUnavailable, match="has 1 connections, as many as it takes"):
                        second.call(Notify.route, request, timeout_s=WAIT_S)
                with pytest.raises(BrokerUnavailable, match="has 1 connections, as many as it takes"):
                    await other.call(Notify.route, request, timeout_s=WAIT_S)

            async def is_served() -> bool:
                try:
                    return bool((await other.call(Notify.route, request, timeout_s=WAIT_S)).this)
                except BrokerUnavailable:  # the broker has not seen yet that the first one has gone
                    return False

            async with asyncio.timeout(WAIT_S):
                while not await is_served():
                    pass


def test_the_broker_raises_its_file_limit_and_logs_when_it_is_too_low() -> None:
    program = (
        "import resource, logging; logging.basicConfig(); "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, {hard})); "
        "from txmsg.wire.listening import connections_allowed; "
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
