"""What a client reads that was given the address of something else than a broker."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.errors_page import is_documented
from txmsg.client import Producer
from txmsg.errors import BrokerUnavailable
from txmsg.message import Message

SAYS = {
    "nothing": b"",
    "HTTP/1.1": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.9\r\n",
    "PostgreSQL": b"E\x00\x00\x00\x3eSFATAL\x00C08P01\x00Munsupported frontend protocol\x00\x00",
}


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
