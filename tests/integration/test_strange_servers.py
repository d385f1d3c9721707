"""Clients that connect to a foreign server, and foreign clients of a broker."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.broker_process import BrokerProcess
from tests.errors_page import is_documented
from tests.integration.cli_harness import said
from txmsg.administration.topics import TopicsService
from txmsg.client import Producer
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeUnknown, ProtocolError, TxmsgError
from txmsg.message import Message
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.channel import Channel
from txmsg.wire.connection import greeting
from txmsg.wire.failures import bytes_of_error
from txmsg.wire.frames import LAST, PREFACE, WireFrameKind, call_head, frame_of
from txmsg.wire.handlers import Handlers
from txmsg.wire.server import WireServer
from txmsg.wire.shared import Shared
from txmsg.wire.v1 import txmsg_pb2
from txmsg.wire.v1.txmsg_rpc import Notify
from txmsg.wire.v1.wire_pb2 import Greeting

REQUEST = txmsg_pb2.SendRequest(group="shop")
SAYS = {
    "nothing": b"",
    "HTTP/1.1": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "HTTP/2": bytes.fromhex("000000040000000000"),
    "SSH": b"SSH-2.0-OpenSSH_9.9\r\n",
    "PostgreSQL": b"E\x00\x00\x00\x3eSFATAL\x00C08P01\x00Munsupported frontend protocol\x00\x00",
    "half a greeting": greeting()[:-1],
    "a protocol of later": PREFACE
    + frame_of(WireFrameKind.HELLO, payload=Greeting(versions=[2, 3]).SerializeToString()),
    "another framing": PREFACE.replace(b"\1", b"\2") + bytes(100),
    "a frame before its greeting": PREFACE + frame_of(WireFrameKind.PING),
    "a greeting that cannot be read": PREFACE + frame_of(WireFrameKind.HELLO, payload=b"\xff\xff"),
}


NASTY = b"\x1b[31mred\x1b[0m\r\n2026-01-01 ERROR forged\xe2\x80\xaeback"
"""A colour, a forged log line, and a change of the writing direction."""


class ForeignError(TxmsgError):
    """An error with a code that no release of txmsg has."""

    code = NASTY.decode()


def nasty_greeting(*versions: int) -> bytes:
    hello = Greeting(versions=versions, release=NASTY.decode(), features=[NASTY.decode()])
    return PREFACE + frame_of(WireFrameKind.HELLO, payload=hello.SerializeToString())


NASTY_GOAWAY = frame_of(WireFrameKind.GOAWAY, payload=bytes_of_error(ForeignError(NASTY.decode())))
NASTY_ERROR = frame_of(WireFrameKind.ERROR, 0, 1, bytes_of_error(ForeignError(NASTY.decode())))
NASTY_SAYS: dict[str, tuple[list[bytes], type[TxmsgError]]] = {
    "at once": ([NASTY], BrokerUnavailable),
    "behind its greeting": ([nasty_greeting(1) + NASTY], BrokerUnavailable),
    "in the greeting of another version": ([nasty_greeting(2)], BrokerUnavailable),
    "when it goes": ([greeting() + NASTY_GOAWAY], BrokerUnavailable),
    "in the place of its reason to go": (
        [greeting() + frame_of(WireFrameKind.GOAWAY, payload=NASTY)],
        BrokerUnavailable,
    ),
    "when it has heard the call": ([greeting(), NASTY], OutcomeUnknown),
    "in answer to the call": ([greeting(), NASTY_ERROR], TxmsgError),
    "in the place of a reason": ([greeting(), frame_of(WireFrameKind.ERROR, 0, 1, NASTY)], ProtocolError),
    "in the place of a reply": ([greeting(), frame_of(WireFrameKind.REPLY, 0, 1, NASTY)], ProtocolError),
    "in a frame of no kind": ([greeting(), frame_of(99, 0, 1, NASTY)], OutcomeUnknown),
}
"""Bytes sent one after the other, each after a read; and the resulting error of a send."""


@contextmanager
def server(*says: bytes) -> Iterator[str]:
    """Accept connections, send each the same pieces, one after each read, keep them open, and yield the address.

    Checks at the end that the client has closed all of them.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return  # the test is over
                held.append(connection)
                with suppress(OSError):  # the client has closed it
                    connection.settimeout(5)
                    for piece in says:
                        connection.recv(65_536)
                        connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(60)
        assert held, "no client came"
        for connection in held:
            with connection, suppress(ConnectionError):
                connection.settimeout(60)
                while connection.recv(65_536):
                    pass


