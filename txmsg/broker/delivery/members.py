"""The members of one consumer group: what they want, and how they fare. Pure: time is an argument."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from txmsg.broker.delivery.pause import Pause
from txmsg.broker.rate import TokenBucket
from txmsg.wire.tags import ALL_TAGS, TagExpression

__all__ = ["Members"]

_log = logging.getLogger(__name__)

_HEALTHY_S = 60.0
"""A member whose last answer, no longer ago, was a success keeps its group from pausing. One that asked for messages no
longer ago is there: it asks every 30 s, unless its handlers have enough to do."""
_RATE_WAIT_S_MIN = 0.1  # members that wait for a low rate look no more often


@dataclass(slots=True)
class _Member:
    wants: Mapping[str, TagExpression]
    seen_at: float
    pause: Pause
    succeeded_at: float = -math.inf


@dataclass(slots=True, eq=False)
class Members:
    """Who is there, who wants which tags, and how many messages each may be given.

    When all messages of the group fail, the whole group pauses; when those of one member fail and others succeed, this
    member alone. Either gets single messages until one succeeds.
    """

    group: str
    pause: Pause = field(default_factory=Pause)
    """Of the whole group."""
    rate: TokenBucket | None = None
    retries: int = 0
    """How many rows the group has in `retry`: at least so many, when they were counted last."""
    _members: dict[str, _Member] = field(default_factory=dict)
    _wanted: dict[str, TagExpression] = field(default_factory=dict)
    _swept_at: float = 0.0

    def limit(self, rate_max: float | None, now: float) -> None:
        """Sets how many messages per second go to all members together; None: no limit."""
        if rate_max is None:
            self.rate = None
        elif self.rate is None or self.rate.rate != rate_max:
            self.rate = TokenBucket(rate_max, now)

    # ---- what they want

    def join(self, client_id: str, wants: Mapping[str, TagExpression], now: float, ttl_s: float) -> None:
        """Notes what a member wants, and forgets members that were silent for ttl_s."""
        member = self._members.get(client_id)
        if member is not None and member.wants == wants and now < self._swept_at + ttl_s / 10:
            member.seen_at = now
            return
        if member is None:
            self._members[client_id] = _Member(wants, now, Pause(self.pause.failures_max, self.pause.retries_max))
        else:
            member.wants, member.seen_at = wants, now
        self._members = {each: member for each, member in self._members.items() if member.seen_at > now - ttl_s}
        self._swept_at = now
        self._wanted = {
            topic: TagExpression.union(m.wants[topic] for m in self._members.values() if topic in m.wants)
            for topic in {topic for m in self._members.values() for topic in m.wants}
        }

    def asked_for(self, now: float) -> set[str]:
        """The topics for which any member has asked of late."""
        return {
            topic for member in self._members.values() if member.seen_at > now - _HEALTHY_S for topic in member.wants
        }

    def present(self, now: float) -> list[tuple[str, float]]:
        """Who asked for messages of late, and how many seconds ago."""
        silent_s = {client_id: now - member.seen_at for client_id, member in self._members.items()}
        return [(client_id, each) for client_id, each in sorted(silent_s.items()) if each < _HEALTHY_S]

    def is_used(self, now: float, ttl_s: float) -> bool:
        """Whether any member asked for messages within ttl_s."""
        return any(member.seen_at > now - ttl_s for member in self._members.values())

    def wanted(self, topic: str) -> TagExpression:
        """Which tags of a topic at least one member wants."""
        return self._wanted.get(topic, ALL_TAGS)

    # ---- how many they may be given

    def room(self, client_id: str, now: float) -> float:
        """How many messages this member may be given now: any number, unless somebody pauses or a rate is set."""
        room = min(each.room(now) for each in self._pauses_of(client_id))
        return room if self.rate is None else min(room, self.rate.room(now))

    def blocked_s(self, client_id: str, now: float) -> float:
        """For how long `room` stays none. 0: there is some now."""
        if self.room(client_id, now):
            return 0.0
        opens_at = max(each.opens_at(now) for each in self._pauses_of(client_id))
        rate_s = 0.0 if self.rate is None or self.rate.room(now) else max(self.rate.wait_s(now), _RATE_WAIT_S_MIN)
        return max(opens_at - now, rate_s)

    def given(self, client_id: str, count: int, *, token: int, now: float, visibility_timeout_s: float) -> None:
        """So many messages went out to this member under this token."""
        for each in self._pauses_of(client_id):
            each.given(token, now, visibility_timeout_s, client_id)
        if self.rate is not None:
            self.rate.take(count)

    def left(self, client_id: str) -> None:
        """The connection of a member that waited for messages is gone, and the member perhaps, too."""
        self.pause.left(client_id)

    def _pauses_of(self, client_id: str) -> list[Pause]:
        member = self._members.get(client_id)
        return [self.pause] if member is None else [self.pause, member.pause]

    # ---- how they fare

    def succeeded(self, client_id: str, now: float, count: int = 1) -> bool:
        """A member has processed so many messages. Whether this ends a pause of the group."""
        member = self._members.get(client_id)
        if member is not None:
            member.succeeded_at = now
            member.pause.succeeded(now, count)
        paused_s = now - (self.pause.since or now)
        if not self.pause.succeeded(now, count):
            return False
        _log.warning("group %s goes on after a pause of %.0f s", self.group, paused_s)
        for each in self._members.values():
            each.pause.succeeded(now)
        return True

    def failed(self, client_id: str | None, count: int, error: str, *, token: int, now: float) -> bool:
        """So many messages given under this token failed. Whether they are to come again as if they had not been given:
        that is so during a pause, but for its probe."""
        is_probe = self.pause.is_probe(token)
        member = None if client_id is None else self._members.get(client_id)
        begins = member is not None and member.pause.failed(count, error, now, token=token, retries=self.retries)
        if begins and len(self._members) > 1:
            _log.warning("group %s: member %s fails only, and gets single messages", self.group, client_id)
        spare = self.pause.begins(count, self.retries) and self._others_succeed(client_id, now)
        if self.pause.failed(count, error, now, token=token, retries=self.retries, spare=spare):
            _log.warning(
                "group %s pauses after %d failures in a row, with %d messages in retry, and gets single messages until "
                "one is processed; the last error: %s",
                *(self.group, self.pause.failures, self.retries, error.partition("\n")[0]),
            )
        return self.pause.is_on and not is_probe

    def _others_succeed(self, client_id: str | None, now: float) -> bool:
        return any(
            each != client_id and not member.pause.failures and member.succeeded_at > now - _HEALTHY_S
            for each, member in self._members.items()
        )
