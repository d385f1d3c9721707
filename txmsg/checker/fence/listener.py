"""The check listener made of a fence."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from txmsg.checker.fence.fence import Fence
from txmsg.checker.fence.fence_async import AsyncFence
from txmsg.message import ReceivedMessage, TransactionState


class FenceCheckListener:
    """The ready-made CheckMessageListener: the fence of the database of `engine` answers.

    With an Engine `check` blocks (call it on a thread), with an AsyncEngine it returns an awaitable, to be awaited on
    the event loop that the engine belongs to.
    """

    reads_bodies: Final = False
    """So they are not decrypted for it. A subclass that reads them sets True."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self.fence: Fence | AsyncFence = AsyncFence(engine) if isinstance(engine, AsyncEngine) else Fence(engine)

    def check(self, message: ReceivedMessage) -> TransactionState | Awaitable[TransactionState]:
        """The outcome of the transaction of `message`, by its fence row."""
        return self.fence.check(message.transaction_id)
