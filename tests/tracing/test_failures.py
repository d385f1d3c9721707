"""Failures in tracing and invalid traced data affect neither messages nor errors of the application."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.tracing.conftest import attributes_of
from txmsg import Message, ReceivedMessage, TransactionState
from txmsg.errors import CorruptLog
from txmsg.tracing import Tracing
from txmsg.tracing import spans as spans_module
from txmsg.wire.headers import pack_headers

_PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
_UNREADABLE = b"\xfftraceparent"


class Failing(SpanProcessor):
    """A span processor that raises when a span begins or ends."""

    def __init__(self, moment: str) -> None:
        self._moment = moment

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if self._moment == "start":
            raise RuntimeError("the processor is broken")

    def on_end(self, span: ReadableSpan) -> None:
        if self._moment == "end":
            raise RuntimeError("the processor is broken")


@pytest.fixture
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tracing:
    monkeypatch.setattr(spans_module, "_failed", set())
    provider = TracerProvider()
    provider.add_span_processor(Failing(request.param))
    return Tracing(provider)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider)


@pytest.mark.parametrize("failing", ["start", "end"], indirect=True)
def test_error_of_a_span_processor_is_logged_once_and_not_raised(
    failing: Tracing, caplog: pytest.LogCaptureFixture
) -> None:
    received = ReceivedMessage("t", b"", headers=_PARENT)

    with failing.transaction(), failing.sending("half", [Message("t", b"")], "g") as sending:
        sending.stored(bytes(16))
        with sending.local_transaction():
            pass
        with sending.telling(TransactionState.COMMIT):
            pass
    handling = failing.processing("g", received)
    assert handling is not None
    with handling, failing.answering("g", received, ""), failing.checking("g", received, 1) as checking:
        assert checking is not None
        checking.answered(TransactionState.COMMIT)
    with failing.mirroring({"t"}, 1, [pack_headers(_PARENT)]):
        pass
    failing.received("g", {"t"}, lambda: [pack_headers(_PARENT)], 0)

    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "RuntimeError: the processor is broken" in record.getMessage()


@pytest.mark.parametrize("failing", ["end"], indirect=True)
def test_an_error_of_the_application_is_not_replaced_by_one_of_a_span_processor(failing: Tracing) -> None:
    with pytest.raises(LookupError), failing.transaction():
        raise LookupError


def test_unreadable_headers_are_not_linked_and_break_neither_poll_nor_mirror(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    packed = [_UNREADABLE, pack_headers(_PARENT)]

    tracing.received("g", {"t"}, lambda: packed, 0)
    with tracing.mirroring({"t"}, 2, packed):
        pass

    poll, mirror = exporter.get_finished_spans()
    assert (poll.name, len(poll.links)) == ("poll t", 1)
    assert (mirror.name, len(mirror.links)) == ("mirror t", 1)


def test_unreadable_batch_does_not_break_a_poll(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    """The reader of the batch gets the error."""

    def damaged() -> list[bytes | None]:
        raise CorruptLog("a batch cannot be read")

    tracing.received("g", {"t"}, damaged, 0)

    assert [span.name for span in exporter.get_finished_spans()] == ["poll t"]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


def test_error_without_a_readable_text_is_raised_and_its_span_ends(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(Mute), tracing.transaction():
        raise Mute

    [span] = exporter.get_finished_spans()
    assert attributes_of(span)["error.type"].endswith("Mute")  # type: ignore[attr-defined]
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "Mute: <its __str__ raised>"
