"""A handler that sends: the row of its message, its effects and its messages belong to one transaction.

The row of the inbox is the first statement, so attempts at one message exclude each other: a second one waits for the
first, is skipped if that commits, and continues if it does not. Each attempt sends under a transaction id of its own:
messages that it has stored at the broker and not committed stay undelivered, whatever the next attempt sends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy.ext.asyncio import AsyncSession

from txmsg.checker.fence.engines import in_session_async
from txmsg.client.flows.halves_async import AsyncHalfSender
from txmsg.client.flows.late_async import AsyncLateTransaction
from txmsg.client.flows.transaction import Transaction
from txmsg.client.receiving.inbox import InboxHandler, record
from txmsg.message import ReceivedMessage
from txmsg.runtime.user_function import finished_async

_Handler = Callable[[AsyncSession, Transaction, ReceivedMessage], Awaitable[object]]


class AsyncSendingHandler(InboxHandler[_Handler]):
    """A handler `(session, tx, message)` made into a handler `(message)`.

    producer: stores the half messages, and tells brokers the outcome. Its fence is in the database of the sessions.
    """

    given = 2

    def __init__(
        self, handler: _Handler, factory: Callable[[], AsyncSession], group: str | None, producer: AsyncHalfSender
    ) -> None:
        super().__init__(handler, factory, group)
        self._producer = producer

    async def __call__(self, message: ReceivedMessage) -> None:
        """Run the handler in a transaction that also records the message; skip it if it is recorded."""
        row = self.row_of(message)
        async with self.factory() as session:
            async with AsyncLateTransaction(self._producer, session, owner=self.owner) as tx:
                if not await in_session_async(session, record, tx._guard, row):
                    tx._discard()
                    self.skip(message)
                    return
                await finished_async(self.owner, await self.handler(session, tx, message))
