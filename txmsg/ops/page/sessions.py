"""Sessions of browsers that have logged in. Knows no HTTP and no token.

Sessions are in memory only: a restart ends all of them, and no credential is on a disk. Everything is
bounded, so that it cannot be used to fill the memory.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

T = TypeVar("T")

IDLE_S: Final = 3600.0
"""Seconds without a request after which a session ends. Streams of events do not count: a page may be left open."""
AGE_S_MAX: Final = 12 * 3600.0
"""Seconds after which a session ends, however busy it is."""
SESSIONS_MAX: Final = 256
"""Maximum sessions. Above it the most idle session of the user with most ends, administrators' last."""
SESSIONS_OF_USER_MAX: Final = 16
"""Maximum sessions of a user. Above it the user's most idle one ends."""


@dataclass(slots=True, kw_only=True)
class LoginSession(Generic[T]):
    """A browser that has logged in, at one place or several, each with the result of its login."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """The secret that its forms must send back."""
    made_at: float
    used_at: float
    at: dict[str, T] = field(default_factory=dict)
    is_open: bool = True


class LoginSessions(Generic[T]):
    """The sessions of a server. clock: monotonic; on_end: called when the result of a login is no longer used.

    user_of: the user of a login; "" for none. is_admin: True if that user may do everything.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_end: Callable[[T], None] = lambda _: None,
        *,
        user_of: Callable[[T], str] = lambda _: "",
        is_admin: Callable[[T], bool] = lambda _: False,
    ) -> None:
        self.clock = clock
        self._on_end = on_end
        self._user_of = user_of
        self._is_admin = is_admin
        self._by_id: dict[str, LoginSession[T]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def find_session(self, id_: str, *, is_use: bool = True) -> LoginSession[T] | None:
        """Return the session, if it has not ended. is_use: True if this keeps it from being idle."""
        session = self._by_id.get(id_)
        if session is None or self._has_expired(session):
            return None
        if is_use:
            session.used_at = self.clock()
        return session

    def begin_session(self, place: str, value: T, before: LoginSession[T] | None) -> LoginSession[T]:
        """Return a new session with this login and the other logins of the session before, which ends."""
        now = self.clock()
        session = LoginSession[T](made_at=now, used_at=now)
        if before is not None:
            self.leave(before, place)
            if before.at:
                session.made_at = before.made_at  # a login does not prolong another one
            session.at, before.at = before.at, {}
            self.end_session(before)
        session.at[place] = value
        self._make_room(self._user_of(value))
        self._by_id[session.id] = session
        return session

    def _make_room(self, user: str) -> None:
        """End a session to make room for a login of this user, such that frequent logins do not end the sessions of
        others.
        """
        own = [each for each in self._by_id.values() if user and user in self._users_of(each)]
        if len(own) >= SESSIONS_OF_USER_MAX:
            self.end_session(min(own, key=lambda each: each.used_at))
        if len(self._by_id) >= SESSIONS_MAX:
            counts = Counter(name for each in self._by_id.values() for name in self._users_of(each))

            # The smallest one ends: administrators last; before them the user with most sessions, and of these the
            # session that is idle for longest. So many logins of one user end only that user's sessions.
            def claim(session: LoginSession[T]) -> tuple[bool, int, float]:
                is_admin = any(map(self._is_admin, session.at.values()))
                return is_admin, -max((counts[name] for name in self._users_of(session)), default=0), session.used_at

            self.end_session(min(self._by_id.values(), key=claim))

    def _users_of(self, session: LoginSession[T]) -> set[str]:
        return set(map(self._user_of, session.at.values()))

    def leave(self, session: LoginSession[T], place: str) -> None:
        """Forget the login at one place."""
        if place in session.at:
            self._on_end(session.at.pop(place))

    def end_session(self, session: LoginSession[T]) -> None:
        """End a session with all of its logins. Ending twice is fine."""
        session.is_open = False
        self._by_id.pop(session.id, None)
        for place in list(session.at):
            self.leave(session, place)

    def end_expired(self) -> None:
        """End idle and old sessions; called every few seconds."""
        for session in [each for each in self._by_id.values() if self._has_expired(each)]:
            self.end_session(session)

    def end_all(self) -> None:
        """End all sessions, at the end of the server."""
        for session in list(self._by_id.values()):
            self.end_session(session)

    def _has_expired(self, session: LoginSession[T]) -> bool:
        now = self.clock()
        return now - session.used_at > IDLE_S or now - session.made_at > AGE_S_MAX
