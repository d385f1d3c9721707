"""How long figures took, in buckets of geometric steps; and percentiles of them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_BUCKETS_MS: Final = tuple(sorted({round(10 ** (step / 20)) for step in range(161)}))
"""Up to 1, 2, ... 10, 11, 13, 14, 16, ... 1,000, ... ms: twenty steps for each factor of ten, to a day and more."""


def buckets(commits: Mapping[int, int], now_ms: int) -> dict[int, int]:
    """How many events came to be seen within so many milliseconds, of those committed in each millisecond."""
    found: Counter[int] = Counter()
    for at_ms, events in commits.items():
        step = bisect_left(_BUCKETS_MS, now_ms - at_ms)
        found[_BUCKETS_MS[min(step, len(_BUCKETS_MS) - 1)]] += events
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """From the commit of a trade to the write of its figure: each the upper end of its bucket, None without events."""

    events: int
    p50_ms: int | None
    p99_ms: int | None


def percentiles(found: Iterable[tuple[int, int]]) -> Latency:
    """Of buckets and how many events are in each, in order of the buckets."""
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
