"""Counts how calls are answered: how long it takes, and with which of RocketMQ's codes. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

from txmsg.metrics.counts import SECONDS, Histogram
from txmsg.rocketmq.v2 import messaging_pb2 as pb

GOOD: Final = frozenset({pb.OK, pb.MESSAGE_NOT_FOUND})
"""Codes that are not errors: the second one tells a consumer that there is no message now."""


class Answers:
    """Of all calls of a gateway."""

    def __init__(self) -> None:
        self.seconds: dict[str, Histogram] = {}
        """By method, from the beginning of a call to its answer."""
        self.errors: Counter[int] = Counter()
        """Answers by code, without those in GOOD."""

    def seconds_of(self, method: str) -> Histogram:
        """Where the calls of a method are timed."""
        return self.seconds.setdefault(method, Histogram(SECONDS))

    def note(self, status: pb.Status) -> None:
        """An answer has this status."""
        if status.code not in GOOD:
            self.errors[status.code] += 1
