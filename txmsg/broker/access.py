"""Users and rules as this broker knows them: keeps its guard in step with the database, and makes tokens.

Brokers hear of a change by a notice, and look for one every second, so a revoked token is refused everywhere within
two. A broker that is cut off from its database goes on with what it knows, and lets nobody in after the guard's age.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from txmsg.access.guard import Guard
from txmsg.access.keys import KEY_ID, SEALED_SIZE_BYTES_MAX, AccessKey
from txmsg.access.limits import UserLimits, checked_limits
from txmsg.access.principal import check_role_name, check_user_name
from txmsg.access.snapshot import AccessSnapshot
from txmsg.access.tokens import new_token
from txmsg.broker.periodic import repeat
from txmsg.broker.store.users import ROLES_MAX, UserRow, Users
from txmsg.errors import BrokerUnavailable, MisuseError, shown
from txmsg.logs import EventLog

LOOK_S: Final = 1.0
_CERTIFICATE_LENGTH_MAX: Final = 300
_log = EventLog(__name__)


class LiveAccess:
    """The guard of a broker with authentication, and what it decides by. limits: of users without their own."""

    def __init__(self, users: Users, limits: UserLimits) -> None:
        self.guard = Guard(limits=limits, clock=self._now)
        self._database_ahead_s = 0.0
        """The database's clock less the monotonic one of this process: tokens expire by the former."""
        self._users = users
        self._soon = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._known: AccessSnapshot | None = None
        self._epoch = 0
        """How often the database has gone back."""
        self._looking = asyncio.Lock()

    def look_soon(self) -> None:
        """Something was changed: reads it at once."""
        self._soon.set()

    def forget(self, _: str) -> None:
        """The database has gone back, perhaps to other users."""
        self._epoch += 1
        self._known = None
        self._soon.set()

    def close(self) -> None:
        """Ends all waiting for changes."""
        self._is_closed = True
        self._wake()

    async def run(self) -> None:
        """Repeats `refresh_once` until cancelled."""
        await repeat("reading users", self.refresh_once, LOOK_S, soon=self._soon)

    async def refresh_once(self) -> None:
        """Has the guard decide by what the database says now."""
        async with self._looking:  # two looks could end in the other order, and the older one would win
            await self._look()

    async def take(self) -> None:
        """Takes a change before it is answered. If the database is away, a later look takes it."""
        with suppress(BrokerUnavailable):
            await self.refresh_once()

    async def _look(self) -> None:
        epoch = self._epoch
        version, now = await self._users.version()
        self._database_ahead_s = now - time.monotonic()
        is_newest = self._known is not None and version == self._known.version
        snapshot = None if is_newest else await self._users.snapshot()
        if epoch != self._epoch:  # what was read may be older: `forget` has asked for another look
            return
        if snapshot is None:
            self.guard.confirm()
            return
        if not any(user.roles for user in snapshot.users.values()) and not snapshot.rules.all:
            _log.warning(
                "access.no_users",
                "no call is allowed, as there are no users: create one with `txmsg user create NAME --role admin "
                "--storage URL`",
            )
        self.guard.use(snapshot)
        self._known = snapshot  # last: after a failure, the next look takes it again
        self._wake()

    async def changed_from(self, version: int, wait_s: float) -> AccessSnapshot:
        """What is known as soon as it is of another version than this, or the time is over.

        Raises BrokerUnavailable when the broker stops, or does not know.
        """
        if self._known is not None and self._known.version < version:
            # Another broker has told more; or the database has gone back, which only the database can tell.
            await self.refresh_once()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._is_closed and (self._known is None or self._known.version == version):
                    await self._changed.wait()
        if self._is_closed:
            raise BrokerUnavailable("this broker is stopping: ask another broker")
        if self._known is None or not self.guard.is_fresh:
            raise BrokerUnavailable("this broker cannot read users now: ask again, or another broker")
        return self._known

    def _now(self) -> float:
        return time.monotonic() + self._database_ahead_s

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class UserDirectory:
    """Makes and changes users. live: takes each change before it is answered; other brokers hear of it soon."""

    def __init__(self, users: Users, live: LiveAccess | None = None) -> None:
        self._users = users
        self._live = live

    async def list(self, limit: int, *, after: str, contains: str) -> Sequence[UserRow]:
        """The first users by name, after this one and with this in their names."""
        return await self._users.list(limit, after=after, contains=contains)

    async def show(self, name: str) -> UserRow:
        """One of them. Raises MisuseError."""
        return await self._users.show(name)

    async def create(
        self, name: str, roles: Sequence[str], certificate: str, expires_at: datetime | None
    ) -> tuple[UserRow, str]:
        """A new user and its token; with a certificate it needs none, and "" is returned."""
        check_user_name(name)
        _check_roles(roles)
        _check_certificate(certificate)
        if certificate and expires_at is not None:
            raise MisuseError("a user with a certificate gets no token that could expire: give one of the two")
        token = None if certificate else new_token()
        row = await self._users.create(name, roles, certificate or None, token, expires_at)
        await self._take()
        return row, "" if token is None else token.text

    async def alter(self, name: str, *, add: Sequence[str], remove: Sequence[str], certificate: str | None) -> UserRow:
        """Changes roles, and unless it is None the certificate: "" for none."""
        _check_roles(add)
        _check_certificate(certificate or "")
        row = await self._users.alter(name, add=add, remove=remove, certificate=certificate)
        await self._take()
        return row

    async def rotate(self, name: str, expires_at: datetime | None) -> tuple[UserRow, str]:
        """Another token."""
        token = new_token()
        row = await self._users.rotate(name, token, expires_at)
        await self._take()
        return row, token.text

    async def add_access_key(self, key: AccessKey) -> UserRow:
        """An access key, that its maker has encrypted."""
        if re.fullmatch(KEY_ID, key.id) is None or not 0 < len(key.sealed_secret) <= SEALED_SIZE_BYTES_MAX:
            raise MisuseError(
                f"access key {shown(key.id)} is not one as `txmsg user access-key create` and `import` give, with 1 to "
                f"{SEALED_SIZE_BYTES_MAX} bytes of an encrypted secret"
            )
        row = await self._users.add_access_key(key)
        await self._take()
        return row

    async def revoke(self, name: str, token_id: str = "", access_key_id: str = "") -> UserRow:
        """Takes away one token or one access key; without either all of them and the certificate."""
        if token_id and access_key_id:
            raise MisuseError("a token and an access key are revoked one after the other: name one of them")
        row = await self._users.revoke(name, token_id, access_key_id)
        await self._take()
        return row

    async def limit(self, name: str, limits: Mapping[str, float], *, others_default: bool) -> UserRow:
        """Sets some of its limits. others_default: it keeps no others of its own."""
        row = await self._users.limit(name, checked_limits(limits), others_default=others_default)
        await self._take()
        return row

    async def delete(self, name: str) -> None:
        """Deletes a user with its tokens and rules."""
        await self._users.delete(name)
        await self._take()

    async def _take(self) -> None:
        if self._live is not None:
            await self._live.take()


def _check_roles(roles: Sequence[str]) -> None:
    if len(roles) > ROLES_MAX:
        raise MisuseError(f"{len(roles)} roles are too many: a user has at most {ROLES_MAX}")
    for role in roles:
        check_role_name(role)


def _check_certificate(name: str) -> None:
    if len(name) > _CERTIFICATE_LENGTH_MAX or not name.isprintable() or name != name.strip():
        raise MisuseError(
            f"certificate={shown(name)} is not the name in a certificate: give at most {_CERTIFICATE_LENGTH_MAX} "
            "printable characters"
        )
