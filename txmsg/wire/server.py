"""The gRPC server of a broker or of MetaQ: where it listens, and its bounds against strangers on the port."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable

import grpc

from txmsg.errors import MisuseError
from txmsg.wire.answers import RefuseUnreadable
from txmsg.wire.codec import CHANNEL_OPTIONS, MESSAGE_SIZE_BYTES_MAX

__all__ = ["bind", "connections_allowed", "new_server"]

logger = logging.getLogger(__name__)

_FILES_RESERVED = 256
"""File descriptors that are not for clients: the database's or the log's, pipes, the listening socket."""
_HALF_OPEN_MAX_MS = 10_000
"""A connection that has not finished its HTTP/2 handshake by then is closed."""
_PING_TIMEOUT_MS = 10_000
"""So is one that has not answered a ping; there is a ping every keepalive_time_ms, with and without calls.
grpc.keepalive_timeout_ms alone closes nothing: gRPC waits for grpc.http2.ping_timeout_ms, a minute by default (ran)."""
_STREAMS_PER_CONNECTION_MAX = 1000


def connections_allowed(connections_max: int) -> int:
    """How many clients may be connected: `connections_max`, or fewer where the process may not open that many files.

    Raises the process's soft limit of open files to what it needs, as far as the hard limit lets it: running out of
    them would also keep the server from its database or its log.
    """
    wanted = connections_max + _FILES_RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            allowed = max(soft - _FILES_RESERVED, soft // 2)
            logger.warning(
                "at most %d clients can be connected, not connections_max=%d: the process may open %d files; raise its "
                "hard limit (ulimit -Hn, or LimitNOFILE= of systemd)",
                allowed,
                connections_max,
                soft,
            )
            return allowed
    return connections_max


def new_server(
    *services: Callable[[grpc.aio.Server], None],
    connections_max: int,
    request_size_bytes_max: int = MESSAGE_SIZE_BYTES_MAX,
) -> grpc.aio.Server:
    """A server, not started. Each of `services` adds one to it: add_NotifyServicer_to_server with its servicer."""
    server = grpc.aio.server(
        interceptors=[RefuseUnreadable()],
        options=[
            *(each for each in CHANNEL_OPTIONS if each[0] != "grpc.max_receive_message_length"),
            ("grpc.max_receive_message_length", request_size_bytes_max),
            ("grpc.so_reuseport", 0),  # else two servers would share a port, and clients find now one, now the other
            ("grpc.max_allowed_incoming_connections", connections_max),
            ("grpc.max_concurrent_streams", _STREAMS_PER_CONNECTION_MAX),
            ("grpc.server_handshake_timeout_ms", _HALF_OPEN_MAX_MS),
            ("grpc.http2.settings_timeout", _HALF_OPEN_MAX_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
        ],
    )
    for add_to in services:
        add_to(server)
    return server


def bind(server: grpc.aio.Server, listen: str) -> str:
    """Listens; returns HOST:PORT with the port that was taken for 0. Raises MisuseError when it cannot."""
    host, _, port = listen.rpartition(":")
    try:
        bound = server.add_insecure_port(listen)
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise MisuseError(
            f"cannot listen on {listen}: another program, perhaps another server, uses port {port}, or {host} is not "
            "an address of this machine: look with `ss -ltnp`, or give another --listen HOST:PORT (port 0: a free "
            "one)"
        )
    return f"{host}:{bound if port == '0' else port}"
