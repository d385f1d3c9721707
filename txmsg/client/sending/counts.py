"""Counts of a producer since it was made. Updated once per request, never per message."""

from __future__ import annotations

from collections import Counter

from txmsg.metrics.catalogue import ERROR, OPERATION
from txmsg.metrics.counts import SECONDS, Histogram
from txmsg.metrics.figures import Figures


class RequestCounts:
    """Requests of one kind, and the calls that they carried."""

    __slots__ = ("calls", "errors", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.errors: Counter[str] = Counter()
        """Errors by code: of single calls, as brokers answered, and of whole requests."""
        self.seconds = Histogram(SECONDS)


class ProducerCounts:
    """Counts of the messages, half messages and outcomes that a producer has sent."""

    __slots__ = ("half", "outcome", "send")

    def __init__(self) -> None:
        self.send = RequestCounts()
        self.half = RequestCounts()
        self.outcome = RequestCounts()

    def put_figures(self, figures: Figures) -> None:
        """Add the counts to figures."""
        for operation, counts in (("send", self.send), ("half", self.half), ("outcome", self.outcome)):
            figures.add("txmsg_client_calls_total", counts.calls, **{OPERATION: operation})
            figures.add("txmsg_client_request_seconds", counts.seconds, **{OPERATION: operation})
            for code, count in list(counts.errors.items()):
                figures.add("txmsg_client_errors_total", count, **{OPERATION: operation, ERROR: code})
