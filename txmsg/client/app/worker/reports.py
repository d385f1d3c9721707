"""Reports of a worker's processes, as lines of JSON, and their sums. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from txmsg.metrics.catalogue import CATALOGUE, ExportingProcess, MetricKind
from txmsg.metrics.counts import Histogram
from txmsg.metrics.figures import Figures, Value

Series: TypeAlias = list[Any]
"""Name, values of its labels, and the value: a number, or bounds, counts and sum of a histogram."""


def series_of(figures: Figures) -> list[Series]:
    """Return the series of figures in the form that JSON takes."""
    return [
        [metric.name, list(labels), _plain(value)]
        for metric, values in figures.series()
        for labels, value in values.items()
    ]


def _plain(value: Value) -> float | list[Any]:
    return [list(value.bounds), value.counts, value.sum] if isinstance(value, Histogram) else value


def counters_in(report: Sequence[Series]) -> list[Series]:
    """Return the series that still count when their process has ended: a counter never decreases."""
    return [series for series in report if CATALOGUE[series[0]].kind is not MetricKind.GAUGE]


def together(reports: Sequence[Sequence[Series]]) -> list[Series]:
    """Return one report of several: each series added up."""
    return series_of(put_all(Figures(ExportingProcess.APPLICATION), reports))


def put_all(figures: Figures, reports: Sequence[Sequence[Series]]) -> Figures:
    """Add reports to figures, and return these."""
    for name, labels, value in (series for report in reports for series in report):
        named: Mapping[str, str] = dict(zip(CATALOGUE[name].labels, labels, strict=True))
        figures.add(name, _value_of(value), **named)
    return figures


def _value_of(value: float | list[Any]) -> Value:
    if not isinstance(value, list):
        return value
    bounds, counts, total = value
    histogram = Histogram(bounds)
    histogram.counts, histogram.sum = counts, total
    return histogram
