"""The databases of a visitor: the brokers of each Notify database, called with the visitor's own token.

The console has no rights of its own. A login opens connections with its token, so brokers decide each call by it, and
no visitor sees data that only another one may see. Databases whose brokers require no token share one desk, unless
`always` requires a login.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from txmsg.errors import MisuseError
from txmsg.ops.console.database import DatabaseBrokers
from txmsg.ops.console.database_poller import DatabasePoller
from txmsg.ops.console.identity import UserIdentity, who_am_i
from txmsg.ops.page.sessions import LoginSessions

_FIRST_POLL_S: Final = 3.0
NO_LOGIN: Final = "log in first"


@dataclass(frozen=True, slots=True, eq=False)
class UserDatabase:
    """One Notify database, for one visitor."""

    watch: DatabasePoller
    polling: asyncio.Task[None] | None
    running: set[asyncio.Future[None]] = field(default_factory=set)
    """The operations that use its connections."""

    def keep_until(self, ended: Future[None]) -> None:
        """Keep the connections until an operation ends, also after the visitor has logged out."""
        end = asyncio.wrap_future(ended)
        self.running.add(end)
        end.add_done_callback(self.running.discard)

    @property
    def who(self) -> UserIdentity | None:
        """The user who is logged in; None if brokers ask for no token."""
        return self.watch.who

    @property
    def is_refused(self) -> bool:
        """True if brokers no longer accept its token, or require one that it does not have."""
        return self.watch.is_refused

    @property
    def is_of_admin(self) -> bool:
        """True if its user may do everything."""
        return self.who is not None and self.who.is_admin

    @property
    def owner(self) -> str:
        """The owner of operations that it starts."""
        return f"{self.watch.name}/{'' if self.who is None else self.who.name}"


class UserDatabases:
    """The shared desks, and those of each login. Belongs to one loop; `tasks` is the parent of all polling."""

    def __init__(
        self,
        databases: Mapping[str, Sequence[str]],
        tasks: asyncio.TaskGroup,
        *,
        always: bool = False,
        who_am_i: Callable[[DatabaseBrokers], Awaitable[UserIdentity | None]] = who_am_i,
    ) -> None:
        self._databases = databases
        self._tasks = tasks
        self._who_am_i = who_am_i
        self._always = always
        self._closing: set[asyncio.Task[None]] = set()
        self._signed_in: set[UserDatabase] = set()
        self.open: Mapping[str, UserDatabase] = {name: self._opened(name) for name in databases}
        """Desks of visitors who have not logged in, by the name of the database."""

    async def is_needed(self, place: str) -> bool:
        """Return True if this database needs a login; "" asks whether all of them do."""
        asked = [self.open[place]] if place else list(self.open.values())
        for desk in asked:
            if desk.watch.snapshot is None and not desk.watch.trouble:
                await desk.watch.polled(_FIRST_POLL_S)
        return all(desk.is_refused for desk in asked)

    async def sign_in(self, place: str, token: str) -> UserDatabase:
        """Return a desk with the rights of this token. Raises Unauthenticated, and the errors of a call."""
        database = DatabaseBrokers(place, self._databases[place], token=token)
        try:
            who = await self._who_am_i(database)
            if who is None:
                raise MisuseError(
                    f"brokers of {place} ask for no token, so the console cannot tell who you are: let them "
                    "authenticate (--auth), or let the console listen on loopback, or have --tls-client-ca"
                )
        except BaseException:
            await database.close()
            raise
        watch = DatabasePoller(database, who)
        desk = UserDatabase(watch, self._tasks.create_task(watch.run(), name=f"watch {place} for {who.name}"))
        self._signed_in.add(desk)
        return desk

    def new_sessions(self, clock: Callable[[], float]) -> LoginSessions[UserDatabase]:
        """Return sessions of browsers, whose logins hold desks. clock: monotonic."""
        return LoginSessions(clock, self.leave, user_of=lambda desk: desk.owner, is_admin=lambda desk: desk.is_of_admin)

    def leave(self, desk: UserDatabase) -> None:
        """Close the desk of a login that has ended, when its operations are over."""
        closing = asyncio.create_task(self._leave(desk))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _leave(self, desk: UserDatabase) -> None:
        if desk.polling is not None:
            desk.polling.cancel()
        # Operations use the visitor's connections, also after the logout: closed earlier, a redrive would stop half
        # way.
        if desk.running:
            await asyncio.wait(desk.running)
        await _close(desk)
        self._signed_in.discard(desk)

    async def close(self) -> None:
        """Close all desks, even those with running operations."""
        for closing in list(self._closing):
            closing.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for desk in (*self.open.values(), *self._signed_in):
            await _close(desk)

    def _opened(self, name: str) -> UserDatabase:
        watch = DatabasePoller(DatabaseBrokers(name, self._databases[name], token=""))
        if self._always:
            watch.is_refused, watch.trouble = True, NO_LOGIN
            return UserDatabase(watch, None)
        return UserDatabase(watch, self._tasks.create_task(watch.run(), name=f"watch {name}"))


async def _close(desk: UserDatabase) -> None:
    if desk.polling is not None:
        desk.polling.cancel()
    await desk.watch.database.close()
