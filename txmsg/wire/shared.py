"""What all connections of a server share: their limits, who may connect, the table of places, and what is counted.

Made before the server and what it answers, so that figures can read it. Knows no service and no socket.
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
    """What one connection may take of a server: a stranger's as a friend's."""

    first_byte_s: float = 5.0
    """A connection of which nothing has come by then is closed."""
    greeting_s: float = 10.0
    """So is one that has not greeted and authenticated by then."""
    silence_s: float = 10.0
    """A peer that has said nothing for so long is sent a ping; one that does not answer in as long again is cut off."""
    unread_s: float = 30.0
    """So is one that takes nothing of what is sent to it for so long."""
    arrival_s: float = 30.0
    """And one whose request is so far behind this rate:"""
    arrival_bytes_per_s: float = 256 * 1024
    arriving_bytes: int = 256 * 1024 * 1024
    """Of requests that have not come whole, in all connections, or one alone: above it, the slowest is refused."""
    calls: int = 1000
    """Calls under way at once; more are refused."""
    held_bytes: int = 64 * 1024 * 1024
    """Requests under way, and so much of large replies that were not taken: above it, no more requests are read."""
    look_s: float = 1.0
    """How often all of this is looked at."""


class Connected(Protocol):
    """A connection, as the others of its server and the figures see it."""

    @property
    def calls_in_flight(self) -> int:
        """Calls begun and not answered."""
        ...

    @property
    def partial(self) -> Mapping[tuple[int, int], Partial]:
        """Its requests that have not come whole."""
        ...

    def refuse_arriving(self, partial: Partial) -> None:
        """Refuses one of these: others need its room."""
        ...


ConnectedT = TypeVar("ConnectedT", bound=Connected)


class Shared(Generic[ConnectedT]):
    """The connections of a server, and what they share. Belongs to one loop.

    tls: for connections over TCP; None is without TLS. guard: who may connect, and call what; None is everybody.
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
        """What users take of the server. Nobody, without a guard."""
        self.failures = Failures()
        self.refusing = 0
        """Connections whose refusal waits."""
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
        """Connections that were refused, and wait for their end, are not in it."""
        self.arriving_bytes = 0
        """Of requests that have not come whole, in all connections."""
        self.connections: set[ConnectedT] = set()
        self.traffic = Traffic()
        self.calls_begun = 0
        self.calls_failed: Counter[str] = Counter()
        """Calls answered with an error, by its code."""
        self.is_stopping = False

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
