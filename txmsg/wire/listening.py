"""Listening sockets: one at each address of a name, the number of clients that the file limit allows, and the end of
listening."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_FILES_RESERVED = 256
"""File descriptors that are not for clients: the database's or the log's, pipes, the listening socket."""
_PORTS_TRIED = 10
_TURNS = 5
"""Turns of the loop between asyncio's accept of a connection and the first step of its protocol, and one to spare."""


def connections_allowed(connections_max: int) -> int:
    """Return the number of clients that may be connected: `connections_max`, or fewer if the process may not open that
    many files.

    Raises the process's soft limit of open files to the number needed, as far as the hard limit allows: running out of
    files would also cut the server off from its database or its log.
    """
    wanted = connections_max + _FILES_RESERVED
    # Soft limits of 1,024 are common and a leftover of select(); the hard limit is the operator's decision.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            allowed = max(soft - _FILES_RESERVED, soft // 2)
            _log.warning(
                "server.connections_limited",
                "at most %(connections)d clients can be connected, not connections_max=%(connections_max)d: the "
                "process may open %(files)d files; raise its hard limit (ulimit -Hn, or LimitNOFILE= of systemd)",
                connections=allowed,
                connections_max=connections_max,
                files=soft,
            )
            return allowed
    return connections_max


async def stop_listening(listeners: Sequence[asyncio.Server]) -> None:
    """Stop accepting connections. Connections that were accepted before have their protocol when it returns.

    Protocols of accepted connections do not exist yet when a server begins to stop: without the wait it would leave
    them open.
    """
    loop = asyncio.get_running_loop()
    for listener in listeners:
        for sock in listener.sockets:
            loop.remove_reader(sock)  # asyncio of Python 3.11 loses those that it has accepted when a server is closed
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    for listener in listeners:
        listener.close()


def loopback() -> str:
    """Return the host of this machine's loopback in HOST:PORT: 127.0.0.1, or [::1] on a machine that has only IPv6.

    Not localhost: whether that name resolves, and to what, depends on files and servers outside of txmsg.
    """
    _, host = loopback_end()
    return f"[{host}]" if ":" in host else host


@cache
def loopback_end() -> tuple[socket.AddressFamily, str]:
    """Return the family of this machine's loopback, and its host without brackets, for sockets."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.bind((host, 0))
        except OSError:  # no such address, or no such family
            continue
        return family, host
    return socket.AF_INET, "127.0.0.1"  # neither: listening there raises


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a socket bound at each address of this name that this machine has, all at the same port, also if port is
    0."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    ends = list(dict.fromkeys((family, end) for family, _, _, _, end in found))
    for tries_left in reversed(range(_PORTS_TRIED)):
        try:
            return _bound_at(ends)
        except OSError as exc:
            if port or not tries_left or exc.errno != errno.EADDRINUSE:
                raise  # else the port that is free at one address is not at another
    raise AssertionError("the last attempt returns or raises")


def _bound_at(ends: Sequence[tuple[int, Any]]) -> list[socket.socket]:
    bound: list[socket.socket] = []
    absent: OSError | None = None
    with ExitStack() as opened:
        for family, (host, port, *rest) in ends:
            end = (host, bound[0].getsockname()[1] if bound else port, *rest)
            try:
                bound.append(_listener(family, end, is_alone=len(ends) == 1))
            except OSError as exc:
                if exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                absent = exc  # as ::1 is where IPv6 is switched off
            else:
                opened.callback(bound[-1].close)
        if not bound:
            raise absent or OSError("the name has no address")
        opened.pop_all()
    return bound


def _listener(family: int, end: Any, *, is_alone: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Otherwise a restarted server could not bind its port for a minute, while the kernel keeps its old connections
        # in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not is_alone:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        sock.bind(end)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
