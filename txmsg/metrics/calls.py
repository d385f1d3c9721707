"""The figures of a server of the protocol: connections, calls, bytes, errors."""

from __future__ import annotations

from txmsg.errors import CODES
from txmsg.metrics.catalogue import ERROR
from txmsg.metrics.figures import Figures
from txmsg.wire.shared import ConnectedT, Shared


def put_calls(figures: Figures, server: Shared[ConnectedT]) -> None:
    """Add the counts of a server to the figures."""
    figures.put("txmsg_connections", len(server.connections))
    figures.put_bound("connections", len(server.connections), server.connections_max)
    figures.put("txmsg_calls_in_flight", sum(connection.calls_in_flight for connection in server.connections))
    figures.put("txmsg_calls_total", server.calls_begun)
    figures.put_each("txmsg_call_errors_total", ERROR, {**dict.fromkeys(CODES, 0), **server.calls_failed})
    figures.put("txmsg_network_received_bytes_total", server.traffic.received_bytes)
    figures.put("txmsg_network_sent_bytes_total", server.traffic.sent_bytes)
    if server.tls is not None:
        figures.put("txmsg_tls_certificate_remaining_seconds", server.tls.remaining_s())
