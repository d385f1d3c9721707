"""The members of one consumer group: their subscriptions, their failures, and pauses of delivery. Time is an argument.

Pure: knows no database and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from txmsg.broker.delivery.values import PollSequenceStep, Receipt
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.rate import TokenBucket
from txmsg.wire.tags import ALL_TAGS, TagExpression

PROBE_S_MIN = 1.0
PROBE_S_MAX = 30.0
_SHARE_MAX = 0.5
_FADES = 0.99
"""The decay of `share` per message."""
_RELAPSE_S = 60.0
"""A pause this soon after another one continues its back-off, so that a flapping back end is not hammered."""


@dataclass(slots=True, eq=False)
class Pause:
    """Stops delivery after failures_max failures in a row, then probes with single messages until one succeeds.

    It also begins when most messages fail and the group has retries_max rows in `retry`. A group has one, and so has
    each of its members. Probes are sent after 1 s, 2 s, 4 s ... 30 s (decision 13).
    """

    failures_max: int = 200
    retries_max: int = 1000
    failures: int = 0
    """Failures in a row."""
    share: float = 0.0
    """The share of failures among roughly the last hundred messages."""
    since: float | None = None
    """The time when the pause began; None while delivery runs."""
    last_error: str = ""
    _probe_at: float = 0.0
    _probe: int | None = None
    _probed: str | None = None
    _given_at: float = 0.0
    _delay_s: float = PROBE_S_MIN
    _ended_at: float = -math.inf

    @property
    def is_on(self) -> bool:
        """True if only probes are delivered."""
        return self.since is not None

    def room(self, now: float) -> float:
        """Return the number of messages that may be delivered now: infinite, one as a probe, or 0."""
        if not self.is_on:
            return math.inf
        return 1 if now >= self._probe_at else 0

    def opens_at(self, now: float) -> float:
        """Return the time when `room` will be more than it is now."""
        return self._probe_at if self.is_on else now

    def given(self, token: int, now: float, visibility_timeout_s: float, client_id: str | None = None) -> None:
        """Note that messages were delivered under this token. During a pause they are the probe.

        A probe without an answer is given up after visibility_timeout_s.
        """
        if self.is_on:
            self._probe, self._probe_at = token, now + max(self._delay_s, visibility_timeout_s)
            self._probed, self._given_at = client_id, now

    def left(self, client_id: str) -> None:
        """Note that a member may have gone. If it has the probe, the next one waits only for the back-off."""
        if self.is_on and self._probe is not None and client_id == self._probed:
            self._probed = None
            self._probe_at = min(self._probe_at, self._given_at + self._delay_s)
            self._delay_s = min(2 * self._delay_s, PROBE_S_MAX)

    def is_probe(self, token: int) -> bool:
        """Return True if this is the probe in flight.

        Its failure is written, so that the next probe is another message.
        """
        return self.is_on and token == self._probe

    def is_failing(self, count: int = 0) -> bool:
        """Return True if most messages fail, counting `count` more failures."""
        # An exponential average needs one number per member, and `count` failures are one power instead of a loop.
        return 1 - (1 - self.share) * _FADES**count > _SHARE_MAX

    def begins(self, count: int, retries: int) -> bool:
        """Return True if a pause would begin if `count` messages failed now, with `retries` rows in `retry`."""
        is_full = retries >= self.retries_max and self.is_failing(count)
        return not self.is_on and (is_full or self.failures + count >= self.failures_max)

    def succeeded(self, now: float, count: int = 1) -> bool:
        """Count `count` acknowledged messages. Returns True if this ends a pause."""
        self.failures = 0
        self.share *= _FADES**count
        if not self.is_on:
            return False
        self.since = self._probe = None
        self._ended_at = now
        return True

    def failed(
        self, count: int, error: str, now: float, *, token: int | None = None, retries: int = 0, spare: bool = False
    ) -> bool:
        """Count `count` failed messages delivered under this token. Returns True if a pause begins.

        retries: the number of the group's rows in `retry`. spare: begin no pause, as other members succeed.
        """
        begins = self.begins(count, retries)
        self.failures += count
        self.share = 1 - (1 - self.share) * _FADES**count
        self.last_error = error
        if self.is_on:
            if token is not None and token == self._probe:
                self._probe = None
                self._delay_s = min(2 * self._delay_s, PROBE_S_MAX)
                self._probe_at = now + self._delay_s
            return False
        if spare or not begins:
            return False
        if now > self._ended_at + _RELAPSE_S:
            self._delay_s = PROBE_S_MIN
        self.since, self._probe_at = now, now + self._delay_s
        return True


_log = EventLog(__name__)

_HEALTHY_S = 60.0
"""Seconds within which a member must have succeeded to keep its group from pausing; and within which one must have
asked for messages to count as present, unless it waits for some."""
_RATE_WAIT_S_MIN = 0.1  # members that wait for a low rate retry no more often
_LINES_MAX = 64
"""Maximum number of lines of a member whose last call is remembered. It has one to each broker, and for moments one
more; but a gateway for RocketMQ's clients has one for each call, as many as its client makes at once."""


