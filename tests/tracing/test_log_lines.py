"""JSON log lines contain the ids of the span in which they are logged."""

from __future__ import annotations

import json
import logging

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from tests.tracing.conftest import Spans
from txmsg.runtime.logs import JsonFormatter


def line() -> dict[str, str]:
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, "paid", None, None)
    found: dict[str, str] = json.loads(JsonFormatter().format(record))
    return found


def test_log_line_within_a_span_has_its_ids(spans: Spans) -> None:
    with spans.provider.get_tracer("test").start_as_current_span("pay") as span:
        found, context = line(), span.get_span_context()
    assert (int(found["trace_id"], 16), int(found["span_id"], 16)) == (context.trace_id, context.span_id)
    assert (len(found["trace_id"]), len(found["span_id"])) == (32, 16)


def test_log_line_outside_a_sampled_span_has_no_ids() -> None:
    assert "trace_id" not in line()
    with TracerProvider(sampler=ALWAYS_OFF).get_tracer("test").start_as_current_span("pay"):
        assert line().keys() == {"time", "level", "logger", "message"}
