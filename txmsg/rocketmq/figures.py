"""The metrics and the readiness of a gateway, from the counts of its parts."""

from __future__ import annotations

from txmsg.checks.brokers import STOPPING
from txmsg.checks.database import DATABASE_AWAY
from txmsg.checks.logs import GATEWAY_ALONE, GATEWAY_CLOSED
from txmsg.metrics.catalogue import ERROR, METHOD, ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.rocketmq.answers import GOOD
from txmsg.rocketmq.grpc.framing import Code
from txmsg.rocketmq.parts import GatewayParts
from txmsg.rocketmq.v2 import messaging_pb2 as pb


def unready(parts: GatewayParts) -> str:
    """Return the reason why a gateway should get no clients; empty if it may."""
    if parts.stop.is_set():
        return STOPPING.found(process="gateway").what
    if closed := parts.door.closed():
        return GATEWAY_CLOSED.found(error=closed).what
    if not parts.presence.attached_to:
        return GATEWAY_ALONE.found(error=parts.config.broker).what
    if all(map(parts.brokers.is_cut_off, parts.presence.attached_to)):
        return DATABASE_AWAY.found("no broker can reach the Notify database").what
    return ""


def figures_of(parts: GatewayParts) -> Figures:
    """Return all figures of a gateway."""
    figures = Figures(ExportingProcess.ROCKETMQ)
    figures.put("txmsg_ready", not unready(parts))
    _put_calls(figures, parts)
    figures.put("txmsg_rocketmq_brokers", len(parts.presence.attached_to))
    figures.put("txmsg_rocketmq_clients", parts.clients.count)
    figures.put("txmsg_rocketmq_waiting_receives", parts.api.waiting)
    figures.put("txmsg_rocketmq_held_messages", parts.receivers.held_messages)
    for method, seconds in parts.api.answers.seconds.items():
        figures.put("txmsg_rocketmq_call_seconds", seconds, **{METHOD: method})
    return figures


def _put_calls(figures: Figures, parts: GatewayParts) -> None:
    port, errors = parts.port, parts.api.answers.errors
    figures.put("txmsg_connections", len(port.connections))
    figures.put("txmsg_calls_in_flight", port.calls)
    figures.put("txmsg_calls_total", port.calls_begun)
    codes = {name: errors[code] for name, code in pb.Code.items() if code not in GOOD}
    failures = {f"grpc.{code.name}": port.failures[code] for code in Code if code is not Code.OK}
    figures.put_each("txmsg_call_errors_total", ERROR, codes | failures)
    figures.put("txmsg_network_received_bytes_total", port.traffic.received_bytes)
    figures.put("txmsg_network_sent_bytes_total", port.traffic.sent_bytes)
    figures.put_bound("connections", len(port.connections), port.connections_max)
    figures.put_bound("calls", port.calls, port.calls_max)
    figures.put_bound("requests", port.requests_size_bytes, port.requests_size_bytes_max)
