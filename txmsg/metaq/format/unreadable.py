"""Decides which messages of a log cannot be read, and the text for an operator. Pure.

A message cannot be read if a header of txmsg is not what txmsg writes, if its own headers are not those of the
protocol, or if a time is not one from the year 1 to 9999, as that of a program that writes microseconds or nanoseconds
where milliseconds are expected. Every reader stops before such a message, or reports and skips it, and nothing else.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from txmsg.errors import UnreadableMessage
from txmsg.message import us_of_datetime

TIME_US_MIN: Final = us_of_datetime(datetime.min.replace(tzinfo=UTC))
TIME_US_MAX: Final = us_of_datetime(datetime.max.replace(tzinfo=UTC))
"""Times that a datetime, Arrow, Spark and JSON have in common."""


def is_time(us: int) -> bool:
    """Return True if these microseconds since 1970 are a time that readers can show."""
    return TIME_US_MIN <= us <= TIME_US_MAX


def strange_time(us: int, unit: str = "us") -> str:
    """Return the text that says why a time is invalid."""
    return f"its time {us} {unit} since 1970 is not from the year 1 to 9999: was it written in a smaller unit?"


def unreadable(topic: str, queue: int, offset: int, why: str) -> UnreadableMessage:
    """Return the error for the message at this offset."""
    return UnreadableMessage(
        f"offset {offset} of topic {topic} queue {queue} cannot be read: {why}; to skip only this message, "
        f"{way_on(topic, queue, offset + 1)}",
        offset + 1,
    )


def way_on(topic: str, queue: int, offset: int) -> str:
    """Return the command with which an operator has reading continue at this offset."""
    return (
        f"continue at offset {offset}, a group by `txmsg group seek GROUP --log LOG --topic {topic} --queue {queue} "
        f"--to {offset}`"
    )
