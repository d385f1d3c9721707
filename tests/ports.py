"""Ports that stay a test's own while its server is down: of those that the kernel gives to nobody by itself."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

_GIVEN_BY_THE_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000
_END = 32_768
_LEAST = 5_000


def own_port() -> int:
    """One that nobody has, and that no connection or server of another test is given when this one's server restarts.

    Port 0 would give one that any connection may be given in the meantime. Processes of one run never get the same.
    """
    return next(port for port in _ports if _is_free(port))


def _own_ports() -> Iterator[int]:
    """Every so-and-so-many-th is this process's, for ever, from anywhere on."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    end = int(_GIVEN_BY_THE_KERNEL.read_text().split()[0]) if _GIVEN_BY_THE_KERNEL.exists() else _END
    mine = range(_FIRST + place, max(end, _FIRST + _LEAST), processes)
    start = random.SystemRandom().randrange(len(mine))
    return itertools.cycle([*mine[start:], *mine[:start]])


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


_ports = _own_ports()
