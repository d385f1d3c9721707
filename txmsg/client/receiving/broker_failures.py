"""Failures between a consumer and one of its brokers: counted in a row, and logged.

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
"""Seconds between polls that a broker refuses, at most: an operator has to act, and each failed login is noted."""
SAY_AGAIN_S = 60.0


class BrokerFailures:
    """Failures of one consumer with one broker. failures: failed calls in a row. is_refused: True if the last one was
    not allowed."""

    def __init__(self, group: str, address: str) -> None:
        self.failures = 0
        self.is_refused = False
        self._group, self._address = group, address
        self._said_at = 0.0
        self._pause_told = ""
        self._on_allowed: list[Callable[[], None]] = []

    @property
    def pause_s_max(self) -> float:
        """Seconds that the next call waits after a failure, at most."""
        return REFUSED_PAUSE_S_MAX if self.is_refused else PAUSE_S_MAX

    def pause_s(self) -> float:
        """Return the seconds that the next poll waits, at random: longer after each failure."""
        return random.uniform(0.05, min(self.pause_s_max, 0.1 * 2 ** min(self.failures, 8)))

    def watch(self, on_allowed: Callable[[], None]) -> None:
        """Call on_allowed when the broker answers a call, after it refused the one before."""
        self._on_allowed.append(on_allowed)

    def note_failure(self, error: TxmsgError, now: float) -> None:
        """Count a failure. Logs the first of an outage only; errors that an operator must correct, once a minute."""
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
        """Reset the count: the broker has answered a call."""
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
        """Log a change of the reason for which the broker has paused the group; "" if it has not."""
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
        """Log the number of messages that were settled too late."""
        _log.info(
            "consumer.settled_late",
            "group %(group)s: %(messages)d acknowledgements or refusals came too late: those messages are redelivered",
            group=self._group,
            messages=count,
        )

    def note_lost(self, count: int) -> None:
        """Log the number of held messages that the broker has taken back."""
        _log.info(
            "consumer.messages_lost",
            "group %(group)s: broker %(broker)s has taken back %(messages)d messages that are held here: they are "
            "redelivered",
            group=self._group,
            broker=self._address,
            messages=count,
        )

    def note_unsent(self, count: int) -> None:
        """Log the number of settlements that were not sent at the end."""
        _log.warning(
            "consumer.settlements_unsent",
            "%(messages)d settlements did not reach broker %(broker)s: those messages are redelivered",
            messages=count,
            broker=self._address,
        )
