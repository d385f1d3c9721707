"""Where a MetaQ server has its users and rules from: a file, or brokers. Keeps its guard in step with them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Final, Protocol

from txmsg.access.file import read_access
from txmsg.access.guard import Guard
from txmsg.access.limits import NO_LIMITS, UserLimits
from txmsg.access.rules import Rules, known_rules
from txmsg.access.snapshot import AccessSnapshot, Credential, User
from txmsg.errors import MisuseError, TxmsgError
from txmsg.logs import EventLog
from txmsg.wire.channel import Channel
from txmsg.wire.credential import client_access
from txmsg.wire.v1 import access_pb2 as pb
from txmsg.wire.v1.access_rpc import Access

LOOK_S: Final = 1.0
"""How often a file is looked at, and how long after a failure the next broker is asked."""
_WAIT_S_MAX: Final = 20.0
_ANSWER_S: Final = 5.0
_log = EventLog(__name__)


class DeniedCalls:
    """Logs calls that users had no right for: the first of each user in each minute, as a program may go on trying."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._minute = 0
        self._users: set[str] = set()

    def add(self, user: str, host: str, what: str) -> None:
        """See `Guard.on_denied`."""
        minute = int(self._monotonic() // 60)
        if minute != self._minute:
            self._minute, self._users = minute, set()
        if user not in self._users:
            self._users.add(user)
            _log.warning(
                "access.denied", "user %(user)s from %(host)s may not %(what)s", user=user, host=host, what=what
            )


class UserSource(Protocol):
    """What keeps a guard in step."""

    guard: Guard

    async def run(self) -> None:
        """Until it is cancelled."""
        ...


class UsersOfFile:
    """Reads a file when it has changed. One that cannot be used is logged, and what was read before stays."""

    def __init__(self, path: Path, limits: UserLimits = NO_LIMITS) -> None:
        """limits: of users without their own. Raises MisuseError for a file that cannot be used."""
        self.guard = Guard(limits=limits)
        self._path = path
        self._read: tuple[int, ...] | None = None
        self._failed = ""
        self._take()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look_once()

    def look_once(self) -> None:
        """Takes the file, if it is another one than before."""
        try:
            self._take()
        except MisuseError as exc:
            if self._failed != str(exc):
                _log.error("access.file_refused", "users and rules stay as they were: %(error)s", error=exc)
            self._failed = str(exc)
        else:
            self._failed = ""
        self.guard.confirm()

    def _take(self) -> None:
        try:
            stat = self._path.stat()
            state = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if state == self._read:
                return
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise MisuseError(f"--access {self._path} cannot be read: {exc}") from exc
        try:
            snapshot = read_access(text, self.guard.snapshot.version + 1, str(self._path))
        except TxmsgError as exc:
            raise MisuseError(f"--access {self._path} cannot be used: {exc}") from exc
        self._read = state
        self.guard.use(snapshot)
        _log.info(
            "access.file_read",
            "%(users)d users and %(rules)d rules from %(path)s",
            users=len(snapshot.users),
            rules=len(snapshot.rules.all),
            path=self._path,
        )


class UsersOfBrokers:
    """Asks one broker after the other, each as long as it answers; a change comes at once, by a long poll.

    What was told last holds for `age_s_max`. Then nobody is let in, and connections are cut.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        limits: UserLimits = NO_LIMITS,
        *,
        age_s_max: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises MisuseError for a token or TLS files of the environment that cannot be used."""
        self.guard = Guard(age_s_max=age_s_max, limits=limits, monotonic=monotonic)
        self._addresses = cycle(addresses)
        # Once: later, a file that cannot be read for a moment is logged, and what was read before is used.
        self._access = client_access(None, None)
        self._wait_s = min(_WAIT_S_MAX, age_s_max / 4)
        self._failed = False

    async def run(self) -> None:
        for address in self._addresses:
            async with Channel(address, **self._access) as channel:
                await self.follow(channel, address)
            await asyncio.sleep(LOOK_S)

    async def follow(self, channel: Channel, address: str) -> None:
        """Takes what a broker tells, until it fails."""
        try:
            while True:
                await self._take(channel)
                self._failed = False
        except TxmsgError as exc:
            if not self._failed:
                _log.warning(
                    "access.not_followed",
                    "users and rules are not told by broker %(broker)s: %(error)s",
                    broker=address,
                    error=exc,
                )
            self._failed = True
        if not self.guard.is_fresh and self.guard.snapshot.users:
            _log.error("access.forgotten", "nobody is let in any more: no broker has told of users for too long")
            self.guard.forget()

    async def _take(self, channel: Channel) -> None:
        request = pb.WatchAccessRequest(version=self.guard.snapshot.version, wait_ms=int(self._wait_s * 1000))
        reply = await channel.call(Access.watch, request, timeout_s=self._wait_s + _ANSWER_S)
        if reply.version == self.guard.snapshot.version:
            self.guard.confirm()
        else:
            self.guard.use(snapshot_of(reply))


def snapshot_of(reply: pb.WatchAccessReply) -> AccessSnapshot:
    """What a broker has told."""
    return AccessSnapshot(
        version=reply.version,
        users={
            user.name: User(
                name=user.name, roles=frozenset(user.roles), certificate=user.certificate, limits=dict(user.limits)
            )
            for user in reply.users
        },
        credentials={
            token.id: Credential(
                id=token.id,
                user=token.user,
                secret_sha256=token.secret_sha256,
                expires_at=token.expires_at_us / 1_000_000 if token.expires_at_us else math.inf,
            )
            for token in reply.tokens
        },
        rules=Rules(known_rules((rule.subject, rule.action, rule.kind, rule.pattern) for rule in reply.rules)),
    )
