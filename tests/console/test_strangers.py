"""A console whose connections are filled by unauthenticated clients: browsers and operators are still served."""

from __future__ import annotations

import socket
import urllib.request
from contextlib import ExitStack

import pytest

from tests.in_thread import served_in_thread
from txmsg.ops.console.server import ConsoleConfig, serve
from txmsg.ops.page import connection
from txmsg.wire.address import host_and_port

WAIT_S = 60.0
STRANGERS = 100


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"POST /login HTTP/1.1\r\n"])
def test_unfinished_requests_do_not_block_others_from_the_console(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECTIONS_MAX", 16)
    config = ConsoleConfig(databases={"notify": ["127.0.0.1:1"]}, listen="127.0.0.1:0")
    console = served_in_thread(lambda on_ready, stop: serve(config, on_ready, stop), thread_name="console")
    with console as address, ExitStack() as stack:
        for number in range(STRANGERS):
            stranger = stack.enter_context(socket.create_connection(host_and_port(address), WAIT_S))
            stranger.sendall(first)
            if not number % 20:
                with urllib.request.urlopen(f"http://{address}/login", timeout=WAIT_S) as answer:
                    assert answer.status == 200
