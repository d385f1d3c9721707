"""State that all connections of a server share: limits, the guard, the table of places, and counts.

Made before the server and its handlers, so that figures can read it. Knows no service and no socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from txmsg.wire.access.failures import Failures
from txmsg.wire.access.guard import Guard
from txmsg.wire.access.limits import NO_LIMITS, Usages
from txmsg.wire.connection import Partial, Traffic
from txmsg.wire.table import ConnectionTable, ConnectionTableBounds
from txmsg.wire.tls import ServerTls

_RESERVE = 16
"""Connections of administrators beyond `connections_max`."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection, the same for authenticated and other ones."""

    first_byte_s: float = 5.0
    """A connection that has sent nothing after these seconds is closed."""
    greeting_s: float = 10.0
    """A connection that has not greeted and authenticated after these seconds is closed."""
    silence_s: float = 10.0
    """A peer that is silent for these seconds is sent a ping; one that does not answer in as long again is
    disconnected."""
    unread_s: float = 30.0
    """A connection that reads nothing of what is sent to it for these seconds is closed."""
    arrival_s: float = 30.0
    """A connection whose request is these seconds behind the following rate is closed."""
    arrival_bytes_per_s: float = 256 * 1024
    arriving_bytes: int = 256 * 1024 * 1024
    """Bytes of incomplete requests in all connections, or of a single one: above, the slowest is refused."""
    calls: int = 1000
    """Calls in progress at once; more are refused."""
    held_bytes: int = 64 * 1024 * 1024
    """Bytes of requests in progress, and also of large replies that are not read: above, no more requests are read."""
    look_s: float = 1.0
    """Seconds between checks of all these limits."""


class Connected(Protocol):
    """A connection, as the other connections of its server and the figures see it."""

    @property
    def calls_in_flight(self) -> int:
        """Number of calls begun and not answered."""
        ...

    @property
    def partial(self) -> Mapping[tuple[int, int], Partial]:
        """Its requests that have arrived in part."""
        ...

    def refuse_arriving(self, partial: Partial) -> None:
        """Refuse one of these: others need its room."""
        ...


ConnectedT = TypeVar("ConnectedT", bound=Connected)


class Shared(Generic[ConnectedT]):
    """The connections of a server, and the state that they share. Belongs to one loop.

    tls: for connections over TCP; None is without TLS. guard: decides on logins and calls; None allows everything.
    """

    def __init__(
        self,
        *,
        connections_max: int,
        limits: ConnectionLimits = ConnectionLimits(),
        tls: ServerTls | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.limits = limits
        self.tls = tls
        self.guard = guard
        self.usages = Usages((lambda _: NO_LIMITS) if guard is None else guard.limits_of)
        """Use of the server by each user. Empty without a guard."""
        self.failures = Failures()
        self.refusing = 0
        """Connections whose refusal is delayed."""
        self.connections_max = connections_max
        self.table = ConnectionTable(
            "the server",
            ConnectionTableBounds(
                connections=connections_max,
                reserve=0 if guard is None else _RESERVE,
                first_byte_s=min(limits.first_byte_s, limits.greeting_s),
                greeting_s=limits.greeting_s,
            ),
        )
        """Places of connections. Refused connections that wait for their end are not in it."""
        self.arriving_bytes = 0
        """Bytes of incomplete requests, in all connections."""
        self.connections: set[ConnectedT] = set()
        self.traffic = Traffic()
        self.calls_begun = 0
        self.calls_failed: Counter[str] = Counter()
        """Calls answered with an error, by its code."""
        self.is_stopping = False

    def make_room(self) -> None:
        """Refuse the slowest of the incomplete requests, unless there is only one."""
        arriving = [
            (partial.due_at, connection, partial)
            for connection in self.connections
            for partial in connection.partial.values()
            if partial.kept
        ]
        if len(arriving) > 1:
            _, connection, partial = min(arriving, key=lambda each: each[0])
            connection.refuse_arriving(partial)
