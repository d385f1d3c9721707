"""Latencies of figures, in buckets of geometric steps, and their percentiles. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_BUCKETS_MS: Final = tuple(sorted({round(10 ** (step / 20)) for step in range(161)}))
"""Up to 1, 2, ... 10, 11, 13, 14, 16, ... 1,000, ... ms: twenty steps for each factor of ten, to over a day."""


def buckets(commits: Mapping[int, int], now_ms: int) -> dict[int, int]:
    """Return the number of events by latency bucket, given those committed in each millisecond."""
    found: Counter[int] = Counter()
    for at_ms, events in commits.items():
        step = bisect_left(_BUCKETS_MS, now_ms - at_ms)
        found[_BUCKETS_MS[min(step, len(_BUCKETS_MS) - 1)]] += events
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latency from commit of a trade to write of its figure: upper bounds of buckets, None without events."""

    events: int
    p50_ms: int | None
    p99_ms: int | None


def percentiles(found: Iterable[tuple[int, int]]) -> Latency:
    """Return percentiles, given buckets with their numbers of events, in order."""
    rows = list(found)
    events = sum(count for _, count in rows)
    return Latency(events=events, p50_ms=_percentile(rows, events, 50), p99_ms=_percentile(rows, events, 99))


def _percentile(rows: Sequence[tuple[int, int]], events: int, percent: int) -> int | None:
    seen = 0
    for bucket_ms, count in rows:
        seen += count
        if seen * 100 >= events * percent:
            return bucket_ms
    return None
