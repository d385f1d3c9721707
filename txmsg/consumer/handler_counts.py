"""Counts of one topic's handler: calls, durations and exceptions. Updated at each message, so cheaply."""

from __future__ import annotations

from collections import Counter
from typing import Final

from txmsg.metrics.catalogue import ERROR, GROUP, OTHER, TOPIC
from txmsg.metrics.counts import SECONDS, Histogram
from txmsg.metrics.figures import Figures

_CLASSES_MAX: Final = 20


class HandlerCounts:
    """Counts of one handler's calls, as figures. For any thread: a lost count does no harm."""

    __slots__ = ("_failures", "_seconds")

    def __init__(self) -> None:
        self._seconds = Histogram(SECONDS)
        self._failures: Counter[str] = Counter()

    def called(self, seconds: float) -> None:
        """Count a call that has ended, with or without an exception."""
        histogram = self._seconds
        if seconds < SECONDS[0]:  # by hand, for the quick ones: a hundred thousand per second
            histogram.counts[0] += 1
            histogram.sum += seconds
        else:
            histogram.observe(seconds)

    def raised(self, error: Exception) -> None:
        """Count an exception of a call."""
        name = type(error).__name__
        # A bound: each class of exceptions is a time series of its own in the monitoring system.
        if name not in self._failures and len(self._failures) >= _CLASSES_MAX:
            name = OTHER
        self._failures[name] += 1

    def put_figures(self, figures: Figures, group: str, topic: str, *, running: int) -> None:
        """Add the counts to figures, and the number of calls in progress."""
        labels = {GROUP: group, TOPIC: topic}
        figures.add("txmsg_handler_seconds", self._seconds, **labels)
        figures.add("txmsg_handlers_running", running, **labels)
        for name, count in self._failures.copy().items():
            figures.add("txmsg_handler_failures_total", count, **{**labels, ERROR: name})
