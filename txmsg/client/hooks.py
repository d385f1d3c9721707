"""Where tests act on a producer or a consumer: functions that are called at its steps, and that do nothing by default.

What a hook raises, the step raises. txmsg.testing sets hooks for the time of a block.
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
    """When half messages are stored."""
    before_end: Callable[[Half, TransactionState], object] = _nothing
    """Before the broker is told an outcome, whether the caller waits for its reply or not."""
    after_reply: Callable[[Request], object] = _nothing
    """When a broker has replied to a request, and before anything is done with the reply: on the thread of the caller
    that has sent it for all who waited, or on the producer's loop."""


@dataclass(slots=True, kw_only=True)
class ConsumerHooks:
    """Called where handlers are: on a thread for `def`, on the loop for `async def`."""

    before_handler: Callable[[ReceivedMessage], object] = _nothing
    """Instead of the handler, if it raises: the message is refused."""
