"""Ports of servers that are killed and started again at the same address."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

from txmsg.demo.lottery.stage import LotteryStage
from txmsg.demo.registration.secure_stage import SecureStage
from txmsg.runtime.ports import free_ports, not_given, own_port


def test_servers_of_a_demo_have_ports_that_no_connection_is_given_while_they_are_down(tmp_path: Path) -> None:
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


def test_a_port_that_somebody_has_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: int = server.getsockname()[1]
        around = range(taken - 20, taken + 20)
        assert taken not in itertools.islice(free_ports(around), 100)
    assert own_port() != own_port()
