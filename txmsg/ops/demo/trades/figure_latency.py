"""Measures how long the figures of the day took until they were stored and on the page, and what they waited for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import psycopg
from psycopg.rows import class_row

from txmsg.ops.demo.examples.trade_dashboard.latency import percentiles
from txmsg.ops.demo.trades.watching import Seen, shown_after

_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In milliseconds; None where nothing was counted, or something did not come to the page."""

    p50: int | None
    p99: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """stored, page: from the moment of a trade. batch: how long the batches of the Spark job took.

    waits: what trades waited for, one after the other, each trade as long as its batch did on average.
    """

    stored: Percentiles
    page: Percentiles
    batch: Percentiles
    waits: dict[str, Percentiles]


def times_since(url: str, since: datetime, seen: Sequence[Seen]) -> Times:
    """Of what the dashboard's database wrote from this moment on, and of when the page had pushed it.

    Latencies are stored by the second. To those of a second the longest way of one of its batches to the page is added:
    the page's latency is never less than this says.
    """
    with psycopg.connect(url) as connection:
        stored = connection.execute(
            "select second, bucket_ms, events from figures_latency where second >= %s order by bucket_ms", (since,)
        ).fetchall()
        batches = connection.cursor(row_factory=class_row(_SparkBatch)).execute(_READ_BATCHES, (since,)).fetchall()
    to_page = _to_page_ms([batch.at for batch in batches], seen)
    on_page: Counter[int] = Counter()
    if to_page is not None:
        for second, bucket_ms, events in stored:
            on_page[bucket_ms + to_page.get(second, 0)] += events
    return Times(
        stored=_percentiles([(bucket_ms, events) for _, bucket_ms, events in stored]),
        page=_percentiles(sorted(on_page.items())),
        batch=_percentiles(sorted(Counter(batch.batch_ms for batch in batches).items())),
        waits=_waits(batches, seen),
    )


@dataclass(frozen=True, slots=True)
class _SparkBatch:
    at: datetime
    messages: int
    batch_ms: int
    committed_ms: int
    planned_ms: int
    started_ms: int
    read_ms: int


_READ_BATCHES: Final = """
select at, messages, batch_ms, committed_ms, planned_ms, started_ms, read_ms from figures_batch
where at >= date_trunc('second', %s::timestamptz)
"""


def _waits(batches: Sequence[_SparkBatch], seen: Sequence[Seen]) -> dict[str, Percentiles]:
    """Each named after what ends it."""
    waits: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for batch in batches:
        waits["committed"][batch.committed_ms] += batch.messages
        waits["planned"][batch.planned_ms] += batch.messages
        waits["started"][batch.started_ms] += batch.messages
        waits["read"][batch.read_ms] += batch.messages
        waits["stored"][batch.batch_ms - batch.read_ms] += batch.messages
        if (after := shown_after(seen, batch.at)) is not None:
            waits["pushed"][after // _MS] += batch.messages
    return {name: _percentiles(sorted(found.items())) for name, found in waits.items()}


def _to_page_ms(written: Sequence[datetime], seen: Sequence[Seen]) -> dict[datetime, int] | None:
    """For each second the longest time from a write in it until the page had pushed what was written; None: never."""
    longest: dict[datetime, int] = {}
    for at in written:
        after = shown_after(seen, at)
        if after is None:
            return None
        second = at.replace(microsecond=0)
        longest[second] = max(longest.get(second, 0), after // _MS)
    return longest


def _percentiles(found: Sequence[tuple[int, int]]) -> Percentiles:
    latency = percentiles(found)
    return Percentiles(latency.p50_ms, latency.p99_ms)
