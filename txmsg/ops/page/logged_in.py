"""The visitors of a page with a login: users of brokers, as long as their tokens are valid.

A page reads its own database, so any user may see it; other rights of the user are not checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from txmsg.administration.access import AccessService, ConnectionIdentity
from txmsg.administration.ask import Nothing
from txmsg.errors import BrokerUnavailable, MisuseError, TxmsgError, Unauthenticated
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.rules import ADMIN
from txmsg.wire.access.tokens import is_token
from txmsg.wire.channel import Channel

_log = EventLog(__name__)

CHECK_S: Final = 10.0
"""Seconds between two checks that a token is still valid."""
_ANSWER_S_MAX: Final = 2.5

Ask = Callable[[str], Awaitable[ConnectionIdentity]]
"""A function that returns the user of a token."""


@dataclass(slots=True, eq=False)
class LoggedInUser:
    """A visitor who has logged in."""

    name: str = ""
    is_admin: bool = False
    is_over: bool = False
    """True if the token is no longer valid."""
    checking: asyncio.Task[None] | None = None


class LoggedInUsers:
    """The visitors, whose tokens are checked periodically. Belongs to one loop; `tasks` is the parent of the checks."""

    def __init__(self, ask: Ask, tasks: asyncio.TaskGroup, *, check_s: float = CHECK_S) -> None:
        self._ask = ask
        self._tasks = tasks
        self._check_s = check_s

    async def sign_in(self, _: str, token: str) -> LoggedInUser:
        """Return a visitor with this token. Raises Unauthenticated, and the errors of a call."""
        who = await self._ask(token)
        if not who.authentication:
            raise MisuseError("these brokers ask for no token: name brokers with --auth, or leave out --login")
        visitor = LoggedInUser(name=who.name, is_admin=ADMIN in who.roles)
        visitor.checking = self._tasks.create_task(self._check(visitor, token), name="visitor")
        return visitor

    @staticmethod
    def leave(visitor: LoggedInUser) -> None:
        """Log the visitor out."""
        visitor.is_over = True
        if visitor.checking is not None:
            visitor.checking.cancel()

    async def _check(self, visitor: LoggedInUser, token: str) -> None:
        while not visitor.is_over:
            await asyncio.sleep(self._check_s)
            try:
                await self._ask(token)
            except Unauthenticated:
                visitor.is_over = True
            except TxmsgError:
                continue  # brokers that are away take nothing back
            except Exception:  # noqa: BLE001 - the root of a task: one odd answer must not end the server
                _log.exception("page.check_failed", "whether a visitor's token is still valid cannot be told")


def asking(brokers: Sequence[str]) -> Ask:
    """Return a function that asks the first of these that answers."""

    async def ask(token: str) -> ConnectionIdentity:
        if not is_token(token):
            raise Unauthenticated("this is not a token of txmsg")
        failed: BrokerUnavailable | None = None
        for address in brokers:
            try:
                async with Channel(address, token=token) as channel:
                    return await channel.call(AccessService.who_am_i, Nothing(), timeout_s=_ANSWER_S_MAX)
            except BrokerUnavailable as exc:
                failed = exc
        assert failed is not None
        raise failed

    return ask
