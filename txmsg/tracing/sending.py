"""Spans of a producer: a send or half message; beneath it, the local transaction and the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from random import Random
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self
from uuid import UUID

from opentelemetry.context import get_current
from opentelemetry.trace import Link, Span, SpanKind, Tracer, get_current_span, set_span_in_context

from txmsg.message import Message, TransactionState, message_id
from txmsg.tracing.context import context_of, headers_of, with_context
from txmsg.tracing.spans import (
    MESSAGE_ID,
    OUTCOME,
    TRANSACTION_ID,
    SpanBlock,
    attributes_of,
    begin_span,
    end_span,
    name_of,
    one_of,
)

LOCAL_TRANSACTION = "local transaction"
_NOTHING = nullcontext()


class Unsampled:
    """A producer's call that is not sampled, and the transaction that it begins. One object for all such calls.

    An object per call would cost more than the sampler (decision 0066): it would live until the transaction's end, and
    make the garbage collector scan the process more often.

    beneath: the span that instrumentations find in the local transaction; None: the caller's span, unchanged.
    """

    __slots__ = ("_beneath",)

    def __init__(self, beneath: Span | None) -> None:
        self._beneath = beneath

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def carried_by(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages unchanged: an unsampled context would cost bytes in tables and time at consumers."""
        return messages

    def stored(self, id_bytes: bytes) -> None:
        pass

    def local_transaction(self) -> AbstractContextManager[Any]:
        """Return a block in which instrumentations record nothing."""
        return _NOTHING if self._beneath is None else SpanBlock(self._beneath, is_current=True, is_own=False)

    def telling(self, state: TransactionState) -> AbstractContextManager[Any]:
        return _NOTHING


class SendSpan:
    """The span of a producer's call, for the time of a `with`; also the parent of its transaction's later spans."""

    __slots__ = ("_count", "_span", "_topic", "_tracer", "_transaction_id")

    def __init__(self, tracer: Tracer, span: Span, topic: str | None, count: int) -> None:
        self._tracer = tracer
        self._span = span
        self._topic = topic
        self._count = count
        self._transaction_id = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        end_span(self._span, error)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # spans stay in their process; a Half that goes to another one is not traced there

    def carried_by(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages with the context of the span, the parent of all their later spans.

        A context that the application has put into a message stays. Unchanged if the span is recorded but not sampled.
        """
        if not self._span.get_span_context().trace_flags.sampled:
            return messages
        headers = headers_of(self._span)
        return tuple(with_context(message, headers) for message in messages)

    def stored(self, id_bytes: bytes) -> None:
        """Record that the messages are stored under this transaction id."""
        self._transaction_id = str(UUID(bytes=id_bytes))
        self._span.set_attribute(TRANSACTION_ID, self._transaction_id)
        if self._count == 1:
            self._span.set_attribute(MESSAGE_ID, message_id(UUID(bytes=id_bytes), 0))

    def local_transaction(self) -> AbstractContextManager[Any]:
        """Return the span of the local transaction. Spans of instrumentations are beneath it."""
        return SpanBlock(
            begin_span(
                self._tracer,
                LOCAL_TRANSACTION,
                set_span_in_context(self._span),
                attributes={"messaging.system": "txmsg", TRANSACTION_ID: self._transaction_id},
            ),
            is_current=True,
        )

    def telling(self, state: TransactionState) -> AbstractContextManager[Any]:
        """Return the span of reporting the outcome to the broker."""
        attributes = attributes_of(state.value, self._topic, kind="settle", count=self._count)
        return SpanBlock(
            begin_span(
                self._tracer,
                name_of(state.value, self._topic),
                set_span_in_context(self._span),
                kind=SpanKind.CLIENT,
                attributes={**attributes, TRANSACTION_ID: self._transaction_id, OUTCOME: state.value},
            )
        )


class RootSampling:
    """Decides which calls outside of traces may begin one, before the SDK is asked. sampled: their share."""

    __slots__ = ("_draw", "_sampled")

    def __init__(self, sampled: float) -> None:
        self._sampled = sampled
        self._draw = Random().random  # not the module's, which an application may have seeded

    def may_begin(self) -> bool:
        return self._draw() < self._sampled


class SendSpans:
    """Begins the spans of a `Tracing` for producers. nothing: a span that records nothing."""

    __slots__ = ("_roots", "_tracer", "_unsampled", "_unsampled_above")

    def __init__(self, tracer: Tracer, nothing: Span, roots: RootSampling) -> None:
        self._tracer = tracer
        self._roots = roots
        self._unsampled = Unsampled(nothing)
        self._unsampled_above = Unsampled(None)

    def begin_span(
        self, operation: Literal["send", "half"], messages: Sequence[Message], group: str
    ) -> SendSpan | Unsampled:
        """Begin the span of a call. It links contexts that the application has put into messages."""
        current = get_current()  # once: in a process of many tasks each look costs more than a microsecond
        above = get_current_span(current).get_span_context()
        if not above.is_valid:
            # `start_span` takes 3 us in a loop, and 8 among 256 callers, to record nothing; a random number takes
            # none (decision 0066).
            if not self._roots.may_begin():
                return self._unsampled
        elif not above.trace_flags.sampled:  # the sampler is not asked either
            return self._unsampled_above
        own = _own_contexts(messages)
        topic = _topic_of(messages)
        span = begin_span(
            self._tracer,
            name_of(operation, topic),
            current,
            kind=SpanKind.CLIENT if len(own) == len(messages) else SpanKind.PRODUCER,
            attributes=_attributes(operation, topic, len(messages), group),
            links=own,
        )
        return SendSpan(self._tracer, span, topic, len(messages)) if span.is_recording() else self._unsampled


@lru_cache(maxsize=100)
def _attributes(operation: str, topic: str | None, count: int, group: str) -> Mapping[str, str | int]:
    attributes = attributes_of(operation, topic, kind="send", count=count)
    return MappingProxyType({**attributes, "messaging.txmsg.producer.group": group})


def _topic_of(messages: Sequence[Message]) -> str | None:
    """Return the topic of all messages, if it is the same."""
    if len(messages) == 1 and isinstance(messages[0], Message):
        return messages[0].topic
    return one_of({message.topic for message in messages if isinstance(message, Message)})


def _own_contexts(messages: Sequence[Message]) -> list[Link]:
    """Return links to the contexts that the application has put into messages."""
    headers = [message.headers for message in messages if isinstance(message, Message) and message.headers]
    return [Link(context) for each in headers if (context := context_of(each)) is not None]
