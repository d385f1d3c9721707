"""The catalogue keeps the rules of Prometheus, OpenTelemetry and our own for names, units and labels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from txmsg.metrics.catalogue import BOUNDS, CATALOGUE, LABELS, ExportingProcess, Metric, MetricKind, Scope
from txmsg.metrics.counts import Histogram
from txmsg.metrics.figures import Figures
from txmsg.metrics.text import text_of

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=CATALOGUE)
def test_metric_name_states_type_and_unit(metric: Metric) -> None:
    assert re.fullmatch(r"txmsg(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    for unit in ("seconds", "bytes"):
        assert (f"_{unit}" in metric.name) == (metric.unit == unit), metric.unit
    assert metric.name.endswith("_ratio") <= (metric.unit == "1")
    assert not metric.name.endswith(("_count", "_sum", "_bucket")), "the names of a histogram's own series"
    assert metric.meaning.endswith("."), metric.meaning
    assert metric.processes
    assert metric.section


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=CATALOGUE)
def test_every_label_is_described_and_database_metrics_are_served_by_brokers(metric: Metric) -> None:
    assert set(metric.labels) <= LABELS.keys()
    assert metric.scope is Scope.PROCESS or metric.processes == {ExportingProcess.BROKER}


def test_every_label_is_used() -> None:
    assert {label for metric in CATALOGUE.values() for label in metric.labels} == LABELS.keys()


def test_the_page_has_every_metric_label_and_bound() -> None:
    page = PAGE.read_text()
    for metric in CATALOGUE.values():
        assert f"| `{metric.name}` | {metric.kind.value} | {metric.unit} |" in page
    for name in [*LABELS, *(bound for bounds in BOUNDS.values() for bound in bounds)]:
        assert f"| `{name}` |" in page


def test_metric_missing_in_the_catalogue_is_refused() -> None:
    figures = Figures(ExportingProcess.PAGE)
    with pytest.raises(KeyError):
        figures.put("txmsg_of_nobody", 1)
    with pytest.raises(KeyError):
        figures.put("txmsg_leases", 1)  # a broker's
    with pytest.raises(KeyError, match="has the labels"):
        figures.put("txmsg_ready", 1, group="g")
    with pytest.raises(KeyError, match="names no bound"):
        Figures(ExportingProcess.BROKER).put_bound("of nothing", 1, 2)


def test_label_values_cannot_inject_a_line() -> None:
    figures = Figures(ExportingProcess.BROKER)
    figures.put("txmsg_topic_messages_total", 1, messaging_destination_name='a"} 1\n# EOF\\')
    assert b'{messaging_destination_name="a\\"} 1\\n# EOF\\\\"} 1.0\n' in text_of(figures)


def test_a_histogram_counts_a_value_under_the_first_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0, 1, 1.5, 2, 5, 6):
        histogram.observe(value)
    assert (histogram.counts, histogram.count, histogram.sum) == ([2, 2, 1, 1], 6, 15.5)
    figures = Figures(ExportingProcess.BROKER)
    figures.put("txmsg_writer_batch_items", histogram, writer="half")
    lines = [line.rpartition(" ") for line in text_of(figures).decode().splitlines() if "batch_items" in line]
    assert [(name.partition("le=")[2][:5], value) for name, _, value in lines if "_bucket" in name] == [
        ('"1.0"', "2.0"),
        ('"2.0"', "4.0"),
        ('"5.0"', "5.0"),
        ('"+Inf', "6.0"),
    ]
