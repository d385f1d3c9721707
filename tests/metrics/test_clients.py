"""The metrics of applications: a collector in their own registry."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.broker_process import BrokerProcess
from tests.waiting import until
from txmsg.client import Consumer, Producer
from txmsg.consumer.handler_counts import HandlerCounts
from txmsg.message import Message, ReceivedMessage, TransactionState
from txmsg.metrics import ClientCollector
from txmsg.metrics.catalogue import CATALOGUE, OTHER, ExportingProcess
from txmsg.metrics.figures import Figures


def values_of(registry: CollectorRegistry) -> dict[str, float]:
    """Return values by name and label values."""
    return {
        " ".join([sample.name, *(value for label, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def registered(*clients: Producer | Consumer) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(ClientCollector(*clients))
    return registry


def test_metrics_of_producers_are_summed_up(broker: BrokerProcess) -> None:
    with Producer(broker.address, group="shop") as one, Producer(broker.address, group="shop") as other:
        registry = registered(one, other)
        before = values_of(registry)
        assert before["txmsg_client_calls_total send"] == 0
        for producer in (one, other, other):
            producer.send(Message("t", b"1"))
        other.end(other.half([Message("t", b"1")]), TransactionState.COMMIT)
        found = values_of(registry)
    assert found["txmsg_client_calls_total send"] == 3
    assert found["txmsg_client_calls_total half"] == found["txmsg_client_calls_total outcome"] == 1
    assert found["txmsg_client_request_seconds_count send"] == 3
    assert found["txmsg_client_request_seconds_sum send"] > 0
    assert found["txmsg_client_pending_items"] == 0
    assert not any(name.startswith("txmsg_client_errors_total") for name in found)


def test_errors_of_producers_are_counted_by_code(broker: BrokerProcess) -> None:
    with Producer(broker.address, group="shop") as producer:
        registry = registered(producer)
        half = producer.half([Message("t", b"1")])
        producer.end(half, TransactionState.ROLLBACK)
        with pytest.raises(Exception, match="already has the other outcome"):
            producer.end(half, TransactionState.COMMIT)
        assert values_of(registry)["txmsg_client_errors_total outcome_conflict outcome"] == 1


def test_consumers_are_counted_by_group(broker: BrokerProcess) -> None:
    consumer = Consumer(broker.address, group="mailer")

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        if message.body == b"bad":
            raise ValueError("of the test")

    registry = registered(consumer)
    with Producer(broker.address, group="shop") as producer, consumer:
        for body in (b"good", b"good", b"bad"):
            producer.send(Message("t", body))
        until(lambda: values_of(registry)["txmsg_client_refused_messages_total mailer"] == 1)
        until(lambda: values_of(registry)["txmsg_client_acknowledged_messages_total mailer"] == 2)
        found = values_of(registry)
        assert found["txmsg_client_received_messages_total mailer"] == 3
        assert found["txmsg_client_held_messages mailer"] == 0
        broker.kill()
        until(lambda: values_of(registry)["txmsg_client_poll_errors_total mailer"] > 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_handlers_are_counted_by_topic_and_exception(broker: BrokerProcess, is_async: bool) -> None:
    consumer = Consumer(broker.address, group="mailer")
    began, may_end = threading.Event(), threading.Event()

    def wait(message: ReceivedMessage) -> None:
        if message.body == b"bad":
            raise ValueError("of the test")
        if message.body == b"slow":
            began.set()
            may_end.wait()

    async def wait_async(message: ReceivedMessage) -> None:
        if message.body == b"slow":
            began.set()
            await asyncio.to_thread(may_end.wait)
        else:
            wait(message)

    consumer.subscribe("t")(wait_async if is_async else wait)
    consumer.subscribe("other")(wait_async if is_async else wait)
    registry = registered(consumer)
    assert values_of(registry)["txmsg_handlers_running mailer t"] == 0
    with Producer(broker.address, group="shop") as producer, consumer:
        for body in (b"good", b"bad", b"slow"):
            producer.send(Message("t", body))
        producer.send(Message("other", b"good"))
        assert began.wait(60)
        until(lambda: values_of(registry)["txmsg_handler_seconds_count mailer t"] == 2)
        until(lambda: values_of(registry)["txmsg_handler_seconds_count mailer other"] == 1)
        found = values_of(registry)
        assert (found["txmsg_handlers_running mailer t"], found["txmsg_handlers_running mailer other"]) == (1, 0)
        assert found["txmsg_handler_failures_total ValueError mailer t"] == 1
        may_end.set()
        until(lambda: values_of(registry)["txmsg_handler_seconds_count mailer t"] == 3)
    assert values_of(registry)["txmsg_handlers_running mailer t"] == 0


def test_classes_of_exceptions_are_bounded() -> None:
    counts = HandlerCounts()
    for number in range(30):
        counts.raised(type(f"Error{number}", (Exception,), {})())
    counts.raised(type("Error0", (Exception,), {})())
    figures = Figures(ExportingProcess.APPLICATION)
    counts.put_figures(figures, "g", "t", running=0)
    series = dict(next(values for metric, values in figures.series() if metric.name == "txmsg_handler_failures_total"))
    assert (len(series), series["g", "t", OTHER], series["g", "t", "Error0"]) == (21, 10, 2)


def test_collector_exports_the_catalogued_metrics(broker: BrokerProcess) -> None:
    with Producer(broker.address, group="shop") as producer:
        names = {
            f"{family.name}_total" if family.type == "counter" else family.name
            for family in text_string_to_metric_families(generate_latest(registered(producer)).decode())
        }
    assert names == {metric.name for metric in CATALOGUE.values() if ExportingProcess.APPLICATION in metric.processes}


def test_txmsg_can_be_imported_without_prometheus_client() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None; import txmsg.client, txmsg.metrics; "
        "txmsg.metrics.ClientCollector()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
