"""What an application answers when it is asked: "did this local transaction commit?" Knows no network."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from txmsg.message import ReceivedMessage, TransactionState


@runtime_checkable
class CheckMessageListener(Protocol):
    """Answers the check-backs of a producer group. Any live client of the group may be asked, at any time.

    COMMIT: the local transaction has committed. ROLLBACK: it has not, *and it never will*. UNKNOWN: neither is
    certain yet; the broker asks again later. Raising, hanging or any other value counts as UNKNOWN.

    A transaction without a trace may be one that still runs: answering ROLLBACK for it loses its message when it
    commits after all. A listener that cannot exclude this answers UNKNOWN; `txmsg.checker.fence.FenceCheckListener`
    can exclude it.
    """

    def check(self, message: ReceivedMessage) -> TransactionState | Awaitable[TransactionState]:
        """The outcome of the transaction of `message`, the first (n = 0) of its half messages.

        May be a plain or an `async def` function; a plain one is called on a thread of its own. Idempotent: the same
        transaction is asked about again and again, and by several brokers, until one answer is final.
        """
        ...
