"""Spans of a client's calls, if it was given a `Tracing`. Without one nothing of tracing is imported."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from txmsg.client.sending.half import Half
from txmsg.message import Message, TransactionState

if TYPE_CHECKING:
    from txmsg.tracing import Tracing
    from txmsg.tracing.sending import SendSpan, Unsampled

NOT_TRACED = nullcontext()


def sending(
    tracing: Tracing | None, operation: Literal["send", "half"], messages: Sequence[Message], group: str
) -> AbstractContextManager[SendSpan | Unsampled | None]:
    """Return the span of a call that stores messages. Its value determines how the messages are sent."""
    return NOT_TRACED if tracing is None else tracing.sending(operation, messages, group)


def transaction(tracing: Tracing | None) -> AbstractContextManager[Any]:
    """Return the span of a local transaction whose messages are sent in it."""
    return NOT_TRACED if tracing is None else tracing.transaction()


def local_transaction(trace: SendSpan | Unsampled | None) -> AbstractContextManager[Any]:
    """Return the span of the local transaction of half messages that were sent with this trace."""
    return NOT_TRACED if trace is None else trace.local_transaction()


def telling(half: Half, state: TransactionState) -> AbstractContextManager[Any]:
    """Return the span of a call that reports an outcome."""
    return NOT_TRACED if half.trace is None else half.trace.telling(state)
