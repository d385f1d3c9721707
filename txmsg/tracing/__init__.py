"""Traces and metrics by OpenTelemetry, opt-in: `Producer(..., tracing=Tracing())`,
`export_metrics(app)`, `txmsg broker --tracing`.

The only package that imports OpenTelemetry; nothing imports this package unless tracing is on. Needs
`pip install 'txmsg[otel]'`.

context      the trace context in headers of messages (W3C)
spans        spans as blocks; their names and attributes
sending      spans of a producer: a send or half message, the local transaction, the outcome
tracing      `Tracing`, which makes all spans
metering     the figures of an application as instruments
"""

try:
    import opentelemetry.trace as _  # noqa: F401 - before our modules, to say what is missing
except ImportError as exc:
    raise ImportError("txmsg.tracing needs OpenTelemetry's API: pip install 'txmsg[otel]'") from exc

from txmsg.tracing.metering import export_metrics
from txmsg.tracing.tracing import Tracing

__all__ = ["Tracing", "export_metrics"]
