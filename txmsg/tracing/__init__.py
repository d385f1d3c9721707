"""Traces and metrics by OpenTelemetry, for those who switch them on: `Producer(..., tracing=Tracing())`,
`export_metrics(app)`, `txmsg broker --tracing`.

The one package that imports OpenTelemetry, and nothing imports it but those who trace. Needs
`pip install 'txmsg[otel]'`.

context      the trace context in headers of messages (W3C)
spans        what a span is while its block runs, and how it ends; names and attributes
sending      what a producer does: a send or half message, the local transaction, the outcome
tracing      `Tracing`, which all of them are made by
metering     the figures of an application as instruments
"""

try:
    import opentelemetry.trace as _  # noqa: F401 - before our modules, to say what is missing
except ImportError as exc:
    raise ImportError("txmsg.tracing needs OpenTelemetry's API: pip install 'txmsg[otel]'") from exc

from txmsg.tracing.metering import export_metrics
from txmsg.tracing.tracing import Tracing

__all__ = ["Tracing", "export_metrics"]
