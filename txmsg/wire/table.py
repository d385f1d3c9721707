"""The connections of a listening socket, and the choice of the one that is closed when it is full. Knows no network and
no protocol.

Each server that listens has one: brokers and MetaQ servers, the gateway, consoles and pages, and endpoints of metrics;
docs/limits.md has their sizes and times. A connection is a stranger until it has authenticated, or, without
authentication, until its first request has come whole.

- A known connection never loses its place to a stranger: if all are known, the newcomer loses.
- Of strangers, the address with most of them loses one: so an address has a share of the table when it is full, and all
  of it when no other address wants it, as behind a NAT or a proxy. It loses the one that is a stranger for longest. Not
  the newest: a client that greets at once, or a probe, would then be shut out by idle connections of its own address.
- The bound on strangers holds for those that had time to greet: while the table has room, none younger than `young_s`
  loses its place. After a restart all clients come at once, and many are accepted before the first greeting is read.
- Strangers have `first_byte_s` for their first byte, and `greeting_s` for all that makes them known.
- `reserve` places beyond the table are for administrators.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from ipaddress import ip_address
from typing import Final, TypeAlias

from txmsg.errors import Overloaded
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

SAY_AGAIN_S: Final = 60.0
_STRANGERS_MIN: Final = 16
_PART: Final = 4
_STALE_MAX: Final = 64

_Rank: TypeAlias = tuple[int, float, int, str]
"""An address's rank: minus the count of its strangers, since when its oldest is one, and its number. The smallest
loses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTableBounds:
    """Bounds of one table."""

    connections: int
    """Known connections, or known ones and strangers together."""
    strangers: int = 0
    """Strangers among these, once they are `young_s` old or the table is full; 0 means a quarter, but at least 16."""
    of_user: int = 0
    """Connections of one user that is not an administrator; 0 means all but a quarter."""
    reserve: int = 0
    """Places beyond these, for administrators."""
    young_s: float = 1.0
    first_byte_s: float = 5.0
    greeting_s: float = 10.0

    @property
    def strangers_max(self) -> int:
        """Number of strangers that had time to greet, at most."""
        return self.strangers or max(_STRANGERS_MIN, self.connections // _PART)

    @property
    def of_user_max(self) -> int:
        """Number of connections of one user, at most."""
        return self.of_user or self.connections - self.connections // _PART


class ConnectionPlace:
    """The place of one connection. close: ends the connection at once, with a reason."""

    __slots__ = ("address", "close", "ends_itself", "has_spoken", "is_in", "is_stranger", "number", "since", "user")

    def __init__(self, address: str, since: float, close: Callable[[str], None]) -> None:
        self.address = address
        """The address of the client, or its network in case of IPv6."""
        self.since = since
        """Clock time at which it came, or became a stranger again."""
        self.number = 0
        """Order of strangers: the later, the larger."""
        self.close = close
        self.has_spoken = False
        self.ends_itself = False
        """True if its time as a stranger is watched elsewhere."""
        self.is_stranger = True
        self.is_in = True
        self.user = ""


class ConnectionTable:
    """The table of one listening socket. name: of the socket, for the log. clock: monotonic. Belongs to one loop."""

    def __init__(
        self, name: str, bounds: ConnectionTableBounds, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.bounds = bounds
        self.closed: Counter[str] = Counter()
        """Connections closed because the table was full, by address, since the last log line."""
        self._clock = clock
        self._strangers: dict[str, dict[ConnectionPlace, None]] = {}
        """Strangers by address; within an address, in the order in which they became strangers."""
        self._ranks: list[_Rank] = []
        """A heap with the rank of each address, and some outdated ranks."""
        self._numbers = 0
        self._of_users: Counter[str] = Counter()
        self.strangers = 0
        self.known = 0
        self._said_at: float | None = None

    def __len__(self) -> int:
        return self.strangers + self.known

    def enter(self, host: str, close: Callable[[str], None]) -> ConnectionPlace | None:
        """Return a place for a connection from this host; None if the newcomer loses. May close another connection."""
        address = network_of(host)
        now, bounds = self._clock(), self.bounds
        if len(self) >= bounds.connections + bounds.reserve or self.strangers >= bounds.strangers_max:
            loser = self._loser(address)
            has_room = len(self) < bounds.connections
            if not has_room or (loser is not None and now - loser.since >= bounds.young_s):
                self._say(address if loser is None else loser.address)
                if loser is None:
                    return None
                # Removed before it is closed: closing calls back into `leave`, and the newcomer needs the place now,
                # not when the transport has ended.
                self.leave(loser)
                loser.close("others needed its place")
        place = ConnectionPlace(address, now, close)
        self._add(place)
        return place

    def spoken(self, place: ConnectionPlace) -> None:
        """Note that the first byte of a connection has come."""
        place.has_spoken = True

    def know(self, place: ConnectionPlace, user: str = "", *, is_admin: bool = False) -> None:
        """Make a stranger a known connection of this user; "" is no user. Raises Overloaded: the connection has to be
        closed then."""
        if not place.is_in or not place.is_stranger:
            return
        bounds = self.bounds
        # Only known connections count here: strangers never keep out one that has authenticated.
        if self.known >= bounds.connections + (bounds.reserve if is_admin else 0):
            self._say(place.address)
            raise Overloaded(full_text(bounds.connections))
        if user and not is_admin and self._of_users[user] >= bounds.of_user_max:
            self._say(place.address)
            raise Overloaded(
                f"user {user} has {self._of_users[user]} connections, as many as one user may have of the "
                f"{bounds.connections} of this server: try again later, or ask another one"
            )
        self._remove(place)
        place.is_stranger, place.ends_itself, place.user = False, False, user
        self.known += 1
        if user:
            self._of_users[user] += 1

    def renew(self, place: ConnectionPlace) -> None:
        """Restart the time of a stranger that has made progress; it loses its place after older strangers."""
        if place.is_in and place.is_stranger:
            self._remove(place)
            place.since = self._clock()
            self._add(place)

    def forget_place(self, place: ConnectionPlace, *, ends_itself: bool = False) -> None:
        """Make a connection a stranger again: its request is answered, or its credential is no longer valid.

        ends_itself: it may lose its place, but its time is watched elsewhere.
        """
        if not place.is_in or (place.is_stranger and not (place.ends_itself or ends_itself)):
            return
        if place.is_stranger:
            self._remove(place)
        else:
            self._leave_known(place)
        # Since now, and as the newest stranger: between two requests a client of HTTP has the same time as a new one.
        place.is_stranger, place.has_spoken, place.since = True, False, self._clock()
        place.ends_itself = ends_itself
        self._add(place)

    def leave(self, place: ConnectionPlace) -> None:
        """Remove a connection that has ended. Leaving twice is fine."""
        if place.is_in:
            place.is_in = False
            if place.is_stranger:
                self._remove(place)
            else:
                self._leave_known(place)

    def close_slow_strangers(self) -> None:
        """Close strangers that take too long. Called every second or so."""
        now, bounds = self._clock(), self.bounds
        late = [
            (place, "it said nothing" if not place.has_spoken else "it did not greet")
            for places in self._strangers.values()
            for place in places
            if not place.ends_itself
            and now - place.since > (bounds.greeting_s if place.has_spoken else bounds.first_byte_s)
        ]
        for place, why in late:
            self.leave(place)
            place.close(why)
        self.say_closed()

    def say_closed(self) -> None:
        """Log the number of connections closed since the last log line, at most once a minute."""
        now = self._clock()
        if self.closed and self._said_at is not None and now - self._said_at >= SAY_AGAIN_S:
            self._log_closed(now)

    def _loser(self, address: str) -> ConnectionPlace | None:
        """Return the stranger that loses its place to one of this address; None if the newcomer loses."""

        # Outdated ranks are dropped when they reach the top, because a heap cannot remove from its middle. So each
        # operation costs a logarithm, also during a flood of connections.
        while self._ranks and self._ranks[0] != self._rank(self._ranks[0][-1]):
            heappop(self._ranks)
        if not self._ranks:
            return None
        # The newcomer counts for its own address: an address at the same number as the fullest one replaces a stranger
        # of its own and not of another address.
        most = min(self._ranks[0], self._rank(address, further=1) or self._ranks[0])
        return next(iter(self._strangers[most[-1]]))

    def _rank(self, address: str, *, further: int = 0) -> _Rank | None:
        """Return the rank of an address with `further` more strangers; None for an address without strangers."""
        places = self._strangers.get(address)
        if not places:
            return None
        oldest = next(iter(places))
        return -(len(places) + further), oldest.since, oldest.number, address

    def _note_rank(self, address: str) -> None:
        """Update the rank of an address whose strangers have changed."""
        rank = self._rank(address)
        if rank is not None:
            heappush(self._ranks, rank)
        # Rebuilt when more than half is outdated, so memory follows the number of addresses and not the number of
        # connections that ever came.
        if len(self._ranks) > 2 * len(self._strangers) + _STALE_MAX:
            self._ranks = [rank for rank in map(self._rank, self._strangers) if rank is not None]
            heapify(self._ranks)

    def _add(self, place: ConnectionPlace) -> None:
        self._numbers += 1
        place.number = self._numbers
        self._strangers.setdefault(place.address, {})[place] = None
        self.strangers += 1
        self._note_rank(place.address)

    def _remove(self, place: ConnectionPlace) -> None:
        places = self._strangers[place.address]
        del places[place]
        if not places:
            del self._strangers[place.address]
        self.strangers -= 1
        self._note_rank(place.address)

    def _leave_known(self, place: ConnectionPlace) -> None:
        self.known -= 1
        if place.user:
            self._of_users[place.user] -= 1
            if not self._of_users[place.user]:
                del self._of_users[place.user]
            place.user = ""

    def _say(self, address: str) -> None:
        self.closed[address] += 1
        now = self._clock()
        if self._said_at is None or now - self._said_at >= SAY_AGAIN_S:
            self._log_closed(now)

    def _log_closed(self, now: float) -> None:
        self._said_at = now
        [(address, count)] = self.closed.most_common(1)
        _log.warning(
            "server.full",
            "%(name)s has no room for all connections (%(known)d, and %(strangers)d that have not authenticated or "
            "asked; at most %(connections)d): %(closed)d were closed, %(count)d of them from %(peer)s",
            name=self.name,
            known=self.known,
            strangers=self.strangers,
            connections=self.bounds.connections,
            closed=self.closed.total(),
            count=count,
            peer=address,
        )
        self.closed.clear()


def full_text(connections_max: int) -> str:
    """Return the reason for which a connection is refused."""
    return (
        f"this server has {connections_max} connections, as many as it takes (connections_max): try again later, or "
        "ask another one"
    )


def network_of(address: str) -> str:
    """Return the key by which strangers are counted. An IPv6 network (/64) counts as one address, because its owner has
    all of them."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found) if found.version == 4 else found.exploded[:19]
