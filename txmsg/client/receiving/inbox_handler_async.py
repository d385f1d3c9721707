"""A handler whose message is recorded in the inbox, in the transaction of its effects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from txmsg.checker.fence.engines import in_session_async, sync_session_of
from txmsg.client.connections.rows_async import record as record_on_connection
from txmsg.client.connections.transaction_async import AsyncConnectionTransaction
from txmsg.client.flows.guard import SessionGuard
from txmsg.client.flows.outer import inside
from txmsg.client.receiving.inbox import HandledBefore, InboxHandler, record
from txmsg.connections.opening import AsyncDriver
from txmsg.consumer.subscriptions import handled
from txmsg.message import ReceivedMessage
from txmsg.runtime.user_function import finished_async

_Handler = Callable[[Any, ReceivedMessage], Awaitable[object]]


class AsyncIdempotentHandler(InboxHandler[_Handler]):
    """A handler `(session, message)` made into a handler `(message)`."""

    async def __call__(self, message: ReceivedMessage) -> None:
        """Runs the handler in a transaction that also records the message; skips it if it is recorded."""
        row = self.row_of(message)
        opened = self.factory()
        if not isinstance(opened, AsyncSession):
            await self._handle_on_connection(opened, row, message)
            return
        async with opened as session:
            with SessionGuard(sync_session_of(session), owner=self.owner) as guard:
                if not await in_session_async(session, record, guard, row):
                    self.skip(message)
                    return
                with inside(self.owner, sync_session_of(session)):
                    handled(self.owner, await finished_async(self.owner, await self.handler(session, message)))
                await in_session_async(session, lambda _: guard.end_work())
                await session.commit()
                guard.check_committed()

    async def _handle_on_connection(self, opened: object, row: dict[str, object], message: ReceivedMessage) -> None:
        async def write_row(driver: AsyncDriver, connection: Any) -> None:
            if not await record_on_connection(driver, connection, row):
                raise HandledBefore

        try:
            async with AsyncConnectionTransaction(opened, write_row, owner=self.owner) as connection:
                handled(self.owner, await finished_async(self.owner, await self.handler(connection, message)))
        except HandledBefore:
            self.skip(message)
