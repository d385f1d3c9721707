"""Ports that stay a server's own while it is down: outside the range that the kernel assigns by itself.

The kernel may assign a port that it gave for port 0 to any connection in the meantime, even to one that looks for the
server.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from txmsg.wire.listening import loopback_end

_GIVEN_BY_THE_KERNEL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 10_000
_END: Final = 32_768
_COUNT_MIN: Final = 5_000


def own_port() -> int:
    """Return a free port of loopback that is not assigned to another process while its server restarts.

    A process gets each port once, until it has had all; two processes seldom get the same.
    """
    return next(_ports_of(os.getpid()))


@cache
def _ports_of(_pid: int) -> Iterator[int]:
    """Return the ports of this process in its own order. pid: of this process, so that a forked child has another
    order."""
    return free_ports(not_given()[1::2])


def not_given() -> range:
    """Return the ports that the kernel does not assign by itself. `own_port` uses the odd ones."""
    end = int(_GIVEN_BY_THE_KERNEL.read_text().split()[0]) if _GIVEN_BY_THE_KERNEL.exists() else _END
    return range(_FIRST, max(end, _FIRST + _COUNT_MIN))


def free_ports(ports: range) -> Iterator[int]:
    """Yield ports that are free when asked for, endlessly, from a random position on."""
    start = random.SystemRandom().randrange(len(ports))
    # Tried by binding, not read from /proc: only the kernel knows what it would refuse.
    return filter(_is_free, itertools.cycle([*ports[start:], *ports[:start]]))


def _is_free(port: int) -> bool:
    try:
        family, host = loopback_end()
        with socket.create_server((host, port), family=family):
            return True
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            raise  # no port will be free: there is no loopback, or no file can be opened
        return False
