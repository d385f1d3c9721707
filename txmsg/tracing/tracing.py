"""`Tracing`: makes the spans of producers, consumers and servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import Any, Literal

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    ProxyTracerProvider,
    SpanKind,
    TracerProvider,
    get_current_span,
    get_tracer,
    get_tracer_provider,
)

from txmsg.errors import MisuseError
from txmsg.message import Message, ReceivedMessage
from txmsg.tracing.context import beneath, context_of, links_of, unsampled
from txmsg.tracing.sending import LOCAL_TRANSACTION, RootSampling, SendSpan, SendSpans, Unsampled
from txmsg.tracing.spans import (
    MESSAGE_COUNT,
    SpanBlock,
    attributes_of,
    attributes_of_check,
    attributes_of_received,
    begin_span,
    end_span,
    name_of,
    note_failure,
    one_of,
)

SCHEMA_URL = "https://opentelemetry.io/schemas/1.30.0"
"""The version of the conventions that names and attributes follow."""


class Tracing:
    """Traces producers and consumers with OpenTelemetry: `Producer(..., tracing=Tracing())`.

    tracer_provider: the provider of spans; default: the global one, which the application or `opentelemetry-instrument`
    sets up. It also decides about sampling.
    joins_senders: a handler's span is a child of the sender's span, so one trace shows the whole life of a message.
    False: it begins a new trace, with a link to the sender's span; for messages that are handled days later, or
    replayed.
    sampled: the share, from 0 to 1, of a producer's calls outside of traces that may begin one, if the provider's
    sampler agrees. The other calls do not reach the SDK, whose samplers cost more than the call of a busy producer.
    Calls within a trace follow it.
    starts_traces: whether a handler's span begins a trace if the message carries no context, because its sender did not
    sample it, or does not trace. By default such a message is handled untraced.

    The methods are for producers and consumers.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        sampled: float = 1.0,
        joins_senders: bool = True,
        starts_traces: bool = False,
    ) -> None:
        if not 0 <= sampled <= 1:
            raise MisuseError(f"sampled={sampled} is not a share: give a number from 0 to 1, as 0.01 for 1 %")
        self._tracer = get_tracer("txmsg", version("txmsg"), tracer_provider, SCHEMA_URL)
        self._joins_senders = joins_senders
        self._starts_traces = starts_traces
        self._nothing = unsampled()
        self._roots = RootSampling(sampled)
        self._sendings = SendSpans(self._tracer, self._nothing, self._roots)

    def untraced(self) -> SpanBlock:
        """Return a block whose spans belong to no trace, and begin none."""
        return SpanBlock(self._nothing, is_current=True, is_own=False)

    # ---- producers

    def sending(
        self, operation: Literal["send", "half"], messages: Sequence[Message], group: str
    ) -> SendSpan | Unsampled:
        """Begin the span of a call that stores messages."""
        return self._sendings.begin_span(operation, messages, group)

    def transaction(self) -> SpanBlock:
        """Begin the span of a transaction whose messages are sent in it."""
        if not get_current_span().get_span_context().is_valid and not self._roots.may_begin():
            return self.untraced()
        span = begin_span(self._tracer, LOCAL_TRANSACTION, attributes={"messaging.system": "txmsg"})
        return SpanBlock(span, is_current=True)

    def answering(self, group: str, message: ReceivedMessage, traceparent: str) -> SpanBlock:
        """Begin the span of a check listener's answer. traceparent: of the broker's span, if it traces."""
        headers = {**message.headers, "traceparent": traceparent} if traceparent else message.headers
        context = context_of(headers)
        if context is None:
            return self.untraced()
        span = begin_span(
            self._tracer,
            name_of("answer", message.topic),
            beneath(context),
            kind=SpanKind.SERVER,
            attributes=attributes_of_check("answer", group, message, message.attempt),
        )
        return SpanBlock(span, is_current=True)

    # ---- consumers

    def processing(self, group: str, message: ReceivedMessage, *, is_secret: bool = False) -> SpanBlock | None:
        """Begin the span of a handler if its message is traced, else return None. Consumers run those `untraced`.

        is_secret: whether its errors may quote what was encrypted.
        """
        # An unsampled message carries no context (decision 0066), so most messages return here without a span.
        context = context_of(message.headers) if message.headers else None
        if context is None and not self._starts_traces:
            return None
        span = begin_span(
            self._tracer,
            name_of("process", message.topic),
            beneath(context) if context is not None and self._joins_senders else Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes_of_received(group, message),
            links=None if context is None else [Link(context)],
        )
        return SpanBlock(span, is_current=True, is_secret=is_secret)

    def received(
        self, group: str, topics: set[str], packed_headers: Callable[[], Sequence[bytes | None]], begun_at_ns: int
    ) -> None:
        """Record the span of a poll by the application that returned messages. begun_at_ns: its begin, since 1970."""
        topic = one_of(topics)
        span = begin_span(
            self._tracer,
            name_of("poll", topic),
            kind=SpanKind.CLIENT,
            attributes={
                **attributes_of("poll", topic, kind="receive"),
                "messaging.consumer.group.name": group,
            },
            start_time=begun_at_ns,
        )
        if span.is_recording():
            try:
                found = packed_headers()
            except Exception as exc:  # noqa: BLE001 - the poll has taken the messages: the application reads them itself
                note_failure(exc)
            else:
                span.set_attribute(MESSAGE_COUNT, len(found))
                for link in links_of(found):
                    span.add_link(link.context)
        end_span(span)

    # ---- servers

    def checking(self, group: str, message: ReceivedMessage, check: int) -> AbstractContextManager[SpanBlock | None]:
        """Begin the span of a broker's wait for the answer to a check-back."""
        context = context_of(message.headers)
        if context is None:
            return nullcontext()
        span = begin_span(
            self._tracer,
            name_of("check", message.topic),
            beneath(context),
            kind=SpanKind.CLIENT,
            attributes=attributes_of_check("check", group, message, check),
        )
        return SpanBlock(span)

    def mirroring(
        self, topics: set[str], count: int, packed_headers: Iterable[bytes | None]
    ) -> AbstractContextManager[Any]:
        """Begin the span of an append of messages of several transactions to a log, if any is traced.

        It is a child of the first one's span, so that it is sampled as that one is, and has links to all.
        """
        links = links_of(packed_headers)
        if not links:
            return nullcontext()
        topic = one_of(topics)
        span = begin_span(
            self._tracer,
            name_of("mirror", topic),
            beneath(links[0].context),
            kind=SpanKind.CLIENT,
            attributes=attributes_of("mirror", topic, kind="send", count=count),
            links=links,
        )
        return SpanBlock(span)


def sdk_is_set_up() -> bool:
    """Return True if this process has a global tracer provider. Without one, spans of `Tracing()` are not recorded."""
    return not isinstance(get_tracer_provider(), ProxyTracerProvider)
