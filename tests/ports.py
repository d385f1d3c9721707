"""Ports for the servers of tests. Processes of one run never get the same."""

from __future__ import annotations

import os

from txmsg.wire.ports import free_ports, not_given


def own_port() -> int:
    """One that nobody has, and that no connection or server of another test is given when this one's server restarts.

    Every so-and-so-many-th is this process's, of those that programs that are tested do not take by themselves.
    """
    return next(_ports)


_processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = free_ports(not_given()[::2][_place::_processes])
