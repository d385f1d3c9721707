"""Listens for clients, and owns all their connections. Belongs to one loop."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Mapping
from typing import Final

from txmsg.rocketmq.grpc.call import Method
from txmsg.rocketmq.grpc.connection import GrpcConnection
from txmsg.rocketmq.grpc.framing import Code
from txmsg.runtime.logs import EventLog, HourlyLog
from txmsg.wire.access.guard import host_of
from txmsg.wire.address import host_and_port
from txmsg.wire.connection import Traffic
from txmsg.wire.listening import bound_sockets, stop_listening
from txmsg.wire.table import ConnectionTable, ConnectionTableBounds
from txmsg.wire.tls_transport import with_tls

_log = EventLog(__name__)

HTTP2: Final = ("h2",)
"""The protocol that clients ask for in the TLS handshake."""
_LOOK_S: Final = 1.0
_BACKLOG: Final = 1024
_FIRST_BYTE_S: Final = 5.0
"""Seconds until a client's first byte; with TLS, of the encrypted data."""
_CALL_S: Final = 20.0
"""Seconds until the first call that is admitted."""
_FINISH_S_MAX: Final = 1.0
"""Seconds that clients have at the end to read the last bytes."""


class Port:
    """methods: by path. calls_max: concurrent calls of all connections. request_size_bytes_max: of one message of a
    client. requests_size_bytes_max: of the requests of all calls. A large request fails if its connection has more in
    memory than is left.

    reserve: connections of administrators beyond connections_max. Connections without a place in the table are closed,
    and calls beyond calls_max fail. A client that makes more than calls_of_connection_max concurrent calls waits by
    itself.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        connections_max: int,
        calls_max: int,
        calls_of_connection_max: int,
        request_size_bytes_max: int,
        requests_size_bytes_max: int,
        reserve: int = 0,
    ) -> None:
        self.traffic = Traffic()
        self.told_hourly = HourlyLog(_log)
        self.calls_begun = 0
        self.failures: Counter[Code] = Counter()
        """Numbers of calls answered with a gRPC code that is not OK."""
        self._methods = methods
        self.connections_max = connections_max
        self.table = ConnectionTable(
            "the gateway",
            ConnectionTableBounds(
                connections=connections_max, reserve=reserve, first_byte_s=_FIRST_BYTE_S, greeting_s=_CALL_S
            ),
        )
        self.calls_max = calls_max
        self._calls_of_connection_max = calls_of_connection_max
        self._request_size_bytes_max = request_size_bytes_max
        self.requests_size_bytes_max = requests_size_bytes_max
        self.requests_size_bytes = 0
        self.calls = 0
        """The number of running calls."""
        self.connections: set[GrpcConnection] = set()
        self._listeners: list[asyncio.Server] = []
        self._looking: asyncio.TimerHandle | None = None
        self._is_stopping = False

    async def start(self, listen: str, tls: ssl.SSLContext | None = None) -> int:
        """Accept connections at HOST:PORT from now on. Returns the port, a free one for 0. Raises OSError."""
        loop = asyncio.get_running_loop()
        sockets = bound_sockets(*host_and_port(listen))
        for sock in sockets:
            self._listeners.append(
                await loop.create_server(with_tls(self._connected, tls), sock=sock, backlog=_BACKLOG)
            )
        self.table.name = f"the gateway at {listen}"
        self._end_slow()
        return int(sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls; running ones have grace_s, then they are cancelled. Closes all connections."""
        # First no new connections; then GOAWAY has clients make their next calls elsewhere while running calls end.
        await stop_listening(self._listeners)
        self._is_stopping = True
        if self._looking is not None:
            self._looking.cancel()
        connections = list(self.connections)
        for connection in connections:
            connection.go_away()
        if tasks := [task for connection in connections for task in connection.tasks.values()]:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([connection.ended for connection in connections], timeout=_FINISH_S_MAX)
        for connection in list(self.connections):
            connection.abort()

    def _connected(self) -> GrpcConnection:
        return GrpcConnection(
            self._methods,
            calls_max=self._calls_of_connection_max,
            request_size_bytes_max=self._request_size_bytes_max,
            owner=self,
        )

    def made(self, connection: GrpcConnection) -> bool:
        """Implement `ConnectionOwner`."""
        # Before the table decides: `lost` is called for a refused connection, too, and `stop` must find every open one.
        self.connections.add(connection)
        if self._is_stopping:
            return False
        connection.place = self.table.enter(host_of(connection.peer), lambda _: connection.abort())
        return connection.place is not None

    def lost(self, connection: GrpcConnection) -> None:
        """Implement `ConnectionOwner`."""
        self.connections.discard(connection)
        if connection.place is not None:
            self.table.leave(connection.place)

    def admitted(self, connection: GrpcConnection, user: str, *, is_admin: bool) -> None:
        """Implement `ConnectionOwner`."""
        if connection.place is not None:
            self.table.know(connection.place, user, is_admin=is_admin)

    def begin_call(self) -> bool:
        """Implement `ConnectionOwner`."""
        if self.calls >= self.calls_max:
            return False
        self.calls += 1
        self.calls_begun += 1
        return True

    def done(self) -> None:
        """Implement `ConnectionOwner`."""
        self.calls -= 1

    def failed(self, code: Code) -> None:
        """Implement `ConnectionOwner`."""
        self.failures[code] += 1

    def count_bytes(self, size_bytes: int) -> int:
        """Implement `ConnectionOwner`."""
        self.requests_size_bytes += size_bytes
        return self.requests_size_bytes_max - self.requests_size_bytes

    def _end_slow(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(_LOOK_S, self._end_slow)
        for connection in list(self.connections):
            connection.end_if_slow(loop.time())
        self.table.close_slow_strangers()
