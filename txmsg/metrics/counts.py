"""Counters of hot paths: cheap, without locks, read by scrapes at any time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Bounds of a histogram of durations."""
ITEMS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
"""Bounds of a histogram of batch sizes."""


class Histogram:
    """The number of values between bounds, and their sum. For one thread, or where a lost count does no harm.

    Not prometheus_client's, which takes two locks for each value.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The number of values in each interval, the last one without a bound; not cumulative."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def plus(self, other: Histogram) -> Histogram:
        """Return the sum of both. They must have the same bounds."""
        both = Histogram(self.bounds)
        both.counts = [mine + others for mine, others in zip(self.counts, other.counts, strict=True)]
        both.sum = self.sum + other.sum
        return both

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)
