"""Users and rules as this broker knows them: keeps its guard in step with the database.

Brokers are notified of a change, and poll for one every second, so a revoked token is refused everywhere within two
seconds. A broker that is cut off from its database continues with its last snapshot, and refuses all calls when that is
older than the guard allows.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from txmsg.broker.periodic import repeat
from txmsg.broker.store.users import Users
from txmsg.errors import BrokerUnavailable
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.guard import Guard
from txmsg.wire.access.limits import UserLimits
from txmsg.wire.access.snapshot import AccessSnapshot

LOOK_S: Final = 1.0
_log = EventLog(__name__)


class LiveAccess:
    """The guard of a broker with authentication, and its snapshot. limits: of users without their own."""

    def __init__(self, users: Users, limits: UserLimits) -> None:
        self.guard = Guard(limits=limits, clock=self._now)
        self._database_ahead_s = 0.0
        """The database's clock minus the monotonic one of this process, in seconds: tokens expire by the database's
        clock."""
        self._users = users
        self._soon = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._known: AccessSnapshot | None = None
        self._epoch = 0
        """The number of times that the database has gone back."""
        self._looking = asyncio.Lock()

    def look_soon(self) -> None:
        """Read users and rules at once: something was changed."""
        self._soon.set()

    def forget_users(self, _: str) -> None:
        """Drop the snapshot: the database has gone back, perhaps to other users."""
        self._epoch += 1
        self._known = None
        self._soon.set()

    def close(self) -> None:
        """End all waiting for changes."""
        self._is_closed = True
        self._wake()

    async def run(self) -> None:
        """Repeat `refresh_once` until cancelled."""
        await repeat("reading users", self.refresh_once, LOOK_S, soon=self._soon)

    async def refresh_once(self) -> None:
        """Make the guard decide by the present contents of the database."""
        async with self._looking:  # of two concurrent reads the older one could end last, and win
            await self._read_users()

    async def apply_change(self) -> None:
        """Apply a change before it is answered. If the database is away, a later read applies it."""
        with suppress(BrokerUnavailable):
            await self.refresh_once()

    async def _read_users(self) -> None:
        epoch = self._epoch
        version, now = await self._users.version()
        self._database_ahead_s = now - time.monotonic()
        is_newest = self._known is not None and version == self._known.version
        snapshot = None if is_newest else await self._users.snapshot()
        if epoch != self._epoch:  # the rows may be older: `forget_users` has asked for another read
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
        self.guard.use_snapshot(snapshot)
        self._known = snapshot  # last: after a failure, the next read applies it again
        self._wake()

    async def changed_from(self, version: int, wait_s: float) -> AccessSnapshot:
        """Return the snapshot when it has another version than this, or when the time is over.

        Raises BrokerUnavailable when the broker stops, or has no fresh snapshot.
        """
        if self._known is not None and self._known.version < version:
            # The caller has a newer version from another broker; or the database has gone back, which only a read can
            # tell.
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
