"""Hooks for tests in producers and consumers: functions that are called at their steps, and that do nothing by default.

An exception of a hook is raised by the step. txmsg.testing sets hooks for the time of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from txmsg.client.sending.half import Half
from txmsg.message import ReceivedMessage, TransactionState

Request = Literal["send", "half", "outcome"]


def _nothing(*_: object) -> None:
    pass


@dataclass(slots=True, kw_only=True)
class ProducerHooks:
    """Called by the caller of a producer's method, but for after_reply."""

    before_send: Callable[[], object] = _nothing
    """Before plain messages are sent."""
    before_half: Callable[[], object] = _nothing
    """Before half messages are sent."""
    after_half: Callable[[Half], object] = _nothing
    """Called when half messages are stored."""
    before_end: Callable[[Half, TransactionState], object] = _nothing
    """Called before the broker is told an outcome, whether or not the caller waits for its reply."""
    after_reply: Callable[[Request], object] = _nothing
    """Called when a broker has replied to a request, and before the reply is processed: on the thread of the caller
    that has sent it for all who waited, or on the producer's loop."""


@dataclass(slots=True, kw_only=True)
class ConsumerHooks:
    """Called where handlers are: on a thread for `def`, on the loop for `async def`."""

    before_handler: Callable[[ReceivedMessage], object] = _nothing
    """Called instead of the handler, if it raises: the message is refused."""
