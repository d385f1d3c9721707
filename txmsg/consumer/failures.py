"""The future of a message whose handler raised: exceptions that a handler chooses, and the policy of a subscription.

Without either the group's back-off decides. Knows neither brokers nor logs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from txmsg.errors import MisuseError, shown
from txmsg.runtime.durations import Seconds, check_seconds, in_seconds

DELAY_S_MAX: Final = 7 * 24 * 3600.0
"""Seconds by which a message may be delayed, at most."""


class Reject(Exception):
    """Raised by a handler: the message becomes a dead letter at once, with this text as its reason.

    For failures that no retry can fix, such as an invalid body. It does not count as a failure of the handler: a group
    whose messages are rejected is not paused.
    """


class Skip(Exception):
    """Raised by a handler: the message needs no processing, and is acknowledged."""


class RetryAfter(Exception):
    """Raised by a handler: the message is retried after this delay, if it has retries left.

    delay_s: seconds, up to 7 days. In a log it is at most 2 h, and the retry may be as late as the next longer delay of
    the log's back-off: 1 s, 5 s, 10 s, 30 s, 1 m ... 2 h.
    """

    def __init__(self, delay_s: Seconds, reason: str = "") -> None:
        self.delay_s = check_seconds("RetryAfter", delay_s, least_s=0, most_s=DELAY_S_MAX)
        super().__init__(reason or f"again after {self.delay_s:g} s")


class HandlerFailure(NamedTuple):
    """A failed delivery. delay_s: until the next one; None: the back-off decides. is_final: no further delivery.

    is_rejected: because of the message, not of the handler or what it needs.
    """

    error: str
    delay_s: float | None = None
    is_final: bool = False
    is_rejected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The retry policy of one subscription: when a message whose handler raised is redelivered, and how often.

    delays_s: before each retry; the last one repeats. Default: the group's back-off. retries_max: number of retries
    before the message becomes a dead letter; if the group's own limit is smaller, it applies. jitter: the share by
    which each delay is changed at random, 0.1 for up to 10 percent more or less.
    by_type: another Retry, `Reject` or `Skip` for exceptions of these types or their subclasses. The first type that
    matches counts. `Reject`, `Skip` and `RetryAfter` need no entry.
    """

    delays_s: Sequence[Seconds] | None = None
    retries_max: int | None = None
    jitter: float = 0.0
    by_type: Mapping[type[Exception], Retry | type[Reject] | type[Skip]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.delays_s is not None:
            if isinstance(self.delays_s, str) or not self.delays_s:
                raise MisuseError(f"Retry(delays_s={shown(self.delays_s)}): give at least one delay, as [1, 10, 60]")
            delays = tuple(
                check_seconds("Retry(delays_s=...)", each, least_s=0, most_s=DELAY_S_MAX) for each in self.delays_s
            )
            object.__setattr__(self, "delays_s", delays)
        if self.retries_max is not None and not (type(self.retries_max) is int and self.retries_max >= 0):
            raise MisuseError(f"Retry(retries_max={shown(self.retries_max)}) must be a whole number from 0 on")
        if not (isinstance(self.jitter, int | float) and 0 <= self.jitter <= 1):
            raise MisuseError(f"Retry(jitter={shown(self.jitter)}) must be from 0 to 1")
        for kind, chosen in self.by_type.items():
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise MisuseError(f"Retry(by_type=...): {shown(kind)} is not a class of exceptions")
            if not (chosen is Reject or chosen is Skip or isinstance(chosen, Retry)):
                raise MisuseError(
                    f"Retry(by_type=...): {kind.__name__} is given {shown(chosen)}: give Reject, Skip or a Retry(...)"
                )

    def _failure_of(self, exc: Exception, attempt: int, error: str) -> HandlerFailure | None:
        """Return the failure to report; None: the message is acknowledged. attempt: the delivery that failed, from
        1."""
        # Before the policy: a handler that names a delay knows more than a rule for its type. Its message still becomes
        # a dead letter when its retries are used up.
        if isinstance(exc, RetryAfter):
            delay_s = _delay_of(exc)
            if delay_s is None:
                delay_s = self._delay_s(attempt, random.uniform(-1, 1))
            return HandlerFailure(error, delay_s, is_final=self._is_last(attempt))
        entries = [*_SAID, *self.by_type.items()]
        chosen = next((chosen for kind, chosen in entries if isinstance(exc, kind)), None)
        if isinstance(chosen, Retry):  # which may tell types derived from this one apart
            return chosen._failure_of(exc, attempt, error)
        if chosen is None:
            return HandlerFailure(error, self._delay_s(attempt, random.uniform(-1, 1)), is_final=self._is_last(attempt))
        return None if chosen is Skip else HandlerFailure(error, is_final=True, is_rejected=True)

    def _delay_s(self, attempt: int, chance: float = 0.0) -> float | None:
        """Return the seconds until the delivery after `attempt`; None: the group decides. chance: of the jitter, from
        -1 to 1."""
        if self.delays_s is None:
            return None
        delay_s = in_seconds(self.delays_s[min(attempt, len(self.delays_s)) - 1])
        return delay_s * (1 + self.jitter * chance)

    def _is_last(self, attempt: int) -> bool:
        return self.retries_max is not None and attempt > self.retries_max


def _delay_of(exc: RetryAfter) -> float | None:
    """Return the delay of the exception; None if it is of a user's class, and has no valid one."""
    try:
        return check_seconds("RetryAfter", exc.delay_s, least_s=0, most_s=DELAY_S_MAX)
    except Exception:  # noqa: BLE001 - the user's code: an `__init__` that sets none, a property that raises
        return None


def check_retry(topic: str, retry: object) -> Retry | None:
    """Return `retry` if a subscription may have it. Raises MisuseError."""
    if not isinstance(retry, Retry | None):
        raise MisuseError(f"retry={shown(retry)} of topic {topic!r} is not a Retry: give Retry(delays_s=[1, 10, 60])")
    return retry


_SAID: Final[list[tuple[type[Exception], type[Reject] | type[Skip]]]] = [(Skip, Skip), (Reject, Reject)]
"""Exceptions that handlers raise on purpose: no policy changes them."""
AS_THE_GROUP: Final = Retry()
"""The policy without choices in code."""
