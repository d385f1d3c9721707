"""What a producer does, as spans: a send or half message; then, beneath that one, local transaction and outcome."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
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
    Block,
    attributes_of,
    begin,
    end,
    name_of,
    one_of,
)

LOCAL_TRANSACTION = "local transaction"
_NOTHING = nullcontext()


class Sending:
    """One call of a producer, for the time of a `with`; and for its transaction, what comes after it.

    messages: to be sent instead of those given: they carry the context of the span, which is the parent of all that
    becomes of them. A context that the application has put into a message stays, and is linked.

    What is not sampled carries none. So it costs neither bytes in the tables nor time at consumers, who take it as not
    sampled as well.
    """

    __slots__ = ("_is_ambient", "_is_traced", "_span", "_topic", "_tracer", "_transaction_id", "messages")

    def __init__(
        self, tracer: Tracer, operation: Literal["send", "half"], messages: Sequence[Message], group: str
    ) -> None:
        self.messages = messages
        self._tracer = tracer
        self._transaction_id = ""
        self._topic = topic = _topic_of(messages)
        current = get_current()  # once: in a process of many tasks each look costs more than a microsecond
        ambient = get_current_span(current)
        context = ambient.get_span_context()
        self._is_ambient = context.is_valid and not context.trace_flags.sampled
        if self._is_ambient:  # the most usual case of all, so it does not even ask the sampler
            self._is_traced = False
            self._span: Span = ambient
            return
        own = _own_contexts(messages)
        attributes = attributes_of(operation, topic, kind="send", count=len(messages))
        attributes["messaging.txmsg.producer.group"] = group
        self._span = begin(
            tracer,
            name_of(operation, topic),
            current,
            kind=SpanKind.CLIENT if len(own) == len(messages) else SpanKind.PRODUCER,
            attributes=attributes,
            links=own,
        )
        self._is_traced = self._span.is_recording()
        if self._is_traced and self._span.get_span_context().trace_flags.sampled:
            headers = headers_of(self._span)
            self.messages = tuple(with_context(message, headers) for message in messages)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._is_traced:
            end(self._span, error)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # spans stay in their process; a Half that goes to another one is not traced there

    def stored(self, id_bytes: bytes) -> None:
        """The messages are stored, under this transaction id."""
        if self._is_traced:
            self._transaction_id = str(UUID(bytes=id_bytes))
            self._span.set_attribute(TRANSACTION_ID, self._transaction_id)
            if len(self.messages) == 1:
                self._span.set_attribute(MESSAGE_ID, message_id(UUID(bytes=id_bytes), 0))

    def local_transaction(self) -> AbstractContextManager[Any]:
        """The time of the local transaction. What instrumentations do in it stands beneath it."""
        if self._is_ambient:
            return _NOTHING
        if not self._is_traced:
            return Block(self._span, is_current=True, is_own=False)
        return Block(
            begin(
                self._tracer,
                LOCAL_TRANSACTION,
                set_span_in_context(self._span),
                attributes={"messaging.system": "txmsg", TRANSACTION_ID: self._transaction_id},
            ),
            is_current=True,
        )

    def telling(self, state: TransactionState) -> AbstractContextManager[Any]:
        """The time in which the broker is told the outcome."""
        if not self._is_traced:
            return _NOTHING
        attributes = attributes_of(state.value, self._topic, kind="settle", count=len(self.messages))
        return Block(
            begin(
                self._tracer,
                name_of(state.value, self._topic),
                set_span_in_context(self._span),
                kind=SpanKind.CLIENT,
                attributes={**attributes, TRANSACTION_ID: self._transaction_id, OUTCOME: state.value},
            )
        )


def _topic_of(messages: Sequence[Message]) -> str | None:
    """The topic of all, if they have one."""
    if len(messages) == 1 and isinstance(messages[0], Message):
        return messages[0].topic
    return one_of({message.topic for message in messages if isinstance(message, Message)})


def _own_contexts(messages: Sequence[Message]) -> list[Link]:
    """Links to the contexts that the application has put into messages."""
    headers = [message.headers for message in messages if isinstance(message, Message) and message.headers]
    return [Link(context) for each in headers if (context := context_of(each)) is not None]