@dataclass(slots=True)
class _PollSequenceState:
    call: int
    """The number of the latest call."""
    sent: Sequence[Receipt] = ()
    """The receipts of messages sent in reply to it."""
    waits: bool = False
    """True while the call waits for messages, and so may still take some."""


@dataclass(slots=True)
class _Member:
    wants: Mapping[str, TagExpression]
    seen_at: float
    pause: Pause
    succeeded_at: float = -math.inf
    waiting: int = 0
    """The number of its calls that wait for messages."""
    has_gone: bool = False
    """True if it has ended its presence at this broker, and asked for nothing since."""
    lines: dict[int, _PollSequenceState] = field(default_factory=dict)
    """Lines by id, the one used last at the end."""

    def silent_s(self, now: float) -> float:
        """Return the seconds since it asked for messages; 0 while it waits for them."""
        return 0.0 if self.waiting else now - self.seen_at


@dataclass(slots=True, eq=False)
class Members:
    """The members of a group, the tags that each wants, and the number of messages that each may get.

    When all messages of the group fail, the whole group pauses; when those of one member fail and others succeed, only
    this member. A paused group or member gets single messages until one succeeds.
    """

    group: str
    pause: Pause = field(default_factory=Pause)
    """The pause of the whole group."""
    rate: TokenBucket | None = None
    stopped: bool = False
    """True if nothing is delivered to any member until an operator starts the group again."""
    retries: int = 0
    """The number of the group's rows in `retry`, at the last count, which stops at a maximum."""
    _members: dict[str, _Member] = field(default_factory=dict)
    _wanted: dict[str, TagExpression] = field(default_factory=dict)
    _swept_at: float = 0.0

    def limit(self, rate_max: float | None, now: float, *, stopped: bool = False) -> None:
        """Set the messages per second for all members together; None: no limit. stopped: deliver nothing."""
        self.stopped = stopped
        if rate_max is None:
            self.rate = None
        elif self.rate is None or self.rate.rate != rate_max:
            self.rate = TokenBucket(rate_max, now)

    def pause_after(self, failures_max: int, retries_max: int) -> None:
        """Set the number of failures, and of retries, at which delivery pauses. A pause that is on stays on."""
        for pause in (self.pause, *(member.pause for member in self._members.values())):
            pause.failures_max, pause.retries_max = failures_max, retries_max

    # ---- what they want

    def join(self, client_id: str, wants: Mapping[str, TagExpression], now: float, ttl_s: float) -> None:
        """Note the subscription of a member, and forget members that were silent for ttl_s."""
        member = self._members.get(client_id)
        # The usual case: the same subscription as at the last call. The union of all tags is built only when one has
        # changed, or after a tenth of ttl_s to forget silent members.
        if member is not None and member.wants == wants and now < self._swept_at + ttl_s / 10:
            member.seen_at, member.has_gone = now, False
            return
        if member is None:
            self._members[client_id] = _Member(wants, now, Pause(self.pause.failures_max, self.pause.retries_max))
        else:
            member.wants, member.seen_at, member.has_gone = wants, now, False
        self._members = {key: known for key, known in self._members.items() if known.silent_s(now) < ttl_s}
        self._swept_at = now
        self._wanted = {
            topic: TagExpression.union(known.wants[topic] for known in self._members.values() if topic in known.wants)
            for topic in {topic for known in self._members.values() for topic in known.wants}
        }

    @contextmanager
    def waits(
        self, client_id: str, monotonic: Callable[[], float], line: PollSequenceStep | None = None
    ) -> Iterator[None]:
        """Count a member that has joined as waiting for messages."""
        member = self._members[client_id]
        call = None if line is None else member.lines.get(line.id)
        member.waiting += 1
        if call is not None:
            call.waits = True
        try:
            yield
        finally:
            if call is not None:
                call.waits = False
            member.waiting -= 1
            member.seen_at = monotonic()

    def attached(self, client_id: str, *, is_there: bool) -> None:
        """Note that a client begins its presence at this broker, or ends it, as one that is closed does."""
        if (member := self._members.get(client_id)) is not None:
            member.has_gone = not is_there

    def asked_for(self, now: float) -> set[str]:
        """Return the topics for which a present member has asked."""
        return {
            topic for member in self._members.values() if member.silent_s(now) < _HEALTHY_S for topic in member.wants
        }

    def present(self, now: float) -> list[tuple[str, float]]:
        """Return the members present, and the seconds since each asked for messages."""
        silent_s = {
            client_id: member.silent_s(now)
            for client_id, member in self._members.items()
            if member.waiting or not member.has_gone
        }
        return [(client_id, silence_s) for client_id, silence_s in sorted(silent_s.items()) if silence_s < _HEALTHY_S]

    def is_used(self, now: float, ttl_s: float) -> bool:
        """Return True if any member asked for messages within ttl_s."""
        return any(member.silent_s(now) < ttl_s for member in self._members.values())

    def wanted(self, topic: str) -> TagExpression:
        """Return the tags of a topic that at least one member wants."""
        return self._wanted.get(topic, ALL_TAGS)

    # ---- how many they may get

    def room(self, client_id: str, now: float) -> float:
        """Return the number of messages that this member may get now: infinite without a pause and a rate."""
        if self.stopped:
            return 0
        room = min(pause.room(now) for pause in self._pauses_of(client_id))
        return room if self.rate is None else min(room, self.rate.room(now))

    def blocked_s(self, client_id: str, now: float) -> float:
        """Return the seconds for which `room` stays 0. 0: there is room now."""
        if self.room(client_id, now):
            return 0.0
        if self.stopped:
            return math.inf
        opens_at = max(pause.opens_at(now) for pause in self._pauses_of(client_id))
        rate_s = 0.0 if self.rate is None or self.rate.room(now) else max(self.rate.wait_s(now), _RATE_WAIT_S_MIN)
        return max(opens_at - now, rate_s)

    def given(self, client_id: str, count: int, *, token: int, now: float, visibility_timeout_s: float) -> None:
        """Count `count` messages delivered to this member under this token."""
        for pause in self._pauses_of(client_id):
            pause.given(token, now, visibility_timeout_s, client_id)
        if self.rate is not None:
            self.rate.take_tokens(count)

    def returned(self, count: int) -> None:
        """Take back `count` messages that were counted as delivered and do not reach their member."""
        if self.rate is not None:
            self.rate.take_tokens(-count)

    def is_latest(self, client_id: str, line: PollSequenceStep) -> bool:
        """Return True if no later call over this line of a member is known."""
        member = self._members.get(client_id)
        known = None if member is None else member.lines.get(line.id)
        return known is None or line.call >= known.call

    def follow(self, client_id: str, line: PollSequenceStep) -> Sequence[Receipt]:
        """Note the latest call over a line of a member.

        Returns the receipts of the call before if its reply did not arrive.
        """
        member = self._members.get(client_id)
        if member is None:
            return ()
        last = member.lines.pop(line.id, None)
        if len(member.lines) >= _LINES_MAX:
            # A line whose call still waits is forgotten last: its reply would not be repeated if it were lost.
            oldest = next(iter(member.lines))
            del member.lines[next((id_ for id_, known in member.lines.items() if not known.waits), oldest)]
        member.lines[line.id] = _PollSequenceState(line.call)
        return () if last is None or (last.sent and last.sent[0].token == line.received) else last.sent

    def sent(self, client_id: str, line: PollSequenceStep, receipts: Sequence[Receipt]) -> Sequence[Receipt]:
        """Note the receipts that the latest call over a line has taken. The next call says if they arrived.

        Returns the receipts that this replaces: no call can confirm them any more.
        """
        member = self._members.get(client_id)
        if member is None or line.id not in member.lines:
            return ()
        known = member.lines[line.id] = member.lines.pop(line.id)
        replaced, known.sent = known.sent, receipts
        return replaced

    def left(self, client_id: str) -> None:
        """Note that the connection of a member that waited for messages is gone, and perhaps the member too."""
        self.pause.left(client_id)

    def _pauses_of(self, client_id: str) -> list[Pause]:
        member = self._members.get(client_id)
        return [self.pause] if member is None else [self.pause, member.pause]

    # ---- how they fare

    def succeeded(self, client_id: str, now: float, count: int = 1) -> bool:
        """Count `count` messages that a member has processed. Returns True if this ends a pause of the group."""
        member = self._members.get(client_id)
        if member is not None:
            member.succeeded_at = now
            member.pause.succeeded(now, count)
        paused_s = now - (self.pause.since or now)
        if not self.pause.succeeded(now, count):
            return False
        _log.warning(
            "group.resumed",
            "group %(group)s continues after a pause of %(paused_s).0f s",
            group=self.group,
            paused_s=paused_s,
        )
        for member in self._members.values():
            member.pause.succeeded(now)
        return True

    def failed(self, client_id: str | None, count: int, error: str, *, token: int, now: float) -> bool:
        """Count `count` failed messages delivered under this token. Returns True if they return to the queue uncounted.

        They do so during a pause, except for its probe.
        """
        # Asked before the failure is counted, which ends the probe.
        is_probe = self.pause.is_probe(token)
        member = None if client_id is None else self._members.get(client_id)
        begins = member is not None and member.pause.failed(count, error, now, token=token, retries=self.retries)
        if begins and len(self._members) > 1:
            _log.warning(
                "group.member_paused",
                "group %(group)s: member %(member)s fails only, and gets single messages",
                group=self.group,
                member=client_id,
            )
        spare = self.pause.begins(count, self.retries) and self._others_succeed(client_id, now)
        if self.pause.failed(count, error, now, token=token, retries=self.retries, spare=spare):
            _log.warning(
                "group.paused",
                "group %(group)s pauses after %(failures)d failures in a row, with %(retries)d messages in retry, and "
                "gets single messages until one is processed; the last error: %(error)s",
                group=self.group,
                failures=self.pause.failures,
                retries=self.retries,
                error=error.partition("\n")[0],
            )
        return self.pause.is_on and not is_probe

    def _others_succeed(self, client_id: str | None, now: float) -> bool:
        return any(
            other_id != client_id and not other.pause.failures and other.succeeded_at > now - _HEALTHY_S
            for other_id, other in self._members.items()
        )
