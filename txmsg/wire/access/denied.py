"""Denied calls, logged where there is no database with an audit log."""

from __future__ import annotations

import time
from collections.abc import Callable

from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)


class DeniedCalls:
    """Logs denied calls: the first of each user in each minute, since a program may repeat a denied call forever."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._minute = 0
        self._users: set[str] = set()

    def add(self, user: str, host: str, what: str) -> None:
        """Log this denial unless the user had one in this minute; see `Guard.on_denied`."""
        minute = int(self._monotonic() // 60)
        # Only the current minute is remembered, so the set is bounded by the users of one minute and needs no timer.
        if minute != self._minute:
            self._minute, self._users = minute, set()
        if user not in self._users:
            self._users.add(user)
            _log.warning(
                "access.denied", "user %(user)s from %(host)s may not %(what)s", user=user, host=host, what=what
            )
