"""The check listener that answers from a fence."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from txmsg.checker.connections.engines import AsyncConnect, Connect
from txmsg.checker.fence.engines import FenceEngine, checked_engine_async
from txmsg.checker.fence.fence import Fence
from txmsg.checker.fence.fence_async import AsyncFence
from txmsg.message import ReceivedMessage, TransactionState


class FenceCheckListener:
    """The usual CheckMessageListener: answers from the fence in the database of `engine`.

    engine: or a function that opens a connection of psycopg, sqlite3 or PyMySQL, or an `async def` that opens one of
    psycopg, asyncpg, aiosqlite or aiomysql. With an Engine, or such a function, `check` blocks (call it on a thread);
    with an AsyncEngine or an `async def` it returns an awaitable, to be awaited on the event loop that the engine
    belongs to.
    """

    reads_bodies: Final = False
    """False: bodies are not decrypted for a check. A subclass that reads them sets True."""

    def __init__(self, engine: Engine | AsyncEngine | Connect | AsyncConnect) -> None:
        checked = checked_engine_async(engine)
        self.fence: Fence | AsyncFence = Fence(checked) if isinstance(checked, FenceEngine) else AsyncFence(checked)

    def check(self, message: ReceivedMessage) -> TransactionState | Awaitable[TransactionState]:
        """Return the outcome of the transaction of `message`, by its fence row."""
        return self.fence.check(message.transaction_id)
