"""A server of the protocol, for brokers and MetaQ: what it answers, and what all of its connections share.

Knows no service: what answers a method is given. Errors of txmsg become ERROR frames; whatever else a method raises is
logged, and told as an error of the server. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txmsg.access.failures import Failures
from txmsg.access.guard import Guard
from txmsg.access.limits import Usages
from txmsg.errors import BrokerUnavailable, MisuseError
from txmsg.logs import EventLog
from txmsg.wire.address import UNIX, host_and_port, is_loopback
from txmsg.wire.codec import MESSAGE_SIZE_BYTES_MAX
from txmsg.wire.connection import Traffic
from txmsg.wire.listening import bound_sockets, stop_listening
from txmsg.wire.method import Method, methods_of
from txmsg.wire.server_call import Handler
from txmsg.wire.server_connection import STOPPING, Limits, ServerConnection
from txmsg.wire.table import Bounds, Table
from txmsg.wire.tls import ServerTls
from txmsg.wire.values import SIZE_BYTES_MAX

_log = EventLog(__name__)

_CLOSE_S_MAX = 1.0
CLOSING_S_MAX = 2 * _CLOSE_S_MAX
"""How much longer than its grace a server takes to stop."""
_BACKLOG = 1024
_RESERVE = 16
"""Connections of administrators beyond `connections_max`."""
_SAY_AGAIN_S = 60.0
_SAY_OPEN_AGAIN_S = 3600.0


class Server:
    """Listens after `bind` and `start`, until `stop`.

    services: what answers the methods of each, by the generated class that lists them: a method of the same name, as
    `async def send(request) -> reply`; or, where messages are many, with a `ServerCall`: `attach(call)`,
    `fetch(request, call)`; or, where a request has data, with that: `append(request, data) -> reply`. One that is
    marked by `with_call` gets a `ServerCall`, too.
    larger_requests: the size of those that may be larger than `request_size_bytes_max`, by the method's name.
    tls: for connections over TCP; None is without TLS. guard: who may connect, and call what; None is everybody.
    """

    def __init__(
        self,
        services: Mapping[type, object],
        *,
        connections_max: int,
        request_size_bytes_max: int = MESSAGE_SIZE_BYTES_MAX,
        larger_requests: Mapping[str, int] = {},
        limits: Limits = Limits(),
        tls: ServerTls | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.limits = limits
        self.tls = tls
        self.guard = guard
        self.failures = Failures()
        self.refusing = 0
        """Connections whose refusal waits."""
        if guard is not None:
            guard.on_change = self._look_at_credentials
            self.usages = Usages(guard.limits_of)
        self._address = ""
        self._is_open = False
        """Whether other machines reach it, and clients need neither a certificate nor, over TLS, a token."""
        self._say_open_at = 0.0
        self.connections_max = connections_max
        self.table = Table(
            "the server",
            Bounds(
                connections=connections_max,
                reserve=0 if guard is None else _RESERVE,
                first_byte_s=min(limits.first_byte_s, limits.greeting_s),
                greeting_s=limits.greeting_s,
            ),
        )
        """Connections that were refused, and wait for their end, are not in it."""
        self.arriving_bytes = 0
        """Of requests that have not come whole, in all connections."""
        self._request_size_bytes_max = request_size_bytes_max
        self._larger_requests = larger_requests
        self.handlers: dict[str, tuple[Method[Any, Any], Handler]] = {
            method.name: (method, getattr(answering, name))
            for service, answering in services.items()
            for name, method in methods_of(service).items()
        }
        self.connections: set[ServerConnection] = set()
        self.traffic = Traffic()
        self.calls_begun = 0
        self.calls_failed: Counter[str] = Counter()
        """Calls answered with an error, by its code."""
        self.is_stopping = False
        self._listeners: list[asyncio.Server] = []
        self._out_of_files_at: float | None = None
        self._looking: asyncio.TimerHandle | None = None

    async def bind(self, listen: str) -> str:
        """Takes HOST:PORT, or unix:PATH. Returns it with the port that was taken for 0. Raises MisuseError."""
        loop = asyncio.get_running_loop()
        if listen.startswith(UNIX):
            path = listen.removeprefix(UNIX)
            try:
                self._listeners.append(
                    await loop.create_unix_server(
                        lambda: ServerConnection(self), path, backlog=_BACKLOG, start_serving=False
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
            self.tls is None or not (self.tls.asks_clients or self.guard is not None)
        )
        try:
            for sock in bound_sockets(*host_and_port(listen)):
                self._listeners.append(
                    await loop.create_server(
                        lambda: ServerConnection(self, self.tls), sock=sock, backlog=_BACKLOG, start_serving=False
                    )
                )
        except (OSError, UnicodeError) as exc:
            raise MisuseError(
                f"cannot listen on {listen}: another program, perhaps another server, uses port {port}, or {host} is "
                "not an address of this machine: look with `ss -ltnp`, or give another --listen HOST:PORT (port 0: a "
                "free one)"
            ) from exc
        self._address = f"{host}:{self._listeners[0].sockets[0].getsockname()[1]}"
        self.table.name = f"the server at {self._address}"
        return self._address

    async def start(self) -> None:
        """Takes connections from now on."""
        assert self._listeners, "bind comes first"
        for listener in self._listeners:
            await listener.start_serving()
        self._look()

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls; those under way have `grace_s`, then they are cancelled. Closes all connections."""
        await stop_listening(self._listeners)
        self.is_stopping = True
        if self._looking is not None:
            self._looking.cancel()
        connections = list(self.connections)
        for connection in connections:
            connection.go_away(BrokerUnavailable(STOPPING))
        for patience_s in (grace_s, _CLOSE_S_MAX):
            tasks = [task for connection in connections for task in connection.tasks()]
            if tasks:
                await asyncio.wait(tasks, timeout=patience_s)
            for connection in connections:
                connection.cancel_calls()
        for connection in connections:
            connection.finish()
        closing = [connection.ended for connection in connections if not connection.is_lost and connection.reads_now]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_S_MAX)
        for connection in connections:
            connection.abort("the server has stopped")

    def request_size_bytes_max(self, method: str) -> int:
        """How large a request of this method may be."""
        if method in self.handlers and self.handlers[method][0].is_json:
            return SIZE_BYTES_MAX
        return self._larger_requests.get(method, self._request_size_bytes_max)

    def make_room(self) -> None:
        """Refuses the slowest of the requests that have not come whole, unless there is only one."""
        arriving = [
            (partial.due_at, connection, partial)
            for connection in self.connections
            for partial in connection.partial.values()
            if partial.kept
        ]
        if len(arriving) > 1:
            _, connection, partial = min(arriving, key=lambda each: each[0])
            connection.refuse_arriving(partial)

    def _look_at_credentials(self) -> None:
        """Users, rules or limits have changed: who has lost its credential is cut off, and calls that wait end."""
        assert self.guard is not None
        self.usages.look(self.guard.snapshot.users)
        for connection in list(self.connections):
            connection.look_at_credential()
            connection.look_at_calls()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(self.limits.look_s, self._look)
        now = loop.time()
        for connection in list(self.connections):
            connection.look(now)
        self.table.look()
        if self.tls is not None:
            self.tls.renew()
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
        """Says that no file can be opened. uvloop closes connections then, and says nothing."""
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
                    connections_max=self.connections_max,
                    connections=len(self.connections),
                )
