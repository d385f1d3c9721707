"""Denied calls, logged where there is no database with an audit log."""

from __future__ import annotations

import time
from collections.abc import Callable

from txmsg.runtime.logs import EventLog

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
