"""The project's fences as stores of the contract: SQLAlchemy sessions and driver connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from txmsg.checker.connections.engines import AsyncConnect, Connect
from txmsg.checker.fence import AsyncFence, AsyncFenceStore, Fence, FenceStore
from txmsg.client.connections.rows import write_fence
from txmsg.client.connections.rows_async import write_fence as write_fence_async
from txmsg.client.connections.transaction import ConnectionTransaction
from txmsg.client.connections.transaction_async import AsyncConnectionTransaction
from txmsg.client.flows.guard import SessionGuard
from txmsg.message import TransactionId, TransactionState

OWNER = "the test"


class SessionStore(FenceStore[Session]):
    """Sessions as used by the flows."""

    def __init__(self, engine: Engine) -> None:
        self._fence = Fence(engine)

    def fence_id(self) -> UUID:
        return self._fence.fence_id()

    @contextmanager
    def _in_session(self, transaction_id: TransactionId) -> Iterator[Session]:
        with Session(self._fence.engine) as session, SessionGuard(session, owner=OWNER) as guard:  # type: ignore[arg-type]
            self._fence.write(session, transaction_id)
            guard.own_row = self._fence._own_row(transaction_id)
            yield session
            guard.end_work()
            session.commit()
            guard.check_committed()

    def transaction(self, transaction_id: TransactionId) -> AbstractContextManager[Any]:
        return self._in_session(transaction_id)

    def outcome(self, transaction_id: TransactionId) -> TransactionState:
        return self._fence.check(transaction_id)


class ConnectionStore(FenceStore[Any]):
    """Connections of psycopg, sqlite3 or PyMySQL."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._fence = Fence(connect)

    def fence_id(self) -> UUID:
        return self._fence.fence_id()

    def transaction(self, transaction_id: TransactionId) -> AbstractContextManager[Any]:
        def write_row(driver: Any, connection: Any) -> None:
            write_fence(driver, connection, transaction_id, self._fence.fence_id())

        return ConnectionTransaction(self._connect(), write_row, owner=OWNER)

    def outcome(self, transaction_id: TransactionId) -> TransactionState:
        return self._fence.check(transaction_id)


class AsyncConnectionStore(AsyncFenceStore[Any]):
    """Connections of asyncio drivers."""

    def __init__(self, connect: AsyncConnect) -> None:
        self._connect = connect
        self._fence = AsyncFence(connect)

    async def fence_id(self) -> UUID:
        return await self._fence.fence_id()

    def transaction(self, transaction_id: TransactionId) -> AbstractAsyncContextManager[Any]:
        async def write_row(driver: Any, connection: Any) -> None:
            await write_fence_async(driver, connection, transaction_id, await self._fence.fence_id())

        return AsyncConnectionTransaction(self._connect(), write_row, owner=OWNER)

    async def outcome(self, transaction_id: TransactionId) -> TransactionState:
        return await self._fence.check(transaction_id)
