"""Advances time for a test: due times in the Notify database become earlier.

Due times are moved rather than a clock, because client, broker and PostgreSQL have one each, and those must agree:
docs/decisions/0050-test-clock.md. Times measured in memory do not move: visibility timeouts, leases, time-outs of
calls, and the pause of a group whose handlers all fail.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg

from txmsg.errors import MisuseError

# A half becomes due now, not in the past: an overdue one would count as one that no client could answer for.
MOVES = (
    """
    update txmsg.half_message set next_check_at = greatest(next_check_at - %(span)s, now()) where next_check_at > now()
    """,
    "update txmsg.half_message set deliver_at = deliver_at - %(span)s where deliver_at is not null",
    "update txmsg.retry set due_at = due_at - %(span)s where due_at < 'infinity'",
    "update txmsg.scheduled set deliver_at = deliver_at - %(span)s",
)


class Clock:
    """The clock of a test's broker: `txmsg_clock.advance(minutes=10)`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def advance(self, *, seconds: float = 0.0, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> None:
        """Advance time for all messages that wait now: check-backs, retries, delayed messages.

        Messages that begin to wait later wait for the full time. Raises MisuseError for a duration that is not
        positive.
        """
        span = timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days)
        if span <= timedelta(0):
            seconds = span.total_seconds()
            raise MisuseError(
                f"txmsg_clock.advance() by {seconds:g} s: it only goes forward; give, for example, minutes=10"
            )
        with self._connection.transaction():
            for move in MOVES:
                self._connection.execute(move, {"span": span})
