"""Ports for the servers of tests; processes of one run never get the same port."""

from __future__ import annotations

import os

from txmsg.wire.ports import free_ports, not_given


def own_port() -> int:
    """Return a free port that is not given to connections or other tests while its server restarts.

    Each process of the run has every n-th port of those that tested programs do not choose by themselves.
    """
    return next(_ports)


_processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = free_ports(not_given()[::2][_place::_processes])
