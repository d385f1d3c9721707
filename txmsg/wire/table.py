"""The connections of a listening socket: who keeps a place in it when it is full. Knows no network and no protocol.

Each server that listens has one: brokers and MetaQ servers, the gateway, consoles and pages, and endpoints of metrics;
docs/limits.md has their sizes and times. A connection is a stranger until it has authenticated, or, where nobody does,
until its first request has come whole.

- Who is known never loses its place to a stranger: where all are known, the newcomer loses.
- Of strangers, the address with most of them loses one: so an address has a share of the table when it is full, and all
  of it when nobody else wants it, as behind a NAT or a proxy. It loses the one that is a stranger for longest. Not the
  newest: a client that greets at once, or a probe, would then be shut out by idle connections of its own address.
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
"""Of an address: minus the count of its strangers, since when its oldest is one, and its number. The least loses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTableBounds:
    """Of one table."""

    connections: int
    """Known ones, or strangers and known ones."""
    strangers: int = 0
    """Of these, once they are `young_s` old or the table is full; 0 is a quarter, but 16 at least."""
    of_user: int = 0
    """Of one user that is not an administrator; 0 is all but a quarter."""
    reserve: int = 0
    """Places beyond, for administrators."""
    young_s: float = 1.0
    first_byte_s: float = 5.0
    greeting_s: float = 10.0

    @property
    def strangers_max(self) -> int:
        """How many strangers there may be that had time to greet."""
        return self.strangers or max(_STRANGERS_MIN, self.connections // _PART)

    @property
    def of_user_max(self) -> int:
        """How many connections one user may have."""
        return self.of_user or self.connections - self.connections // _PART


class ConnectionPlace:
    """Of one connection. close: ends it at once, and says why."""

    __slots__ = ("address", "close", "ends_itself", "has_spoken", "is_in", "is_stranger", "number", "since", "user")

    def __init__(self, address: str, since: float, close: Callable[[str], None]) -> None:
        self.address = address
        """Or the network, of IPv6."""
        self.since = since
        """When it came, or became a stranger again."""
        self.number = 0
        """Of strangers: the later, the larger."""
        self.close = close
        self.has_spoken = False
        self.ends_itself = False
        """Whether its time as a stranger is kept elsewhere."""
        self.is_stranger = True
        self.is_in = True
        self.user = ""


class ConnectionTable:
    """name: of the socket, for the log. clock: monotonic. Belongs to one loop."""

    def __init__(
        self, name: str, bounds: ConnectionTableBounds, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.bounds = bounds
        self.closed: Counter[str] = Counter()
        """Connections that were closed because it was full, by address, since it was last said."""
        self._clock = clock
        self._strangers: dict[str, dict[ConnectionPlace, None]] = {}
        """By address, those that are strangers for longest first."""
        self._ranks: list[_Rank] = []
        """A heap with that of each address, and some that are not true any more."""
        self._numbers = 0
        self._of_users: Counter[str] = Counter()
        self.strangers = 0
        self.known = 0
        self._said_at: float | None = None

    def __len__(self) -> int:
        return self.strangers + self.known

    def enter(self, host: str, close: Callable[[str], None]) -> ConnectionPlace | None:
        """A place for a connection from there; None if it loses itself. May close another one."""
        address = network_of(host)
        now, bounds = self._clock(), self.bounds
        if len(self) >= bounds.connections + bounds.reserve or self.strangers >= bounds.strangers_max:
            loser = self._loser(address)
            has_room = len(self) < bounds.connections
            if not has_room or (loser is not None and now - loser.since >= bounds.young_s):
                self._say(address if loser is None else loser.address)
                if loser is None:
                    return None
                self.leave(loser)
                loser.close("others needed its place")
        place = ConnectionPlace(address, now, close)
        self._add(place)
        return place

    def spoken(self, place: ConnectionPlace) -> None:
        """Its first byte has come."""
        place.has_spoken = True

    def know(self, place: ConnectionPlace, user: str = "", *, is_admin: bool = False) -> None:
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
        place.is_stranger, place.ends_itself, place.user = False, False, user
        self.known += 1
        if user:
            self._of_users[user] += 1

    def renew(self, place: ConnectionPlace) -> None:
        """A stranger has come a step further: its time begins again, and others are strangers for longer."""
        if place.is_in and place.is_stranger:
            self._remove(place)
            place.since = self._clock()
            self._add(place)

    def forget_place(self, place: ConnectionPlace, *, ends_itself: bool = False) -> None:
        """It is a stranger again: its request is answered, or its credential is not valid any more.

        ends_itself: it may lose its place, but has no time here.
        """
        if not place.is_in or (place.is_stranger and not (place.ends_itself or ends_itself)):
            return
        if place.is_stranger:
            self._remove(place)
        else:
            self._leave_known(place)
        place.is_stranger, place.has_spoken, place.since = True, False, self._clock()
        place.ends_itself = ends_itself
        self._add(place)

    def leave(self, place: ConnectionPlace) -> None:
        """The connection is at its end. Leaving twice is fine."""
        if place.is_in:
            place.is_in = False
            if place.is_stranger:
                self._remove(place)
            else:
                self._leave_known(place)

    def close_slow_strangers(self) -> None:
        """Closes strangers that take too long: called every second or so."""
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
        """Logs how many were closed since that was last said, at most once a minute."""
        now = self._clock()
        if self.closed and self._said_at is not None and now - self._said_at >= SAY_AGAIN_S:
            self._log_closed(now)

    def _loser(self, address: str) -> ConnectionPlace | None:
        """The stranger that loses its place to one of this address; None if that one loses."""

        while self._ranks and self._ranks[0] != self._rank(self._ranks[0][-1]):
            heappop(self._ranks)
        if not self._ranks:
            return None
        most = min(self._ranks[0], self._rank(address, further=1) or self._ranks[0])
        return next(iter(self._strangers[most[-1]]))

    def _rank(self, address: str, *, further: int = 0) -> _Rank | None:
        """With so many further strangers; None for an address without any."""
        places = self._strangers.get(address)
        if not places:
            return None
        oldest = next(iter(places))
        return -(len(places) + further), oldest.since, oldest.number, address

    def _note_rank(self, address: str) -> None:
        """The strangers of this address have changed."""
        rank = self._rank(address)
        if rank is not None:
            heappush(self._ranks, rank)
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
