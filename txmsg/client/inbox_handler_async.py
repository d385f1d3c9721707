"""A handler whose message is recorded in the inbox, in the transaction of its effects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy.ext.asyncio import AsyncSession

from txmsg.checker.fence.engines import in_session_async, sync_session_of
from txmsg.client.guard import SessionGuard
from txmsg.client.inbox import InboxHandler, record
from txmsg.message import ReceivedMessage

_Handler = Callable[[AsyncSession, ReceivedMessage], Awaitable[None]]


class AsyncIdempotentHandler(InboxHandler[_Handler, AsyncSession]):
    """A handler `(session, message)` made into a handler `(message)`."""

    async def __call__(self, message: ReceivedMessage) -> None:
        """Runs the handler in a transaction that also records the message; skips it if it is recorded."""
        row = self.row_of(message)
        async with self.factory() as session:
            with SessionGuard(sync_session_of(session), owner=self.owner) as guard:
                if not await in_session_async(session, record, guard, row):
                    self.skip(message)
                    return
                await self.handler(session, message)
                await in_session_async(session, lambda _: guard.end_work())
                await session.commit()
                guard.check_committed()
