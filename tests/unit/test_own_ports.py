"""Ports of servers that are killed and restarted at the same address."""

from __future__ import annotations

import errno
import itertools
import socket
from pathlib import Path

import pytest

from txmsg.ops.demo.lottery.lottery_stage import LotteryStage
from txmsg.ops.demo.registration import web
from txmsg.ops.demo.registration.secure_stage import SecureStage
from txmsg.wire import listening, ports
from txmsg.wire.listening import loopback
from txmsg.wire.ports import free_ports, not_given, own_port


def test_ports_of_demo_servers_are_outside_the_ephemeral_range(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        assert connection.getsockname()[1] not in not_given()
    lottery = LotteryStage(tmp_path / "lottery", print_ms=1, printers=1)
    secure = SecureStage(tmp_path / "secure", slow_ms=1)
    addresses = [*lottery.brokers.values(), *lottery.activities.values(), *secure.brokers.values(), secure.log_address]
    ports = [int(address.rpartition(":")[2]) for address in addresses]
    assert set(ports) <= {*not_given()}
    assert len(set(ports)) == len(ports)


def test_a_port_in_use_is_skipped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: int = server.getsockname()[1]
        around = range(taken - 20, taken + 20)
        assert taken not in itertools.islice(free_ports(around), 100)
    assert own_port() != own_port()


def test_a_machine_without_ipv4_uses_the_ipv6_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = socket.socket.bind

    def without_ipv4(self: socket.socket, address: tuple[str, int]) -> None:
        if self.family == socket.AF_INET:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        bind(self, address)

    assert loopback() in {"127.0.0.1", "[::1]"}
    monkeypatch.setattr(socket.socket, "bind", without_ipv4)
    found = listening.loopback_end.__wrapped__()
    for module in (listening, ports, web):
        monkeypatch.setattr(module, "loopback_end", lambda: found)
    assert loopback() == "[::1]"
    assert own_port() in not_given()
    server = web.RegistrationServer(lambda request: (200, request))
    with server:
        assert server.address == f"[::1]:{server.server_address[1]}"


def test_a_demo_server_makes_no_name_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: str) -> str:
        raise AssertionError("a resolver is asked, which may be silent")

    monkeypatch.setattr(socket, "getfqdn", silent)
    web.RegistrationServer(lambda request: (200, request)).server_close()


def test_a_machine_without_loopback_raises_instead_of_searching_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(socket.socket, "bind", absent)
    with pytest.raises(OSError, match="Cannot assign requested address"):
        next(free_ports(not_given()))
