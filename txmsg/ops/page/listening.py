"""A socket to listen on, and uvicorn with our connections and TLS, and without signal handlers of its own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from txmsg.errors import MisuseError
from txmsg.ops.page.connection import BrowserConnection, Watched, new_table
from txmsg.wire.address import check_address, host_and_port
from txmsg.wire.table import ConnectionTable
from txmsg.wire.tls import ServerTls
from txmsg.wire.tls_transport import with_tls

_STOP_S: Final = 3
_PROXIES: Final = "FORWARDED_ALLOW_IPS"
"""uvicorn's variable: the proxies whose X-Forwarded-For and -Proto count."""


class PageServer(uvicorn.Server):
    """A server of an application. Leaves signals to the caller: uvicorn's handlers would end the process by
    the signal.
    """

    def __init__(self, app: ASGIApp, tls: ServerTls | None = None, table: ConnectionTable | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                # Not uvicorn's default, which trusts every program of this machine about the origin of a request.
                proxy_headers=_PROXIES in os.environ,
                timeout_graceful_shutdown=_STOP_S,
            )
        )
        self._context = None if tls is None else tls.for_web()
        self.watched = Watched(new_table("the web server") if table is None else table)
        self._watching: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, with our connections."""
        assert sockets, "it listens on sockets that it is given"
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        self.watched.table.name = f"the web server at {sockets[0].getsockname()}"

        def connection() -> BrowserConnection:
            return BrowserConnection(
                self.watched, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        made = with_tls(connection, self._context)
        self.servers = [await loop.create_server(made, sock=sock, backlog=self.config.backlog) for sock in sockets]
        self._watching = loop.create_task(self.watched.run(), name="connections of browsers")
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does."""
        if self._watching is not None:
            self._watching.cancel()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def listening(listen: str, *, send_buffer_size_bytes: int | None = None) -> Iterator[tuple[socket.socket, str]]:
    """Return a listening socket, and its HOST:PORT with the port that was taken for 0. Raises MisuseError if it cannot
    listen.

    send_buffer_size_bytes: of each connection.
    """
    host, port = host_and_port(check_address("--listen", listen))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as exc:
        raise MisuseError(
            f"cannot listen on {listen}: another program, perhaps another server, uses port {port}, or {host} is not "
            "an address of this machine: look with `ss -ltnp`, or give another --listen HOST:PORT (port 0: a free "
            "one)"
        ) from exc
    with listener:
        if send_buffer_size_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_size_bytes)
        yield listener, f"{listen.strip().rpartition(':')[0]}:{listener.getsockname()[1]}"
