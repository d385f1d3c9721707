"""The interface that answers a check-back: "did this local transaction commit?" Knows no network."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from txmsg.message import ReceivedMessage, TransactionState


@runtime_checkable
class CheckMessageListener(Protocol):
    """Answers the check-backs of a producer group. The broker may ask any live client of the group, at any time.

    COMMIT: the local transaction has committed. ROLLBACK: it has not, *and it never will*. UNKNOWN: neither is
    certain yet; the broker checks back later. An exception, a timeout or any other value counts as UNKNOWN.

    A transaction without a trace may still be running: if the answer is ROLLBACK and it commits after all, its message
    is lost. A listener that cannot exclude this must answer UNKNOWN; `txmsg.checker.fence.FenceCheckListener` can
    exclude it.
    """

    def check(self, message: ReceivedMessage) -> TransactionState | Awaitable[TransactionState]:
        """Return the outcome of the transaction of `message`, the first (n = 0) of its half messages.

        May be a plain or an `async def` function; a plain one is called on a separate thread. Must be idempotent:
        several brokers may ask about the same transaction repeatedly, until one answer is final.
        """
        ...
