"""The trace context in the headers of messages, as W3C writes it: traceparent and tracestate."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from txmsg.errors import MessageTooLarge, ProtocolError
from txmsg.message import Message
from txmsg.wire.headers import unpack_headers

TRACEPARENT = "traceparent"
LINKS_MAX = 128
"""Links of a span: the SDK's own default limit."""

_W3C = TraceContextTextMapPropagator()
_PACKED = TRACEPARENT.encode()


def headers_of(span: Span) -> Mapping[str, str]:
    """Return the headers that carry a span's context."""
    headers: dict[str, str] = {}
    _W3C.inject(headers, set_span_in_context(span, Context()))
    return headers


def context_of(headers: Mapping[str, str]) -> SpanContext | None:
    """Return the context that headers carry; None without a valid one."""
    if TRACEPARENT not in headers:
        return None
    found = get_current_span(_W3C.extract(headers, Context())).get_span_context()
    return found if found.is_valid else None


def with_context(message: Message, headers: Mapping[str, str]) -> Message:
    """Return the message with these headers; unchanged if it has a context of its own, or no room for another."""
    if not isinstance(message, Message) or TRACEPARENT in message.headers:  # SendEntry refuses other types
        return message
    try:
        return replace(message, headers={**message.headers, **headers})
    except MessageTooLarge:
        return message


def beneath(context: SpanContext) -> Context:
    """Return a context in which this one's span is the parent, without any other value."""
    return set_span_in_context(NonRecordingSpan(context), Context())


def unsampled() -> Span:
    """Return a span that records nothing, so that instrumentations beneath it record nothing either."""
    return NonRecordingSpan(SpanContext(random.getrandbits(128) | 1, random.getrandbits(64) | 1, is_remote=True))


def links_of(packed: Iterable[bytes | None]) -> list[Link]:
    """Return links to the messages that carry a context, at most LINKS_MAX. packed: their headers as stored."""
    contexts = (context for each in packed if each and _PACKED in each and (context := _packed_context(each)))
    return [Link(context) for context in islice(contexts, LINKS_MAX)]


def _packed_context(packed: bytes) -> SpanContext | None:
    try:
        return context_of(unpack_headers(packed))
    except ProtocolError:  # The reader of the message gets this error; a span must not fail by it.
        return None
