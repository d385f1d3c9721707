"""Moves the time: what waits for a moment in the Notify database waits for an earlier one.

Every broker decides what is due by the database's clock, and the moments stand in tables; so moving them is as good
as moving the clock. What is measured in memory goes by the machine's clock and is not moved: invisible times, leases,
time-outs of calls, and the pause of a group whose handlers all fail.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg

from txmsg.errors import MisuseError

__all__ = ["Clock"]

# What becomes due is due in a moment, not long ago: brokers look through due times by windows that only go forward, and
# must not have passed it when this becomes visible.
_MOVES = (
    """
    update txmsg.half_message
       set next_check_at = greatest(next_check_at - %(span)s, now() + interval '50 milliseconds')
     where next_check_at > now() + interval '50 milliseconds'
    """,
    "update txmsg.half_message set deliver_at = deliver_at - %(span)s where deliver_at is not null",
    "update txmsg.retry set due_at = due_at - %(span)s where due_at < 'infinity'",
    """
    update txmsg.scheduled set due_at = greatest(due_at - %(span)s, now() + interval '50 milliseconds')
     where due_at > now() + interval '50 milliseconds'
    """,
)


class Clock:
    """The clock of a test's broker: `txmsg_clock.advance(minutes=10)`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def advance(self, *, seconds: float = 0.0, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> None:
        """Lets this much time go by for everything that waits now: check-backs, retries, delayed messages.

        What begins to wait later waits in full. Raises MisuseError for a span that is not positive.
        """
        span = timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days)
        if span <= timedelta(0):
            seconds = span.total_seconds()
            raise MisuseError(f"txmsg_clock.advance() by {seconds:g} s: it only goes forward; give minutes=10, say")
        with self._connection.transaction():
            for move in _MOVES:
                self._connection.execute(move, {"span": span})
