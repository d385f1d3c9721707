"""What a client reads that was given the address of something else than a broker."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager, suppress

import grpc
import pytest

from tests.broker_process import BrokerProcess
from tests.errors_page import is_documented
from tests.integration.cli_harness import said
from txmsg.client import Producer
from txmsg.errors import BrokerUnavailable, OutcomeUnknown
from txmsg.message import Message
from txmsg.wire.codec import CODE_KEY

SAYS = {
    "nothing": b"",
    "HTTP/1.1": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.9\r\n",
    "PostgreSQL": b"E\x00\x00\x00\x3eSFATAL\x00C08P01\x00Munsupported frontend protocol\x00\x00",
}


NASTY = b"\x1b[31mred\x1b[0m\r\n2026-01-01 ERROR forged\xe2\x80\xaeback"
"""A colour, a forged line of a log, and a change of the direction of writing."""
GOAWAY = b"\0\0\0\4\0\0\0\0\0" + (len(NASTY) + 8).to_bytes(3) + b"\7\0" + bytes(8) + b"\0\0\0\1" + NASTY
"""HTTP/2: SETTINGS, then GOAWAY with PROTOCOL_ERROR and debug data."""
PING = b"\0\0\x08\6\0\0\0\0\0" + b"are you?"


@contextmanager
def server(says: bytes) -> Iterator[str]:
    """Accepts connections, says the same to each as soon as it has heard something, and keeps them; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return  # the test is over
                held.append(connection)
                with suppress(OSError):  # the client has given it up
                    connection.settimeout(5)
                    connection.recv(1)
                    connection.sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        for connection in held:
            connection.close()


@pytest.mark.parametrize("name", SAYS)
def test_a_client_of_something_that_is_no_broker_is_told_to_check_the_address(name: str) -> None:
    with server(SAYS[name]) as address, Producer(address, group="shop", timeout_s=2) as producer:
        with pytest.raises(BrokerUnavailable) as caught:
            producer.send(Message("orders", b"1"))
    assert address in str(caught.value)
    assert is_documented(caught.value), caught.value


def test_what_a_strange_server_says_is_shown_without_its_control_characters(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with server(GOAWAY) as address, Producer(address, group="shop", timeout_s=2) as producer:
        with pytest.raises((BrokerUnavailable, OutcomeUnknown)) as caught:
            producer.send(Message("orders", b"1"))
    assert str(caught.value).isprintable()
    assert "\x1b" not in capfd.readouterr().err, "gRPC has a log of its own"


def test_what_a_strange_client_says_is_not_in_the_log_of_a_broker(broker: BrokerProcess) -> None:
    host, _, port = broker.address.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + GOAWAY + PING)
        connection.settimeout(60)
        said = b""
        while PING[-8:] not in said:  # the broker has read what came before
            more = connection.recv(4096)
            assert more, said
            said += more
    assert "forged" not in broker.log.read_text()


class Answering(grpc.GenericRpcHandler):
    """Answers every call with a status, in words of its own."""

    def __init__(self, *, as_broker: bool) -> None:
        self._metadata = ((CODE_KEY, "misuse"),) if as_broker else ()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
            context.set_trailing_metadata(self._metadata)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, NASTY.decode())
            return b""

        return grpc.unary_unary_rpc_method_handler(refuse)


@pytest.mark.parametrize("as_broker", [True, False])
def test_what_a_strange_broker_says_is_shown_without_its_control_characters(*, as_broker: bool) -> None:
    strange = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Answering(as_broker=as_broker)])
    port = strange.add_insecure_port("127.0.0.1:0")
    strange.start()
    try:
        told = said("topic", "list", "--broker", f"127.0.0.1:{port}", status=1)
    finally:
        strange.stop(None).wait()
    assert "forged" in told
    assert told.removesuffix("\n").isprintable(), told
