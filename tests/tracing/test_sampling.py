"""Calls that reach the SDK, and messages that carry a context: those with a sampled span, not all recorded ones."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from tests.tracing.conftest import Spans, is_child
from txmsg import Message, MisuseError, ReceivedMessage, TransactionState
from txmsg.tracing import Tracing


class RecordOnly(Sampler):
    """A sampler whose spans are recorded for processors of this process, and not exported."""

    def should_sample(self, *_: object, **__: object) -> SamplingResult:
        return SamplingResult(Decision.RECORD_ONLY)

    def get_description(self) -> str:
        return "RecordOnly"


def test_a_message_whose_span_is_recorded_but_not_sampled_carries_no_context() -> None:
    tracing = Tracing(TracerProvider(sampler=RecordOnly()))

    with tracing.sending("send", [Message("t", b"")], "g") as sending:
        assert sending.carried_by([Message("t", b"")])[0].headers == {}
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with tracing.checking("g", ReceivedMessage("t", b"", headers=parent), 1) as checking:
        assert checking is not None
        assert checking.traceparent == ""


MESSAGES = (Message("t", b""),)


def test_configured_share_of_calls_outside_traces_starts_one(spans: Spans) -> None:
    tracer = spans.provider.get_tracer("instrumentation")
    tracing = Tracing(spans.provider, sampled=0.5)

    carrying = 0
    for _ in range(1000):
        with tracing.sending("half", MESSAGES, "g") as sending:
            carrying += "traceparent" in sending.carried_by(MESSAGES)[0].headers
        with sending.local_transaction(), tracer.start_as_current_span("statement"):
            pass
        with sending.telling(TransactionState.COMMIT):
            pass

    assert 400 < carrying < 600
    assert {name: len(spans.named(name)) for name in spans.names()} == dict.fromkeys(
        ("half t", "local transaction", "statement", "commit t"), carrying
    )


def test_call_within_a_trace_follows_it_for_any_share(spans: Spans) -> None:
    tracing = Tracing(spans.provider, sampled=0)

    with spans.provider.get_tracer("test").start_as_current_span("request"):
        with tracing.transaction(), tracing.sending("send", MESSAGES, "g") as sending:
            assert "traceparent" in sending.carried_by(MESSAGES)[0].headers

    assert is_child(spans.one("local transaction"), spans.one("request"))
    assert is_child(spans.one("send t"), spans.one("local transaction"))


def test_messages_of_an_unsampled_transaction_start_no_trace(spans: Spans) -> None:
    tracing = Tracing(spans.provider, sampled=0)

    with tracing.transaction():
        assert not trace.get_current_span().get_span_context().trace_flags.sampled
        with Tracing(spans.provider).sending("send", MESSAGES, "g") as sending:
            assert sending.carried_by(MESSAGES) is MESSAGES

    assert spans.names() == []


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_sampling_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(MisuseError, match=rf"sampled={share} is not a share: give a number from 0 to 1"):
        Tracing(sampled=share)
