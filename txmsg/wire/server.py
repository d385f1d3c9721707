"""A server of the protocol, for brokers and MetaQ: listens, watches its connections, and stops in order.

Knows no service: it is given the handlers of methods. Errors of txmsg become ERROR frames; any other exception of a
method is logged, and reported as an error of the server. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

from txmsg.errors import BrokerUnavailable, MisuseError
from txmsg.runtime.logs import EventLog
from txmsg.wire.address import UNIX, host_and_port, is_loopback
from txmsg.wire.handlers import Handlers
from txmsg.wire.listening import bound_sockets, stop_listening
from txmsg.wire.server_connection import STOPPING, ServerConnection
from txmsg.wire.shared import Shared

_log = EventLog(__name__)

_CLOSE_S_MAX = 1.0
CLOSING_S_MAX = 2 * _CLOSE_S_MAX
"""Seconds that a server takes to stop beyond its grace, at most."""
_BACKLOG = 1024
_SAY_AGAIN_S = 60.0
_SAY_OPEN_AGAIN_S = 3600.0


class WireServer:
    """A server: listens after `bind` and `start`, until `stop`. handlers: answer its methods. shared: state of its
    connections."""

    def __init__(self, handlers: Handlers, shared: Shared[ServerConnection]) -> None:
        self.shared = shared
        self._handlers = handlers
        if shared.guard is not None:
            shared.guard.on_change = self._look_at_credentials
        self._address = ""
        self._is_open = False
        """True if other machines reach it, and clients need neither a certificate nor, over TLS, a token."""
        self._say_open_at = 0.0
        self._listeners: list[asyncio.Server] = []
        self._out_of_files_at: float | None = None
        self._looking: asyncio.TimerHandle | None = None

    async def bind(self, listen: str) -> str:
        """Bind HOST:PORT, or unix:PATH. Returns it with the assigned port instead of 0. Raises MisuseError."""
        loop = asyncio.get_running_loop()
        if listen.startswith(UNIX):
            path = listen.removeprefix(UNIX)
            try:
                self._listeners.append(
                    await loop.create_unix_server(
                        lambda: ServerConnection(self.shared, self._handlers),
                        path,
                        backlog=_BACKLOG,
                        start_serving=False,
                    )
                )
            except OSError as exc:
                directory = Path(path).parent
                raise MisuseError(
                    f"cannot listen on {listen} ({exc}): is {directory} a directory that may be written to?"
                ) from exc
            return listen
        host, _, port = listen.rpartition(":")
        self._is_open = not is_loopback(host_and_port(listen)[0]) and (
            self.shared.tls is None or not (self.shared.tls.asks_clients or self.shared.guard is not None)
        )
        try:
            for sock in bound_sockets(*host_and_port(listen)):
                self._listeners.append(
                    await loop.create_server(
                        lambda: ServerConnection(self.shared, self._handlers, self.shared.tls),
                        sock=sock,
                        backlog=_BACKLOG,
                        start_serving=False,
                    )
                )
        except (OSError, UnicodeError) as exc:
            raise MisuseError(
                f"cannot listen on {listen}: another program, perhaps another server, uses port {port}, or {host} is "
                "not an address of this machine: look with `ss -ltnp`, or give another --listen HOST:PORT (port 0: a "
                "free one)"
            ) from exc
        self._address = f"{host}:{self._listeners[0].sockets[0].getsockname()[1]}"
        self.shared.table.name = f"the server at {self._address}"
        return self._address

    async def start(self) -> None:
        """Begin to accept connections."""
        assert self._listeners, "bind comes first"
        for listener in self._listeners:
            await listener.start_serving()
        self._end_slow()

    async def stop(self, grace_s: float) -> None:
        """Stop accepting calls; calls in progress have `grace_s` seconds, then they are cancelled. Closes all
        connections."""
        # In this order: with the listeners closed first, no connection can come after the GOAWAYs were sent. GOAWAY
        # names the last call that was begun, so clients repeat all later ones elsewhere without doubt.
        await stop_listening(self._listeners)
        self.shared.is_stopping = True
        if self._looking is not None:
            self._looking.cancel()
        connections = list(self.shared.connections)
        for connection in connections:
            connection.go_away(BrokerUnavailable(STOPPING))
        # Twice: cancelled calls get another moment to roll back.
        for patience_s in (grace_s, _CLOSE_S_MAX):
            tasks = [task for connection in connections for task in connection.tasks()]
            if tasks:
                await asyncio.wait(tasks, timeout=patience_s)
            for connection in connections:
                connection.cancel_calls()
        for connection in connections:
            connection.finish()
        # Only clients that read now can close in answer to our end; a blocking client notices it at its next call.
        closing = [connection.ended for connection in connections if not connection.is_lost and connection.reads_now]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_S_MAX)
        for connection in connections:
            connection.abort("the server has stopped")

    def _look_at_credentials(self) -> None:
        """Apply changed users, rules or limits: disconnect users whose credential is gone, and end waiting calls
        without a right."""
        assert self.shared.guard is not None
        self.shared.usages.apply_limits(self.shared.guard.snapshot.users)
        for connection in list(self.shared.connections):
            connection.look_at_credential()
            connection.look_at_calls()

    def _end_slow(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(self.shared.limits.look_s, self._end_slow)
        now = loop.time()
        for connection in list(self.shared.connections):
            # One timer for all connections instead of one each, which every byte received would have to reset.
            connection.end_if_slow(now)
        self.shared.table.close_slow_strangers()
        if self.shared.tls is not None:
            self.shared.tls.renew()
        if self._is_open and now >= self._say_open_at:
            self._say_open_at = now + _SAY_OPEN_AGAIN_S
            _log.warning(
                "server.insecure",
                "every client that reaches %(address)s may read and change everything: the server listens beyond this "
                "machine, and does not require both TLS and a certificate or token (--insecure)",
                address=self._address,
            )
        self._look_at_files(now)

    def _look_at_files(self, now: float) -> None:
        """Log that no file can be opened: uvloop closes connections then, and logs nothing."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as exc:
            is_due = self._out_of_files_at is None or now - self._out_of_files_at >= _SAY_AGAIN_S
            if exc.errno in (errno.EMFILE, errno.ENFILE) and is_due:
                self._out_of_files_at = now
                _log.error(
                    "server.out_of_files",
                    "no connection can be taken: this process cannot open another file (%(error)s); raise its limit "
                    "(ulimit -n, or LimitNOFILE= of systemd), or allow fewer connections "
                    "(connections_max=%(connections_max)d, %(connections)d are open)",
                    error=exc.strerror,
                    connections_max=self.shared.connections_max,
                    connections=len(self.shared.connections),
                )
