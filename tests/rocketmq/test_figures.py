"""The metrics and probes of a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.broker_process import BrokerProcess
from tests.metrics.scraping import got, require_catalogued, rises, scrape
from tests.ports import own_port
from tests.rocketmq.calls import CALL_S_MAX, TOPIC, Calls
from tests.rocketmq.gateway import GatewayProcess, running_gateway
from tests.waiting import until
from txmsg.client.channel import Brokers
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.rocketmq.admission import CallAdmission
from txmsg.rocketmq.api import SERVICE
from txmsg.rocketmq.figures import unready
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.v1.txmsg_pb2 import RouteChanged


@dataclass(frozen=True)
class Watched:
    """A gateway with metrics, and a client of it."""

    gateway: GatewayProcess
    metrics: str
    calls: Calls


@pytest.fixture
def watched(broker: BrokerProcess, tmp_path: Path) -> Iterator[Watched]:
    metrics = f"127.0.0.1:{own_port()}"
    with running_gateway(broker.address, "--http-listen", metrics, log=tmp_path / "gateway.log") as gateway:
        calls = Calls(gateway.address, broker.address)
        with calls.channel:
            yield Watched(gateway, metrics, calls)


def test_gateway_serves_every_catalogued_metric(watched: Watched) -> None:
    until(lambda: got(watched.metrics, "/readyz") == (200, "ok\n"))
    found = scrape(watched.metrics)
    require_catalogued(found, ExportingProcess.ROCKETMQ)
    assert got(watched.metrics, "/livez") == (200, "ok\n")
    assert (found.value("txmsg_ready"), found.value("txmsg_rocketmq_brokers")) == (1, 1)
    assert found.value("txmsg_bound_used_ratio", bound="requests") == 0


def test_calls_are_counted_by_method_and_errors_by_code(watched: Watched) -> None:
    before = scrape(watched.metrics)
    assert watched.calls.send(b"x", bytes(16)).status.code == pb.OK
    unknown = pb.QueryRouteRequest(topic=pb.Resource(name="nowhere"))
    for _ in range(2):
        assert watched.calls("QueryRoute", unknown, pb.QueryRouteResponse).status.code == pb.TOPIC_NOT_FOUND
    assert [each.HasField("message") for each in watched.calls.receive()] == [False, True, False]
    found = rises(watched.metrics, "txmsg_calls_total", by=4, since=before)
    assert found.value("txmsg_rocketmq_call_seconds_count", rpc_method="SendMessage") == 1
    assert found.value("txmsg_rocketmq_call_seconds_count", rpc_method="QueryRoute") == 2
    assert found.value("txmsg_call_errors_total", error_type="TOPIC_NOT_FOUND") == 2
    assert found.total("txmsg_call_errors_total") == 2
    assert found.value("txmsg_connections") == 1
    for name in ("txmsg_network_received_bytes_total", "txmsg_network_sent_bytes_total"):
        assert found.value(name) > before.value(name)
    with pytest.raises(grpc.RpcError, match="is not served"):
        watched.calls("GetOffset", pb.QueryRouteRequest(), pb.QueryRouteResponse)
    rises(watched.metrics, "txmsg_call_errors_total", since=found, error_type="grpc.UNIMPLEMENTED")


def test_empty_reply_is_not_counted_as_an_error_and_an_empty_request_is(watched: Watched) -> None:
    watched.calls.send(b"x", bytes(16))
    list(watched.calls.receive())
    before = scrape(watched.metrics)
    [nothing] = watched.calls.receive(0)
    assert nothing.status.code == pb.MESSAGE_NOT_FOUND
    rises(watched.metrics, "txmsg_call_errors_total", by=0, since=before)
    [refused] = watched.calls.receive(0, invisible_duration={"seconds": 1})
    assert refused.status.code == pb.ILLEGAL_INVISIBLE_TIME
    rises(watched.metrics, "txmsg_call_errors_total", since=before, error_type="ILLEGAL_INVISIBLE_TIME")


def test_messages_held_and_calls_waiting_are_measured(watched: Watched) -> None:
    def told(name: str) -> float:
        return scrape(watched.metrics).value(f"txmsg_rocketmq_{name}")

    watched.calls.send(b"x", bytes(16))
    [_, brought, _] = watched.calls.receive(auto_renew=True)
    assert told("held_messages") == 1
    assert watched.calls.acknowledge(brought.message.system_properties.receipt_handle) == pb.OK
    assert told("held_messages") == 0

    waiting = watched.calls.begin_receive()
    until(lambda: told("waiting_receives") == 1)
    waiting.cancel()
    until(lambda: told("waiting_receives") == 0)

    frames: SimpleQueue[pb.TelemetryCommand | None] = SimpleQueue()
    publishing = pb.Publishing(topics=[TOPIC])
    frames.put(pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, publishing=publishing)))
    telemetry = watched.calls.telemetry(iter(frames.get, None))
    assert next(telemetry).status.code == pb.OK
    assert told("clients") == 1
    frames.put(None)
    assert list(telemetry) == []
    until(lambda: told("clients") == 0)


async def test_gateway_is_ready_only_with_an_attached_broker() -> None:
    brokers = Brokers(["a:1", "b:1"])
    presence = SimpleNamespace(attached_to={"a:1"})
    parts: Any = SimpleNamespace(stop=asyncio.Event(), door=CallAdmission(), presence=presence, brokers=brokers)
    brokers.learn("a:1", RouteChanged(this="a:1", brokers=["a:1", "b:1"]))
    assert not unready(parts)
    brokers.learn("a:1", RouteChanged(this="a:1", is_cut_off=True))
    assert unready(parts) == "no broker can reach the Notify database"
    presence.attached_to.add("b:1")
    assert not unready(parts)
    await brokers.close()


def test_a_gateway_without_a_broker_is_alive_and_not_ready(watched: Watched, broker: BrokerProcess) -> None:
    until(lambda: got(watched.metrics, "/readyz")[0] == 200)
    broker.kill()
    told = until(lambda: answer if (answer := got(watched.metrics, "/readyz"))[0] == 503 else None)
    assert told == (503, f"no broker can be reached: {broker.address}\n")
    assert got(watched.metrics, "/livez") == (200, "ok\n")
    assert scrape(watched.metrics).value("txmsg_ready") == 0
    log = watched.gateway.log
    until(lambda: f"clients cannot be served: no broker can be reached: {broker.address}" in log.read_text())
    broker.start()
    until(lambda: got(watched.metrics, "/readyz") == (200, "ok\n"))
    until(lambda: "clients can be served again" in log.read_text())


def test_tls_client_at_a_plain_port_is_logged(watched: Watched) -> None:
    credentials = grpc.ssl_channel_credentials()
    with grpc.secure_channel(watched.gateway.address, credentials) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/Heartbeat")
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            call(b"", timeout=CALL_S_MAX)
    log = watched.gateway.log
    until(lambda: "connects by TLS, and this gateway has none: switch TLS off in the client" in log.read_text())
