"""Which messages carry a context: those whose span is sampled, not all whose span is recorded."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from txmsg import Message, ReceivedMessage
from txmsg.tracing import Tracing


class RecordOnly(Sampler):
    """Has spans recorded for processors of this process, and not exported."""

    def should_sample(self, *_: object, **__: object) -> SamplingResult:
        return SamplingResult(Decision.RECORD_ONLY)

    def get_description(self) -> str:
        return "RecordOnly"


def test_a_message_whose_span_is_recorded_but_not_sampled_carries_no_context() -> None:
    tracing = Tracing(TracerProvider(sampler=RecordOnly()))

    with tracing.sending("send", [Message("t", b"")], "g") as sending:
        assert sending.messages[0].headers == {}
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with tracing.checking("g", ReceivedMessage("t", b"", headers=parent), 1) as checking:
        assert checking is not None
        assert checking.traceparent == ""
