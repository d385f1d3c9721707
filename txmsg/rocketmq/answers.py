"""Counts answers of calls: their duration, and RocketMQ's code. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

from txmsg.metrics.counts import SECONDS, Histogram
from txmsg.rocketmq.v2 import messaging_pb2 as pb

GOOD: Final = frozenset({pb.OK, pb.MESSAGE_NOT_FOUND})
"""Codes that are not errors: the second one tells a consumer that there are no messages now."""


class Answers:
    """Counts of all calls of a gateway."""

    def __init__(self) -> None:
        self.seconds: dict[str, Histogram] = {}
        """Seconds from the beginning of a call to its answer, by method."""
        self.errors: Counter[int] = Counter()
        """Numbers of answers by code, without those in GOOD."""

    def seconds_of(self, method: str) -> Histogram:
        """Return the histogram of a method's durations."""
        return self.seconds.setdefault(method, Histogram(SECONDS))

    def note(self, status: pb.Status) -> None:
        """Count the status of an answer."""
        if status.code not in GOOD:
            self.errors[status.code] += 1
