"""What goes wrong between a consumer and one of its brokers: counts the failures in a row, and logs.

Knows no connection; time is an argument.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from txmsg.client.channel import RETRYABLE
from txmsg.errors import PermissionDenied, TxmsgError, Unauthenticated
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

PAUSE_S_MAX = 1.0
REFUSED_PAUSE_S_MAX = 10.0
"""When an operator has to act first: each login that fails is noted."""
SAY_AGAIN_S = 60.0


class BrokerFailures:
    """Of one consumer with one broker. failures: calls that failed, in a row. is_refused: the last was not allowed."""

    def __init__(self, group: str, address: str) -> None:
        self.failures = 0
        self.is_refused = False
        self._group, self._address = group, address
        self._said_at = 0.0
        self._pause_told = ""
        self._on_allowed: list[Callable[[], None]] = []

    @property
    def pause_s_max(self) -> float:
        """How long the next call may wait, at most, after a failure."""
        return REFUSED_PAUSE_S_MAX if self.is_refused else PAUSE_S_MAX

    def pause_s(self) -> float:
        """How long the next poll waits, at random: longer after each failure."""
        return random.uniform(0.05, min(self.pause_s_max, 0.1 * 2 ** min(self.failures, 8)))

    def watch(self, on_allowed: Callable[[], None]) -> None:
        """Calls on_allowed when the broker answers a call, after it refused the one before."""
        self._on_allowed.append(on_allowed)

    def note_failure(self, error: TxmsgError, now: float) -> None:
        """Logs the first failure of an outage only; what an operator must correct, once a minute."""
        self.failures += 1
        self.is_refused = isinstance(error, Unauthenticated | PermissionDenied)
        level = logging.WARNING if isinstance(error, RETRYABLE) else logging.ERROR
        if self.failures > 1 and (level == logging.WARNING or now < self._said_at + SAY_AGAIN_S):
            level = logging.DEBUG
        else:
            self._said_at = now
        _log.log(
            level,
            "consumer.receive_failed",
            "group %(group)s gets nothing from broker %(broker)s: %(error)s",
            group=self._group,
            broker=self._address,
            error=error,
        )

    def note_answer(self) -> None:
        """The broker has answered a call."""
        if not self.failures:
            return
        _log.info(
            "consumer.broker_back",
            "group %(group)s: broker %(broker)s answers again",
            group=self._group,
            broker=self._address,
        )
        was_refused = self.is_refused
        self.failures, self.is_refused = 0, False
        if was_refused:
            for on_allowed in self._on_allowed:
                on_allowed()

    def note_pause(self, why: str) -> None:
        """Why the broker has paused the group, as a reply to a poll says; "" if it has not. Logs changes."""
        if why == self._pause_told:
            return
        self._pause_told = why
        if why:
            _log.warning(
                "consumer.paused",
                "group %(group)s is paused at broker %(broker)s: %(reason)s",
                group=self._group,
                broker=self._address,
                reason=why,
            )
        else:
            _log.info(
                "consumer.resumed",
                "group %(group)s is no longer paused at broker %(broker)s",
                group=self._group,
                broker=self._address,
            )

    def note_late(self, count: int) -> None:
        """So many messages were settled too late."""
        _log.info(
            "consumer.settled_late",
            "group %(group)s: %(messages)d acknowledgements or refusals came too late: those messages are redelivered",
            group=self._group,
            messages=count,
        )

    def note_lost(self, count: int) -> None:
        """The broker has taken back so many messages that are held."""
        _log.info(
            "consumer.messages_lost",
            "group %(group)s: broker %(broker)s has taken back %(messages)d messages that are held here: they are "
            "redelivered",
            group=self._group,
            broker=self._address,
            messages=count,
        )

    def note_unsent(self, count: int) -> None:
        """At the end, so many settlements were not sent."""
        _log.warning(
            "consumer.settlements_unsent",
            "%(messages)d settlements did not reach broker %(broker)s: those messages are redelivered",
            messages=count,
            broker=self._address,
        )
