"""Users and rules of brokers, for servers that have no database of their own. Keeps a guard up to date with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Annotated, Final

from txmsg.errors import MisuseError, PermissionDenied, TxmsgError, Unauthenticated
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.guard import Guard
from txmsg.wire.access.keys import AccessKey
from txmsg.wire.access.limits import NO_LIMITS, UserLimits
from txmsg.wire.access.rules import RuleSet, known_rules
from txmsg.wire.access.snapshot import AccessSnapshot, Credential, User
from txmsg.wire.channel import Channel
from txmsg.wire.credential import client_access
from txmsg.wire.method import Method
from txmsg.wire.values import Natural, NumberRange

LOOK_S: Final = 1.0
"""Seconds after a failure until the next broker is asked."""
_WAIT_S_MAX: Final = 20.0
_ANSWER_S: Final = 5.0
_log = EventLog(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAccess:
    """Waits until anything differs from this version, at most wait_ms. version: the last one received; 0: none.

    access_keys: True to receive them, too: for gateways, which can decrypt them.
    """

    version: Natural = 0
    wait_ms: Annotated[int, NumberRange(0, 300_000)] = 0
    access_keys: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRule:
    """A rule of access in plain texts: a newer broker may have actions that this release does not know."""

    subject: str
    action: str
    kind: str
    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedAccess:
    """All users, the stored parts of their tokens and access keys, and rules."""

    version: int
    users: Sequence[User] = ()
    tokens: Sequence[Credential] = ()
    rules: Sequence[WatchedRule] = ()
    access_keys: Sequence[AccessKey] = ()


class AccessWatch:
    """The method of the service Access for servers without a database of users."""

    watch: Final = Method("Access/Watch", WatchAccess, WatchedAccess)


class UsersOfBrokers:
    """Asks one broker at a time, as long as it answers; a change arrives at once, by a long poll.

    The last answer is valid for `age_s_max` seconds. After that every login is refused, and connections are closed.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        limits: UserLimits = NO_LIMITS,
        *,
        age_s_max: float,
        access_keys: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to ask; access_keys: True to ask for them, too. Raises MisuseError for a token or TLS files of the
        environment that cannot be used."""
        self.guard = Guard(age_s_max=age_s_max, limits=limits, monotonic=monotonic)
        self._addresses = cycle(addresses)
        self._access_keys = access_keys
        # Once: later, a file that cannot be read for a moment is logged, and what was read before is used.
        self._access = client_access(None, None)
        # A quarter, so that several polls may fail before the snapshot is too old to decide by.
        self._wait_s = min(_WAIT_S_MAX, age_s_max / 4)
        self._failed = False

    async def knock(self) -> None:
        """Ask one broker, before anything is started. Raises the errors that the operator of this process can fix.

        All other failures are left to `run`: until a broker answers, every login is refused.
        """
        try:
            async with Channel(next(self._addresses), **self._access) as channel:
                await self._watch_users(channel)
        except (Unauthenticated, PermissionDenied, MisuseError):
            raise
        except TxmsgError as exc:
            _log.debug("access.knock_failed", "no broker tells of users at the start: %(error)s", error=exc)

    async def run(self) -> None:
        """Follow the brokers until cancelled."""
        # A cycle, so it never ends: each failure moves on to the next broker.
        for address in self._addresses:
            try:
                async with Channel(address, **self._access) as channel:
                    await self.follow(channel, address)
            except Exception:  # noqa: BLE001 - the root of a task: without it, every login would be refused from then on
                _log.exception(
                    "access.follow_failed", "broker %(broker)s could not be followed, unexpectedly", broker=address
                )
                self._forget_old()
            await asyncio.sleep(LOOK_S)

    async def follow(self, channel: Channel, address: str) -> None:
        """Apply the answers of one broker, until it fails."""
        try:
            while True:
                await self._watch_users(channel)
                self._failed = False
        except TxmsgError as exc:
            if not self._failed:
                _log.warning(
                    "access.not_followed",
                    "broker %(broker)s does not send users and rules: %(error)s",
                    broker=address,
                    error=exc,
                )
            self._failed = True
        self._forget_old()

    def _forget_old(self) -> None:
        if not self.guard.is_fresh and self.guard.snapshot.users:
            _log.error("access.forgotten", "all clients are refused: no broker has sent users and rules for too long")
            self.guard.forget_snapshot()

    async def _watch_users(self, channel: Channel) -> None:
        request = WatchAccess(
            version=self.guard.snapshot.version, wait_ms=int(self._wait_s * 1000), access_keys=self._access_keys
        )
        reply = await channel.call(AccessWatch.watch, request, timeout_s=self._wait_s + _ANSWER_S)
        # The same version confirms the snapshot's age: without this the guard would refuse logins although nothing has
        # changed.
        if reply.version == self.guard.snapshot.version:
            self.guard.confirm()
        else:
            self.guard.use_snapshot(snapshot_of(reply))


def snapshot_of(told: WatchedAccess) -> AccessSnapshot:
    """Return the snapshot in a broker's answer."""
    return AccessSnapshot(
        version=told.version,
        users={user.name: user for user in told.users},
        credentials={token.id: token for token in told.tokens},
        access_keys={key.id: key for key in told.access_keys},
        rules=RuleSet(known_rules((rule.subject, rule.action, rule.kind, rule.pattern) for rule in told.rules)),
    )
