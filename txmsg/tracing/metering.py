"""The figures of an application as instruments of OpenTelemetry, beside its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter

from txmsg.metrics.catalogue import CATALOGUE, ExportingProcess, Metric, MetricKind
from txmsg.metrics.collector import Counted
from txmsg.metrics.counts import Histogram
from txmsg.metrics.figures import Figures, Labels, Value

_SCOPE = "txmsg"

Values = Mapping[Labels, Value]


def export_metrics(*clients: Counted, meter_provider: MeterProvider | None = None) -> None:
    """Register the figures of applications, producers and consumers, which OpenTelemetry reads at each export.

    The instruments are those of docs/metrics.md of the process "application", by these names. A histogram becomes two
    counters, NAME_count and NAME_sum, because OpenTelemetry takes no histograms that are observed. Values of several
    producers, or consumers of one group, are added up. Call it once per process, with all of them. meter_provider:
    default the global one.
    """
    meter = get_meter(_SCOPE, meter_provider=meter_provider)

    # OpenTelemetry calls back for each instrument by itself, so each reads all figures again: sums of plain counters.
    def read(metric: Metric) -> Values:
        figures = Figures(ExportingProcess.APPLICATION)
        for client in clients:
            client._put_figures(figures)
        return next(values for of, values in figures.series() if of is metric)

    for metric in CATALOGUE.values():
        if ExportingProcess.APPLICATION in metric.processes:
            _create(meter, metric, read)


def _create(meter: Meter, metric: Metric, read: Callable[[Metric], Values]) -> None:
    def observed(value_of: Callable[[Value], float]) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
        def callback(_: CallbackOptions) -> Iterable[Observation]:
            for labels, value in read(metric).items():
                yield Observation(value_of(value), dict(zip(metric.labels, labels, strict=True)))

        return [callback]

    match metric.kind:
        case MetricKind.HISTOGRAM:
            meter.create_observable_counter(f"{metric.name}_count", observed(_count), "1", metric.meaning)
            meter.create_observable_counter(f"{metric.name}_sum", observed(_sum), metric.unit, metric.meaning)
        case MetricKind.COUNTER:
            meter.create_observable_counter(metric.name, observed(_single), metric.unit, metric.meaning)
        case MetricKind.GAUGE:
            meter.create_observable_gauge(metric.name, observed(_single), metric.unit, metric.meaning)


def _single(value: Value) -> float:
    assert not isinstance(value, Histogram)
    return value


def _count(value: Value) -> float:
    assert isinstance(value, Histogram)
    return value.count


def _sum(value: Value) -> float:
    assert isinstance(value, Histogram)
    return value.sum
