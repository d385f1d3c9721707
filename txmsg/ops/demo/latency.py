"""Percentiles of waits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles of the waits for an answer, in milliseconds."""

    p50: float
    p99: float


def latency_of(waits_ms: Iterable[float]) -> Latency:
    """Return percentiles (nearest rank); 0 without waits."""
    ordered = sorted(waits_ms)
    if not ordered:
        return Latency(p50=0.0, p99=0.0)
    p50, p99 = (round(ordered[math.ceil(share * len(ordered)) - 1], 1) for share in (0.5, 0.99))
    return Latency(p50=p50, p99=p99)
