"""When delivery to a group pauses, because all its consumers fail, and when it probes. Pure: time is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Pause"]

PROBE_S_MIN = 1.0
PROBE_S_MAX = 30.0
_SHARE_MAX = 0.5
_FADES = 0.99
"""What is left of a message's part in `share` after the next one."""
_RELAPSE_S = 60.0
"""A pause so soon after another one goes on with its back-off: a back end that comes and goes is not hammered."""


@dataclass(slots=True, eq=False)
class Pause:
    """Runs until failures_max messages have failed in a row, then lets single messages through until one succeeds.

    Also until most messages fail and the group has retries_max rows in `retry`, however many succeed in between. Of a
    whole group, or of one of its members. The probes come after 1 s, 2 s, 4 s ... 30 s.
    """

    failures_max: int = 200
    retries_max: int = 1000
    failures: int = 0
    """In a row, without a success."""
    share: float = 0.0
    """Of the last hundred or so messages, how many failed."""
    since: float | None = None
    """When the pause began; None while delivery runs."""
    last_error: str = ""
    _probe_at: float = 0.0
    _probe: int | None = None
    _probed: str | None = None
    _given_at: float = 0.0
    _delay_s: float = PROBE_S_MIN
    _ended_at: float = -math.inf

    @property
    def is_on(self) -> bool:
        """Whether nothing but probes is delivered."""
        return self.since is not None

    def room(self, now: float) -> float:
        """How many messages may be given now: any number, one as a probe, or none."""
        if not self.is_on:
            return math.inf
        return 1 if now >= self._probe_at else 0

    def opens_at(self, now: float) -> float:
        """When `room` will be more than it is now."""
        return self._probe_at if self.is_on else now

    def given(self, token: int, now: float, visibility_timeout_s: float, client_id: str | None = None) -> None:
        """Messages went out under this token: during a pause they are the probe. One without an answer is given up."""
        if self.is_on:
            self._probe, self._probe_at = token, now + max(self._delay_s, visibility_timeout_s)
            self._probed, self._given_at = client_id, now

    def left(self, client_id: str) -> None:
        """A member may have gone. If it has the probe, the next one waits for no answer, only for the back-off."""
        if self.is_on and self._probe is not None and client_id == self._probed:
            self._probed = None
            self._probe_at = min(self._probe_at, self._given_at + self._delay_s)
            self._delay_s = min(2 * self._delay_s, PROBE_S_MAX)

    def is_probe(self, token: int) -> bool:
        """Whether this is the probe that is out: its failure is written like any other, so that the next is another."""
        return self.is_on and token == self._probe

    def is_failing(self, count: int = 0) -> bool:
        """Whether most messages fail, with so many more that have just failed."""
        return 1 - (1 - self.share) * _FADES**count > _SHARE_MAX

    def begins(self, count: int, retries: int) -> bool:
        """Whether a pause would begin if so many messages failed now, while the group has so many retries."""
        is_full = retries >= self.retries_max and self.is_failing(count)
        return not self.is_on and (is_full or self.failures + count >= self.failures_max)

    def succeeded(self, now: float, count: int = 1) -> bool:
        """So many messages were acknowledged. Whether this ends a pause."""
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
        """So many messages failed, given under this token. Whether a pause begins.

        retries: how many rows the group has in `retry`. spare: does not begin one, for others succeed.
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
