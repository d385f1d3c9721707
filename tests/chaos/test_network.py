"""Chaos links fail as configured, and work again when healed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.chaos.network import Link, Network
from tests.chaos.plan import Cut

WAIT_S = 60.0
SILENCE_S = 0.3


@pytest.fixture
def link() -> Iterator[Link]:
    """A link to an echo server, which says `bye` at the end of the stream."""
    with socket.create_server(("127.0.0.1", 0)) as server, Network() as network:

        def serve(connection: socket.socket) -> None:
            with connection:
                try:
                    while said := connection.recv(1000):
                        connection.sendall(said)
                    connection.sendall(b"bye")
                except ConnectionError:
                    return

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,)).start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield network.link(server.getsockname())
        server.shutdown(socket.SHUT_RDWR)
        accepting.join(WAIT_S)


def _connect(link: Link) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=WAIT_S)


def _says_back(connection: socket.socket) -> bool:
    """Return True if data is echoed; False if the connection is closed."""
    try:
        connection.sendall(b"hello")
        return connection.recv(1000) == b"hello"
    except ConnectionError:
        return False


def _is_silent(connection: socket.socket, word: bytes = b"hello") -> bool:
    """Return True if for a while no data is echoed and the connection stays open."""
    connection.sendall(word)
    connection.settimeout(SILENCE_S)
    try:
        connection.recv(1000)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(WAIT_S)
    return False


def _is_reset(connection: socket.socket) -> bool:
    """Return True if the other side resets the connection, after any last data."""
    try:
        while connection.recv(1000):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("cut", Cut)
def test_healed_link_serves_new_connections(link: Link, cut: Cut) -> None:
    with _connect(link) as before:
        assert _says_back(before)
        link.cut(cut)
        link.heal()
        with _connect(link) as after:
            assert _says_back(after)


def test_reset_closes_all_connections_and_refuses_new_ones(link: Link) -> None:
    with _connect(link) as before:
        assert _says_back(before)
        link.cut(Cut.RESET)
        assert _is_reset(before)
        with _connect(link) as refused:
            assert _is_reset(refused)


def test_bytes_delayed_by_a_silent_link_arrive_later(link: Link) -> None:
    with _connect(link) as connection:
        assert _says_back(connection)
        link.cut(Cut.SILENT)
        assert _is_silent(connection, b"late")
        link.heal()
        assert connection.recv(1000) == b"late"


def test_bytes_lost_by_a_link_never_arrive(link: Link) -> None:
    with _connect(link) as connection:
        assert _says_back(connection)
        link.cut(Cut.LOST)
        assert _is_silent(connection, b"lost")
        link.heal()
        assert _is_reset(connection)


def test_requests_arrive_while_replies_are_lost(link: Link) -> None:
    with _connect(link) as connection:
        assert _says_back(connection)
        link.cut(Cut.REPLIES_LOST)
        assert _is_silent(connection)
        link.heal()
        assert _is_reset(connection)


def test_link_can_close_one_direction_only(link: Link) -> None:
    with _connect(link) as connection:
        assert _says_back(connection)
        link.cut(Cut.HALF_CLOSED)
        assert connection.recv(1000) == b"bye"


def test_slow_link_delivers_all_bytes_in_the_end(link: Link) -> None:
    with _connect(link) as connection:
        link.cut(Cut.SLOW)
        connection.sendall(b"slow")
        assert connection.recv(1000) == b"slow"
