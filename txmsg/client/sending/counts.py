"""What a producer has done since it was made. Counted once per request, never per message."""

from __future__ import annotations

from collections import Counter

from txmsg.metrics.catalogue import ERROR, OPERATION
from txmsg.metrics.counts import SECONDS, Histogram
from txmsg.metrics.figures import Figures


class RequestCounts:
    """Requests of one kind, each for the calls that waited."""

    __slots__ = ("calls", "errors", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.errors: Counter[str] = Counter()
        """By code: of single calls, as brokers answered, and of whole requests."""
        self.seconds = Histogram(SECONDS)


class ProducerCounts:
    """What a producer has sent."""

    __slots__ = ("half", "outcome", "send")

    def __init__(self) -> None:
        self.send = RequestCounts()
        self.half = RequestCounts()
        self.outcome = RequestCounts()

    def put_figures(self, figures: Figures) -> None:
        """Adds them."""
        for operation, counts in (("send", self.send), ("half", self.half), ("outcome", self.outcome)):
            figures.add("txmsg_client_calls_total", counts.calls, **{OPERATION: operation})
            figures.add("txmsg_client_request_seconds", counts.seconds, **{OPERATION: operation})
            for code, count in list(counts.errors.items()):
                figures.add("txmsg_client_errors_total", count, **{OPERATION: operation, ERROR: code})