@pytest.mark.parametrize("name", SAYS)
def test_connecting_to_a_foreign_server_names_the_address_to_check(name: str) -> None:
    with server(SAYS[name]) as address, Producer(address, group="shop", timeout_s=2) as producer:
        with pytest.raises(BrokerUnavailable) as caught:
            producer.send(Message("orders", b"1"))
    assert address in str(caught.value)
    assert is_documented(caught.value), caught.value


@pytest.mark.parametrize("name", SAYS)
def test_a_blocking_connection_to_a_foreign_server_names_the_address_to_check(name: str) -> None:
    with server(SAYS[name]) as address, BlockingChannel(address) as channel:
        with pytest.raises(BrokerUnavailable) as caught:
            channel.call(Notify.send, REQUEST, timeout_s=2)
    assert address in str(caught.value)
    assert is_documented(caught.value), caught.value


def send_with_a_loop(address: str) -> None:
    async def send() -> None:
        async with Channel(address) as channel:
            await channel.call(Notify.send, REQUEST, timeout_s=2)

    asyncio.run(send())


def send_without_one(address: str) -> None:
    with BlockingChannel(address) as channel:
        channel.call(Notify.send, REQUEST, timeout_s=2)


def send_as_a_producer(address: str) -> None:
    """Send as a producer: its first call is Attach, whose end it logs."""
    with Producer(address, group="shop", timeout_s=2) as producer:
        producer.send(Message("orders", b"1"))


@pytest.mark.parametrize("send", [send_with_a_loop, send_without_one, send_as_a_producer])
@pytest.mark.parametrize("name", NASTY_SAYS)
def test_text_of_a_foreign_server_is_shown_without_control_characters(
    name: str, send: Callable[[str], None], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="txmsg")
    says, kind = NASTY_SAYS[name]
    with server(*says) as address:
        with pytest.raises(TxmsgError) as caught:
            send(address)
    assert type(caught.value) is kind or send is send_as_a_producer
    assert str(caught.value).isprintable()
    assert [record.getMessage() for record in caplog.records if not record.getMessage().isprintable()] == []
    assert "\x1b" not in capfd.readouterr().err


def call_of(method: bytes) -> bytes:
    return frame_of(WireFrameKind.CALL, LAST, 1, call_head(method, 0) + txmsg_pb2.RouteRequest().SerializeToString())


@pytest.mark.parametrize(
    "says",
    [
        NASTY,
        nasty_greeting(2),
        nasty_greeting(1) + frame_of(99, payload=NASTY),
        nasty_greeting(1) + call_of(NASTY),
        nasty_greeting(1) + call_of(NASTY[:9]),
        nasty_greeting(1) + NASTY_GOAWAY,
        nasty_greeting(1) + frame_of(WireFrameKind.PUSH, 0, 1, NASTY),
    ],
)
def test_text_of_a_foreign_client_is_not_logged_by_a_broker(broker: BrokerProcess, says: bytes) -> None:
    host, _, port = broker.address.partition(":")
    question = b"are you?"
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(60)
        connection.sendall(says)
        with suppress(ConnectionError):  # closing is also an answer
            connection.sendall(frame_of(WireFrameKind.PING, payload=question))
        heard = b""
        with suppress(ConnectionError):
            while question not in heard:  # until the broker has read all earlier bytes
                more = connection.recv(4096)
                if not more:
                    break
                heard += more
    assert heard.startswith(greeting()), "the broker answers"
    log = broker.log.read_text()
    assert "forged" not in log
    assert "\x1b" not in log
    assert "Traceback" not in log


class Refusing:
    """Answers every call with this error."""

    def __init__(self, error: TxmsgError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        async def refuse(request: Any) -> None:
            raise self._error

        return refuse


@pytest.mark.parametrize("kind", [MisuseError, ForeignError])
async def test_error_text_of_a_broker_is_shown_without_control_characters(kind: type[TxmsgError]) -> None:
    strange = WireServer(Handlers({TopicsService: Refusing(kind(NASTY.decode()))}), Shared(connections_max=10))
    address = await strange.bind("127.0.0.1:0")
    await strange.start()
    try:
        told = await asyncio.to_thread(said, "topic", "list", "--broker", address, status=1)
    finally:
        await strange.stop(0)
    assert "forged" in told
    assert told.removesuffix("\n").isprintable(), told
