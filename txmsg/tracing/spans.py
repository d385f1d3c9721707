"""Spans as blocks, with names and attributes by OpenTelemetry's conventions for messaging.

Samplers and span processors are the application's, and run when a span begins and ends. Their exceptions are caught
here: the message may already be stored, or received, and must be neither sent again nor lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextvars import Token
from types import TracebackType
from typing import Self

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)
from opentelemetry.util.types import Attributes

from txmsg.errors import said_by
from txmsg.message import ReceivedMessage, TransactionState, message_id
from txmsg.runtime.logs import EventLog
from txmsg.tracing.context import headers_of

_log = EventLog(__name__)

TRANSACTION_ID = "messaging.txmsg.transaction.id"
OUTCOME = "messaging.txmsg.outcome"
MESSAGE_ID = "messaging.message.id"
MESSAGE_COUNT = "messaging.batch.message_count"

_failed: set[type[Exception]] = set()
"""Types of exceptions that tracing has raised in this process, each logged once."""


class SpanBlock:
    """A span for the time of a `with`. It ends with the block, and records an exception of the block.

    is_current: spans begun in the block are its children. is_own: the span is ended here. is_secret: of an exception
    only the class is recorded, because its text may quote encrypted data.
    """

    __slots__ = ("_is_current", "_is_own", "_is_secret", "_token", "span")

    def __init__(self, span: Span, *, is_current: bool = False, is_own: bool = True, is_secret: bool = False) -> None:
        self.span = span
        self._is_secret = is_secret
        self._is_current = is_current
        self._is_own = is_own
        self._token: Token[Context] | None = None

    def __enter__(self) -> Self:
        if self._is_current:
            self._token = attach(set_span_in_context(self.span))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._token is not None:
            detach(self._token)
        if self._is_own:
            end_span(self.span, error, is_secret=self._is_secret)

    def answered(self, state: TransactionState) -> None:
        """Record the outcome of a check."""
        self.span.set_attribute(OUTCOME, state.value)

    @property
    def traceparent(self) -> str:
        """The span's context for another process; empty if it is not sampled."""
        return headers_of(self.span)["traceparent"] if self.span.get_span_context().trace_flags.sampled else ""


def begin_span(
    tracer: Tracer,
    name: str,
    context: Context | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes = None,
    links: Sequence[Link] | None = None,
    start_time: int | None = None,
) -> Span:
    """Return a new span; one that records nothing if the SDK raises."""
    try:
        return tracer.start_span(name, context, kind, attributes, links, start_time)
    except Exception as exc:  # noqa: BLE001 - the application's sampler or processor
        note_failure(exc)
        return INVALID_SPAN


def end_span(span: Span, error: BaseException | None = None, *, is_secret: bool = False) -> None:
    """End a span, with the error if there is one; is_secret: with its class only. Never raises an Exception."""
    try:
        try:
            if error is not None and span.is_recording():
                _note_error(span, error, is_secret=is_secret)
        finally:
            span.end()
    except Exception as exc:  # noqa: BLE001 - the application's processor, or its error's text
        note_failure(exc)


def _note_error(span: Span, error: BaseException, *, is_secret: bool) -> None:
    kind = type(error)
    is_builtin = kind.__module__ == "builtins"
    span.set_attribute("error.type", kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}")
    if is_secret:
        span.set_status(Status(StatusCode.ERROR, kind.__name__))
        return
    span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {said_by(error)}"))
    span.record_exception(error)


def note_failure(error: Exception) -> None:
    """Log an exception of tracing, once for each type: it may occur for each message."""
    if type(error) not in _failed:
        _failed.add(type(error))
        _log.exception(
            "tracing.failed",
            "a span is lost or incomplete, as tracing raised %(error)s; messages are not affected, and this is logged "
            "once",
            error=f"{type(error).__name__}: {said_by(error)}",
        )


def one_of(topics: Collection[str]) -> str | None:
    """Return the topic if there is exactly one."""
    return next(iter(topics)) if len(topics) == 1 else None


def name_of(operation: str, topic: str | None) -> str:
    """Return a span's name. topic: None if there are several."""
    return operation if topic is None else f"{operation} {topic}"


def attributes_of(
    operation: str, topic: str | None, *, kind: str | None = None, count: int = 1
) -> dict[str, str | int]:
    """Return the attributes of all spans of messages. kind: the operation's type, if the conventions have one."""
    attributes: dict[str, str | int] = {"messaging.system": "txmsg", "messaging.operation.name": operation}
    if kind is not None:
        attributes["messaging.operation.type"] = kind
    if topic is not None:
        attributes["messaging.destination.name"] = topic
    if count != 1:
        attributes[MESSAGE_COUNT] = count
    return attributes


def attributes_of_received(group: str, message: ReceivedMessage) -> Attributes:
    """Return the attributes of a handler's span."""
    return {
        **attributes_of("process", message.topic, kind="process"),
        "messaging.consumer.group.name": group,
        "messaging.destination.partition.id": str(message.queue),
        MESSAGE_ID: message.id,
        TRANSACTION_ID: str(message.transaction_id),
        "messaging.txmsg.message.offset": message.offset or 0,
        "messaging.txmsg.message.delivery_attempt": message.attempt,
    }


def attributes_of_check(operation: str, group: str, message: ReceivedMessage, check: int) -> Attributes:
    """Return the attributes of both spans of a check-back. message: the first one of the transaction."""
    return {
        **attributes_of(operation, message.topic),
        "messaging.txmsg.producer.group": group,
        MESSAGE_ID: message_id(message.transaction_id, 0),
        TRANSACTION_ID: str(message.transaction_id),
        "messaging.txmsg.check.attempt": check,
    }
