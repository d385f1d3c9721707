"""Figures in Prometheus' text format, by its own library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from txmsg.metrics.catalogue import Metric, MetricKind
from txmsg.metrics.counts import Histogram
from txmsg.metrics.figures import Figures, Labels, Value

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def families_of(figures: Figures) -> Iterator[Family]:
    """Yield each metric of the process as prometheus_client's family, also without series."""
    for metric, values in figures.series():
        yield _family(metric, values)


def text_of(figures: Figures) -> bytes:
    """Return the body of /metrics."""
    text: bytes = generate_latest(_Once(figures))
    return text


class _Once:
    """A collector of figures that were read."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Family]:
        return families_of(self._figures)


def _family(metric: Metric, values: Mapping[Labels, Value]) -> Family:
    if metric.kind is MetricKind.HISTOGRAM:
        histograms = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for labels, value in values.items():
            assert isinstance(value, Histogram)
            bounds = [*map(str, map(float, value.bounds)), "+Inf"]
            histograms.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.sum)
        return histograms
    family = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    singles = family(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in values.items():
        assert not isinstance(value, Histogram)
        singles.add_metric(labels, value)
    return singles
