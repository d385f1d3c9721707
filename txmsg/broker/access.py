"""Users and rules as this broker knows them: keeps its guard in step with the database.

Brokers hear of a change by a notice, and look for one every second, so a revoked token is refused everywhere within
two. A broker that is cut off from its database goes on with what it knows, and lets nobody in after the guard's age.
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

    def forget_users(self, _: str) -> None:
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
            await self._read_users()

    async def apply_change(self) -> None:
        """Takes a change before it is answered. If the database is away, a later look takes it."""
        with suppress(BrokerUnavailable):
            await self.refresh_once()

    async def _read_users(self) -> None:
        epoch = self._epoch
        version, now = await self._users.version()
        self._database_ahead_s = now - time.monotonic()
        is_newest = self._known is not None and version == self._known.version
        snapshot = None if is_newest else await self._users.snapshot()
        if epoch != self._epoch:  # what was read may be older: `forget_users` has asked for another look
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
