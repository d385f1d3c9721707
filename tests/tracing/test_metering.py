"""Metrics of an application by OpenTelemetry."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from txmsg import Message, Reject, Txmsg
from txmsg.consumer.handler_counts import HandlerCounts
from txmsg.message import ReceivedMessage
from txmsg.metrics.catalogue import CATALOGUE, GROUP, TOPIC, ExportingProcess, MetricKind
from txmsg.metrics.figures import Figures
from txmsg.testing import MakeProducer, RunApp
from txmsg.tracing import export_metrics


class Handled:
    """The metrics part of a consumer."""

    def __init__(self, counts: HandlerCounts) -> None:
        self.counts = counts

    def _put_figures(self, figures: Figures) -> None:
        self.counts.put_figures(figures, "g", "t", running=3)


def points_of(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], float]]]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: [(dict(point.attributes or {}), point.value) for point in metric.data.data_points]  # type: ignore[union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


def test_each_kind_of_metric_is_an_instrument_read_at_each_export(reader: InMemoryMetricReader) -> None:
    counts = HandlerCounts()
    export_metrics(Handled(counts), Handled(counts), meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    of = {GROUP: "g", TOPIC: "t"}
    assert points_of(reader)["txmsg_handler_seconds_count"] == [(of, 0)]
    counts.called(0.25)
    counts.raised(ValueError())
    found = points_of(reader)
    assert found["txmsg_handler_seconds_count"] == [(of, 2)], "of both"
    assert found["txmsg_handler_seconds_sum"] == [(of, 0.5)]
    assert found["txmsg_handlers_running"] == [(of, 6)]
    assert found["txmsg_handler_failures_total"] == [({**of, "error_type": "ValueError"}, 2)]


def test_application_exports_metrics_of_its_producers_and_handlers(
    reader: InMemoryMetricReader, txmsg_app: RunApp, txmsg_producer: MakeProducer
) -> None:
    app = Txmsg(group="g")
    producer = app.producer("p")

    @app.subscribe("t")
    def reject(message: ReceivedMessage) -> None:
        raise Reject("of the test")

    export_metrics(app, meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    with txmsg_app(app) as running:
        producer.send(Message("t", b""))
        running.wait_until_idle(dead=1)
        found = points_of(reader)
    names = {
        name
        for metric in CATALOGUE.values()
        if ExportingProcess.APPLICATION in metric.processes
        for name in (
            [f"{metric.name}_count", f"{metric.name}_sum"] if metric.kind is MetricKind.HISTOGRAM else [metric.name]
        )
    }
    assert set(found) <= names
    assert ({GROUP: "g", TOPIC: "t", "error_type": "Reject"}, 1) in found["txmsg_handler_failures_total"]
    assert ({"messaging_operation_name": "send"}, 1) in found["txmsg_client_calls_total"]
