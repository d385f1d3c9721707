"""Limits of a user at a server, and the user's total use of it over all connections. Knows no network."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from txmsg.errors import MisuseError, Overloaded, shown
from txmsg.wire.access.rate import TokenBucket, admitted

__all__ = ["NO_LIMITS", "Usage", "Usages", "UserLimits", "checked_limits"]

_LIMIT_MAX: Final = 1e12
_WAIT_S_MAX: Final = 5.0
"""Seconds that a call waits for its rate, at most; one that would wait longer is refused. A server may set another
time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """Limits of one user at each server. 0: no limit."""

    connections: int = 0
    requests_per_s: float = 0.0
    messages_per_s: float = 0.0
    """Messages that it sends."""
    in_flight_bytes: int = 0
    """Bytes of its requests in progress; a single request is always allowed."""
    topics: int = 0
    """Existing topics that it has created, in the database of a broker; topics of logs do not count."""
    groups: int = 0
    """Existing consumer groups that it has created, including members that broadcast."""

    @property
    def is_any(self) -> bool:
        """True if any limit is set."""
        return any(getattr(self, each.name) for each in fields(self))

    def with_own(self, own: Mapping[str, float]) -> UserLimits:
        """Return these limits with those of a user in their place; limits of a newer release that this one lacks are
        ignored."""
        return replace(self, **{each.name: own[each.name] for each in fields(self) if each.name in own})  # type: ignore[arg-type]


def checked_limits(limits: Mapping[str, float]) -> Mapping[str, float]:
    """Return `limits` if a user may have them. Raises MisuseError."""
    known = [each.name for each in fields(UserLimits)]
    for name, value in limits.items():
        if name not in known:
            raise MisuseError(f"{shown(name)} is not a limit of users: there are {', '.join(known)}")
        if not 0 <= value <= _LIMIT_MAX or (not name.endswith("_per_s") and value != int(value)):
            raise MisuseError(f"{name}={value:g} is not a limit: give 0 for none, or a number up to {_LIMIT_MAX:g}")
    # Counts become whole numbers: they come from TOML or JSON, where 20.0 is a valid spelling.
    return {name: value if name.endswith("_per_s") else int(value) for name, value in limits.items()}


NO_LIMITS: Final = UserLimits()


class Usage:
    """The connections, requests and rates of one user at this server."""

    def __init__(
        self,
        user: str,
        limits: UserLimits,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        wait_s_max: float = _WAIT_S_MAX,
    ) -> None:
        self.user = user
        self._wait_s_max = wait_s_max
        self.connections = 0
        self.in_flight_bytes = 0
        """Counted without a limit, too: one may be set at any time."""
        self._monotonic = monotonic
        self.use_limits(limits)

    def use_limits(self, limits: UserLimits) -> None:
        """Replace the limits. The rates begin with full buckets."""
        self.limits = limits
        self.is_limited = limits.is_any
        now = self._monotonic()
        self._requests = TokenBucket(limits.requests_per_s, now) if limits.requests_per_s else None
        self._messages = TokenBucket(limits.messages_per_s, now) if limits.messages_per_s else None

    def refusal(self, size_bytes: int) -> Overloaded | None:
        """Return the error with which to refuse a request of this size; None if it is allowed."""
        most = self.limits.in_flight_bytes
        # A request alone passes whatever its size: otherwise one larger than the limit could never be sent.
        if most and self.in_flight_bytes and self.in_flight_bytes + size_bytes > most:
            return self.exceeded("bytes", f"{self.in_flight_bytes} bytes of requests are under way, {most} may be")
        return None

    async def request(self) -> None:
        """Return when a request may begin. Raises Overloaded."""
        if self._requests is not None:
            await self._paced(self._requests, 1, "requests")

    async def messages(self, count: int) -> None:
        """Return when `count` messages may be sent. Raises Overloaded."""
        if self._messages is not None:
            await self._paced(self._messages, count, "messages")

    async def _paced(self, bucket: TokenBucket, count: int, what: str) -> None:
        def refusal() -> Overloaded:
            return self.exceeded(
                what, f"{bucket.rate:g} {what}/s are allowed, and more wait than pass in {self._wait_s_max:g} s"
            )

        await admitted(bucket, count, now=self._monotonic(), wait_s_max=self._wait_s_max, refusal=refusal)

    def exceeded(self, option: str, what: str) -> Overloaded:
        """Return the error at a limit, which names the command that raises it."""
        return Overloaded(
            f"user {self.user} is at its limit: {what}; nothing was done: do less at once, or raise it with `txmsg "
            f"user limit {self.user} --{option} N` (of a log with --access: in its file)"
        )


class Usages:
    """Use by all users of a server, including users that are not connected: reconnecting must not refill a rate."""

    def __init__(self, limits_of: Callable[[str], UserLimits], *, wait_s_max: float = _WAIT_S_MAX) -> None:
        self._limits_of = limits_of
        self._wait_s_max = wait_s_max
        self._by_user: dict[str, Usage] = {}

    def enter(self, user: str) -> Usage:
        """Count a connection of this user, and return its use. Raises Overloaded."""
        usage = self.of(user)
        most = usage.limits.connections
        if most and usage.connections >= most:
            raise usage.exceeded(
                "connections", f"{usage.connections} connections, as many as it may have at this server"
            )
        usage.connections += 1
        return usage

    def of(self, user: str) -> Usage:
        """Return the use by this user."""
        usage = self._by_user.get(user)
        if usage is None:
            usage = self._by_user[user] = Usage(user, self._limits_of(user), wait_s_max=self._wait_s_max)
        return usage

    def apply_limits(self, users: Collection[str]) -> None:
        """Apply changed users and limits."""
        for user, usage in list(self._by_user.items()):
            # Only deleted users are forgotten. A user that merely has no connection keeps its buckets.
            if user not in users:
                del self._by_user[user]
            elif (limits := self._limits_of(user)) != usage.limits:
                usage.use_limits(limits)
