"""The connections of a listening socket: who keeps a place in it when it is full. Knows no network and no protocol.

Each server that listens has one: brokers and MetaQ servers, the gateway, consoles and pages, and endpoints of metrics;
docs/limits.md has their sizes and times. A connection is a stranger until it has authenticated, or, where nobody does,
until its first request has come whole.

- Who is known never loses its place to a stranger: where all are known, the newcomer loses.
- Of strangers, the address with most of them loses one: so an address has a share of the table when it is full, and all
  of it when nobody else wants it, as behind a NAT or a proxy. It loses the one that is a stranger for longest. Not the
  newest: a client that greets at once, or a probe, would then be shut out by idle connections of its own address.
- Strangers have `first_byte_s` for their first byte, and `greeting_s` for all that makes them known.
- `reserve` places beyond the table are for administrators.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from txmsg.errors import Overloaded
from txmsg.logs import EventLog

_log = EventLog(__name__)

SAY_AGAIN_S: Final = 60.0
_STRANGERS_MIN: Final = 16
_PART: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of one table."""

    connections: int
    """Known ones, or strangers and known ones."""
    strangers: int = 0
    """Of these; 0 is a quarter, but 16 at least."""
    of_user: int = 0
    """Of one user that is not an administrator; 0 is all but a quarter."""
    reserve: int = 0
    """Places beyond, for administrators."""
    first_byte_s: float = 5.0
    greeting_s: float = 10.0

    @property
    def strangers_max(self) -> int:
        """How many strangers there may be."""
        return self.strangers or max(_STRANGERS_MIN, self.connections // _PART)

    @property
    def of_user_max(self) -> int:
        """How many connections one user may have."""
        return self.of_user or self.connections - self.connections // _PART


class Place:
    """Of one connection. close: ends it at once, and says why."""

    __slots__ = ("address", "close", "has_spoken", "is_in", "is_stranger", "since", "user")

    def __init__(self, address: str, since: float, close: Callable[[str], None]) -> None:
        self.address = address
        """Or the network, of IPv6."""
        self.since = since
        """When it came, or became a stranger again."""
        self.close = close
        self.has_spoken = False
        self.is_stranger = True
        self.is_in = True
        self.user = ""


class Table:
    """name: of the socket, for the log. clock: monotonic. Belongs to one loop."""

    def __init__(self, name: str, bounds: Bounds, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.bounds = bounds
        self.closed: Counter[str] = Counter()
        """Connections that were closed because it was full, by address, since it was last said."""
        self._clock = clock
        self._strangers: dict[str, dict[Place, None]] = {}
        """By address, those that are strangers for longest first."""
        self._of_users: Counter[str] = Counter()
        self.strangers = 0
        self.known = 0
        self._said_at: float | None = None

    def __len__(self) -> int:
        return self.strangers + self.known

    def enter(self, host: str, close: Callable[[str], None]) -> Place | None:
        """A place for a connection from there; None if it loses itself. May close another one."""
        address = network_of(host)
        is_full = len(self) >= self.bounds.connections + self.bounds.reserve
        if is_full or self.strangers >= self.bounds.strangers_max:
            loser = self._loser(address)
            self._say(address if loser is None else loser.address)
            if loser is None:
                return None
            self.leave(loser)
            loser.close("others needed its place")
        place = Place(address, self._clock(), close)
        self._add(place)
        return place

    def spoken(self, place: Place) -> None:
        """Its first byte has come."""
        place.has_spoken = True

    def know(self, place: Place, user: str = "", *, is_admin: bool = False) -> None:
        """It is not a stranger any more, but this user's; "" is none. Raises Overloaded: it is to be closed then."""
        if not place.is_in or not place.is_stranger:
            return
        bounds = self.bounds
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
        place.is_stranger, place.user = False, user
        self.known += 1
        if user:
            self._of_users[user] += 1

    def renew(self, place: Place) -> None:
        """A stranger has come a step further: its time begins again, and others are strangers for longer."""
        if place.is_in and place.is_stranger:
            self._remove(place)
            place.since = self._clock()
            self._add(place)

    def forget(self, place: Place) -> None:
        """It is a stranger again: its request is answered, or its credential is not valid any more."""
        if place.is_in and not place.is_stranger:
            self._leave_known(place)
            place.is_stranger, place.has_spoken, place.since = True, False, self._clock()
            self._add(place)

    def leave(self, place: Place) -> None:
        """The connection is at its end. Leaving twice is fine."""
        if place.is_in:
            place.is_in = False
            if place.is_stranger:
                self._remove(place)
            else:
                self._leave_known(place)

    def look(self) -> None:
        """Closes strangers that take too long: called every second or so."""
        now, bounds = self._clock(), self.bounds
        late = [
            (place, "it said nothing" if not place.has_spoken else "it did not greet")
            for places in self._strangers.values()
            for place in places
            if now - place.since > (bounds.greeting_s if place.has_spoken else bounds.first_byte_s)
        ]
        for place, why in late:
            self.leave(place)
            place.close(why)
        if self.closed and self._said_at is not None and now - self._said_at >= SAY_AGAIN_S:
            self._log_closed(now)

    def _loser(self, address: str) -> Place | None:
        """The stranger that loses its place to one of this address; None if that one loses."""

        def claim(of: str) -> tuple[int, float]:
            places = self._strangers[of]
            return len(places) + (of == address), -next(iter(places)).since

        most = max(self._strangers, key=claim, default=None)
        return None if most is None else next(iter(self._strangers[most]))

    def _add(self, place: Place) -> None:
        self._strangers.setdefault(place.address, {})[place] = None
        self.strangers += 1

    def _remove(self, place: Place) -> None:
        places = self._strangers[place.address]
        del places[place]
        if not places:
            del self._strangers[place.address]
        self.strangers -= 1

    def _leave_known(self, place: Place) -> None:
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
    """Why a connection is not taken."""
    return (
        f"this server has {connections_max} connections, as many as it takes (connections_max): try again later, or "
        "ask another one"
    )


def network_of(address: str) -> str:
    """What strangers are counted by. One network of IPv6 (/64) is one address: its owner has them all."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found) if found.version == 4 else found.exploded[:19]
