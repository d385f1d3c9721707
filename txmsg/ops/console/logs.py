"""A MetaQ log, in its directory or at its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from txmsg.errors import PermissionDenied, Unauthenticated
from txmsg.ops.console.calls import LimitedCalls
from txmsg.ops.console.user_databases import NO_LOGIN, UserDatabase

if TYPE_CHECKING:
    from txmsg.metaq.interface import LogAccess

T = TypeVar("T")

_ANSWER_S_MAX: Final = 5.0
_THREADS: Final = 4


class NamedLog:
    """A log with its name in the console."""

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        self.where = where
        self._calls = LimitedCalls(f"the log {name}", _THREADS)

    async def run(self, desk: UserDatabase, work: Callable[[LogAccess], T]) -> T:
        """Run `work` on the log, opened for this call alone because it may have been replaced since. Returns its
        result.

        A server decides by the visitor's token. Raises the errors of errors.py.
        """
        return await self._calls.run(lambda: self._with_log(desk, work))

    def _with_log(self, desk: UserDatabase, work: Callable[[LogAccess], T]) -> T:
        from txmsg.metaq.local import LocalLog  # with txmsg[metaq] only
        from txmsg.metaq.location import open_log

        with open_log(self.where, token=desk.watch.database.token, timeout_s=_ANSWER_S_MAX) as access:
            if isinstance(access, LocalLog):
                self._check_may_open(desk)
            return work(access)

    def _check_may_open(self, desk: UserDatabase) -> None:
        """Raise PermissionDenied or Unauthenticated unless the visitor may open the log's directory.

        A directory knows no users: where others need a token, the console decides.
        """
        if desk.who is not None and not desk.who.is_admin:
            raise PermissionDenied(
                f"user {desk.who.name} may not see the log {self.name}: a log in a directory knows no users, so it is "
                "for admins; start the console with the address of the log's server"
            )
        if desk.who is None and (desk.is_refused or desk.watch.snapshot is None):  # it may be that a token is needed
            raise Unauthenticated(NO_LOGIN)

    def close(self) -> None:
        """Refuse calls that have not begun. Closing twice is fine."""
        self._calls.close()
