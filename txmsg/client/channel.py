"""Connects to brokers: one channel to each, and a choice of the one to call.

Any broker takes any message, so calls go to the current broker, chosen at random, until it fails. Channels reconnect by
themselves; `retrying` decides what is retried, and for how long. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from tenacity import AsyncRetrying, retry_if_exception_type, stop_before_delay, wait_random_exponential

from txmsg.client.memory import MemoryBlockingChannel, MemoryChannel
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeUnknown, TxmsgError, Unauthenticated
from txmsg.runtime.logs import EventLog
from txmsg.runtime.process import check_not_patched
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.brokers import MEMORY
from txmsg.wire.channel import Channel, ClientStream
from txmsg.wire.credential import TokenChoice, client_access
from txmsg.wire.method import Method, ReplyT, RequestT
from txmsg.wire.tls import TlsChoice
from txmsg.wire.v1.txmsg_pb2 import RouteChanged, RouteRequest
from txmsg.wire.v1.txmsg_rpc import Notify

_log = EventLog(__name__)

RETRYABLE = (BrokerUnavailable, OutcomeUnknown)

_ATTEMPT_S_MIN = 0.25
_AVOIDED_S = 5.0
"""Seconds for which a broker that failed is chosen only if there is no other."""
_SHARD_SIZE_BYTES = 16
_KNOCK_S_MAX = 2.0
_LINGER_S = 15.0
"""Seconds that a broker which has gone may still be told the results of its messages."""


class BrokerCalls(Protocol):
    """Calls to one broker, on a loop: the interface of `Channel`."""

    async def call(self, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float) -> ReplyT: ...
    async def stream(
        self, method: Method[RequestT, ReplyT], first: RequestT, *, timeout_s: float
    ) -> ClientStream[RequestT, ReplyT]: ...
    async def close(self) -> None: ...


class BlockingCalls(Protocol):
    """Calls to one broker, for threads: the interface of `BlockingChannel`."""

    def call(self, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float) -> ReplyT: ...
    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class KnownBroker:
    """A broker as this client reaches it. name: its address as the brokers know it, "" before it has said so.

    shard: its Notify database, empty before it has said so.
    """

    address: str
    is_given: bool
    channel: BrokerCalls
    blocking: BlockingCalls
    name: str = ""
    shard: bytes = b""
    is_cut_off: bool = False
    failed_at: float = -math.inf

    def call_blocking(self, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float) -> ReplyT:
        """Make one attempt from a thread. Raises as `Brokers.call`; report that to the loop then, see
        `Brokers.avoid`."""
        reply = self.blocking.call(method, request, timeout_s=timeout_s)
        self.failed_at = -math.inf
        return reply

    async def close(self) -> None:
        """Close both channels; calls in progress fail. Closing twice is fine."""
        self.blocking.close()
        await self.channel.close()


class Brokers:
    """The brokers of one Notify database, for one producer or consumer. Belongs to the loop it is first used on.

    The addresses that the user gave stay; `learn` adds those of the others, and takes them away when they have gone.
    shard: that database, empty before one of them has said it. tls, token: for all of them.
    """

    def __init__(self, addresses: Sequence[str], *, tls: TlsChoice = None, token: TokenChoice = None) -> None:
        check_not_patched()
        self.shard = b""
        self._access = client_access(tls, token)
        self._brokers = {address: self._new_broker(address, is_given=True) for address in addresses}
        self._gone: set[KnownBroker] = set()
        self._listed: list[str] = []
        self._draining: frozenset[str] = frozenset()
        # At random, not the first: processes are configured with the same list, and would all choose the same broker.
        self.current = random.choice(list(self._brokers.values()))
        self._watchers: list[Callable[[], None]] = []
        self._closing: set[asyncio.Future[None]] = set()

    @property
    def addresses(self) -> list[str]:
        """Addresses of the brokers that are known now."""
        return list(self._brokers)

    @property
    def names(self) -> list[str]:
        """The names of the brokers, each once: as they list themselves, so that one that has gone is not among them.

        Before they do, of those that were given; the address of one whose name is not known yet.
        """
        names = {broker.name or broker.address for broker in self._brokers.values()}
        return sorted(names.intersection(self._listed) or names)

    def name_of(self, told: str) -> str:
        """Return the name of the broker with this name or address; "" if it is not known."""
        address = self.address_of(told)
        return "" if address is None else self._brokers[address].name

    def address_of(self, told: str) -> str | None:
        """Return the address of the broker with this name, or else with this address. None: it is not known."""
        named = (broker.address for broker in self._brokers.values() if broker.name == told)
        return next(named, told if told in self._brokers else None)

    def channel(self, address: str) -> BrokerCalls:
        """Return the channel to one broker, for calls that mean that one only (long polls, the attach stream)."""
        return self._brokers[address].channel

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever `addresses` has changed."""
        self._watchers.append(changed)

    def unwatch(self, changed: Callable[[], None]) -> None:
        """End `watch`."""
        self._watchers.remove(changed)

    def learn(self, address: str, route: RouteChanged) -> None:
        """Take the route that the broker at `address` reports: itself and the others.

        One that is cut off from its database names no others.
        """
        here = self._brokers.get(address)
        if here is None or not self._is_of_shard(here, route.shard):
            return
        here.is_cut_off = route.is_cut_off
        if not route.this or not route.brokers:
            return
        before, was_told = set(self._brokers), bool(self._listed)
        here.name, self._listed, self._draining = route.this, list(route.brokers), frozenset(route.draining)
        given = {broker.name or broker.address for broker in self._brokers.values() if broker.is_given}
        for learned in [broker for broker in self._brokers.values() if not broker.is_given]:
            if learned.address not in self._listed or learned.address in given:
                self._let_go(learned)
        for name in self._listed:
            if name not in given and name not in self._brokers:
                self._brokers[name] = self._new_broker(name, is_given=False)
        new = self._brokers.keys() - before
        self._spread(len(new) if was_told else len(self._brokers), new if was_told else set(self._brokers))
        if before != self._brokers.keys():
            for changed in self._watchers:
                changed()

    def _new_broker(self, address: str, *, is_given: bool) -> KnownBroker:
        if address == MEMORY:
            return KnownBroker(address, is_given, MemoryChannel(), MemoryBlockingChannel())
        return KnownBroker(
            address,
            is_given,
            Channel(address, **self._access),
            BlockingChannel(address, **self._access),
        )

    def note_shard(self, shard: bytes) -> None:
        """Take the Notify database from a reply, unless it is known."""
        if not self.shard and len(shard) == _SHARD_SIZE_BYTES:
            self.shard = shard

    async def find_shard(self, timeout_s: float) -> None:
        """Ask the brokers, each at most once, for their Notify database. Raises the error of the last one asked."""
        for left in range(len(self._brokers) - 1, -1, -1):
            try:
                reply = await self.call(Notify.route, RouteRequest(), timeout_s=timeout_s)
                self.note_shard(reply.shard)
                return
            except RETRYABLE:
                if not left:
                    raise

    @property
    def is_failing(self) -> bool:
        """True if all brokers that accept messages have failed lately, or are cut off from the database."""
        now = time.monotonic()
        return all(broker.is_cut_off or broker.failed_at >= now - _AVOIDED_S for broker in self._able())

    def is_cut_off(self, address: str) -> bool:
        """Return True if the broker at this address has last reported that it cannot reach the database."""
        broker = self._brokers.get(address)
        return broker is not None and broker.is_cut_off

    @property
    def are_cut_off(self) -> bool:
        """True if all brokers that accept messages report that they cannot reach the database."""
        return all(broker.is_cut_off for broker in self._able())

    async def call(self, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float) -> ReplyT:
        """Make one attempt at the current broker. If it fails for want of a broker, the next attempt goes to another
        one.

        Raises BrokerUnavailable when the request certainly was not carried out, OutcomeUnknown when it may have been.
        """
        broker = self.current
        try:
            reply = await broker.channel.call(method, request, timeout_s=self.share_s(timeout_s))
        except RETRYABLE:
            self.avoid(broker)
            raise
        broker.failed_at = -math.inf
        return reply

    async def ask_any(self, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float) -> ReplyT:
        """Call one broker after the other until one answers, as `call`: for methods that change nothing.

        Raises the error of the last one asked.
        """
        left = self._shares
        while True:
            left -= 1
            try:
                return await self.call(method, request, timeout_s=timeout_s)
            except RETRYABLE:
                if left <= 0:
                    raise

    def share_s(self, timeout_s: float) -> float:
        """Return the part of this time that one attempt may take: a broker that hangs leaves time for another."""
        return timeout_s / self._shares

    @property
    def _shares(self) -> int:
        return min(len(self._brokers), 3)

    def avoid(self, broker: KnownBroker) -> None:
        """Send the next attempt to another broker: this one has failed."""
        broker.failed_at = time.monotonic()
        if self.current is broker:
            self.current = self._choice()

    async def close(self) -> None:
        """Close all channels; calls in flight fail. Closing twice is fine."""
        await asyncio.gather(*(broker.close() for broker in (*self._brokers.values(), *self._gone)))

    def _spread(self, count: int, new: set[str]) -> None:
        """Move to one of `count` new brokers, with the probability that spreads clients evenly."""
        able = self._able()
        if self.current not in able:
            self.current = self._choice()
        # Each client decides for itself, without knowing the others: on average the new brokers then have their share
        # of all clients, and most clients keep their connection.
        elif count and random.random() < count / len(able):
            self.current = random.choice([broker for broker in able if broker.address in new] or able)

    def _is_of_shard(self, broker: KnownBroker, shard: bytes) -> bool:
        """Note the database of a broker. False if the others of the list have another.

        A recreated database is another one, too: it counts when no broker of the one before is left.
        """
        if len(shard) != _SHARD_SIZE_BYTES:
            return True
        changed, broker.shard = broker.shard != shard, shard
        if self.shard != shard and any(other.shard == self.shard for other in self._brokers.values() if other.shard):
            if changed:
                _log.error(
                    "client.other_database",
                    "broker %(broker)s is not used: it writes to Notify database %(database)s, and others of its list "
                    "to %(other_database)s; put a semicolon between the brokers of two databases",
                    broker=broker.address,
                    database=UUID(bytes=shard),
                    other_database=UUID(bytes=self.shard),
                )
            if self.current is broker:
                self.current = self._choice()
            return False
        self.shard = shard
        return True

    def _able(self) -> list[KnownBroker]:
        """Return the brokers that accept messages, as far as is known; otherwise all."""
        ours = self._ours()
        found = [
            broker
            for broker in ours
            if (broker.name or broker.address) in self._listed and (broker.name or broker.address) not in self._draining
        ]
        return found or ours

    def _ours(self) -> list[KnownBroker]:
        """Return the brokers that do not belong to another database."""
        return [broker for broker in list(self._brokers.values()) if broker.shard in {b"", self.shard}] or list(
            self._brokers.values()
        )

    def _choice(self) -> KnownBroker:
        """Return a broker that has not failed lately, else the one that failed first."""
        now = time.monotonic()
        able = [broker for broker in self._able() if broker.failed_at < now - _AVOIDED_S]
        return random.choice(able) if able else min(self._ours(), key=lambda broker: broker.failed_at)

    def _let_go(self, broker: KnownBroker) -> None:
        """Forget a broker, but keep its channel open for a while: consumers can settle the messages that they have from
        it."""
        del self._brokers[broker.address]
        self._gone.add(broker)

        def close() -> None:
            self._gone.discard(broker)
            closing = asyncio.ensure_future(broker.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

        # Not at once: handlers may still hold messages of this broker, and a broker that restarts can take their
        # acknowledgements.
        asyncio.get_running_loop().call_later(_LINGER_S, close)


async def knock(brokers: Brokers) -> None:
    """Raise Unauthenticated, or MisuseError, if a broker does not let us in: before anything is started. Closes them.

    Every other failure is left to calls that are tried again: a broker that is away is not waited for here.
    """
    try:
        await brokers.call(Notify.route, RouteRequest(), timeout_s=_KNOCK_S_MAX)
    except (Unauthenticated, MisuseError):
        raise
    except TxmsgError as exc:
        _log.debug("client.knock_failed", "no broker answers at the start: %(error)s", error=exc)
    finally:
        await brokers.close()


def retrying(timeout_s: float) -> AsyncRetrying:
    """Retry the errors of `Brokers.call` that may pass: random exponential pauses, no attempt after the deadline.

    Nor just before it: an attempt that is cut off would turn a certain failure into an unknown outcome.
    """
    return AsyncRetrying(
        retry=retry_if_exception_type(RETRYABLE),
        wait=wait_random_exponential(multiplier=0.02, max=1.0),
        stop=stop_before_delay(max(timeout_s - _ATTEMPT_S_MIN, timeout_s / 2)),
        reraise=True,
    )
