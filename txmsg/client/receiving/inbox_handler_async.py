"""A handler whose message is recorded in the inbox, in the transaction of its effects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from txmsg.checker.connections.opening import AsyncDriver
from txmsg.checker.fence.engines import in_session_async, sync_session_of
from txmsg.client.connections.rows_async import record as record_on_connection
from txmsg.client.connections.transaction_async import AsyncConnectionTransaction
from txmsg.client.flows.guard import SessionGuard
from txmsg.client.flows.outer import inside
from txmsg.client.receiving.inbox import HandledBefore, InboxHandler, ListAttempt, record, record_list
from txmsg.consumer.subscriptions import handled
from txmsg.errors import MisuseError, shown
from txmsg.message import ReceivedMessage
from txmsg.runtime.user_function import finished_async

_Handler = Callable[[Any, ReceivedMessage], Awaitable[object]]


class AsyncIdempotentHandler(InboxHandler[_Handler]):
    """A handler `(session, message)` made into a handler `(message)`."""

    async def __call__(self, message: ReceivedMessage) -> None:
        """Run the handler in a transaction that also records the message; skips it if it is recorded."""
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

    async def handle_list(self, messages: list[ReceivedMessage]) -> list[Exception | None]:
        """Handle them in one transaction; if that fails, each in its own, so that one fails alone. Says what failed.

        The handler gets the list of those that are not recorded. Raises what would be raised for each of them.
        """
        attempt = ListAttempt()
        try:
            await self._handle_together(messages, attempt)
        except Exception as exc:
            if len(messages) == 1 or attempt.fails_for_each(exc):
                raise
        else:
            return [None] * len(messages)
        return await self._handle_each(messages)

    async def _handle_each(self, messages: list[ReceivedMessage]) -> list[Exception | None]:
        results: list[Exception | None] = []
        for message in messages:
            attempt = ListAttempt()
            try:
                await self._handle_together([message], attempt)
            except Exception as exc:  # noqa: BLE001 - it is told to who delivers
                if not attempt.has_begun:  # the database has gone meanwhile: not tried once for each that is left
                    return results + [exc] * (len(messages) - len(results))
                results.append(exc)
            else:
                results.append(None)
        return results

    async def _handle_together(self, messages: list[ReceivedMessage], attempt: ListAttempt) -> None:
        rows = self.rows_of(messages)
        opened = self.factory()
        if not isinstance(opened, AsyncSession):
            await self._handle_together_on_connection(opened, rows, messages, attempt)
            return
        async with opened as session:
            with SessionGuard(sync_session_of(session), owner=self.owner) as guard:
                new = self.new_of(messages, rows, await in_session_async(session, record_list, guard, rows))
                if not new:
                    return
                attempt.has_begun = True
                with inside(self.owner, sync_session_of(session)):
                    self._all_handled(await finished_async(self.owner, await self.handler(session, new)))
                await in_session_async(session, lambda _: guard.end_work())
                await session.commit()
                guard.check_committed()

    async def _handle_together_on_connection(
        self,
        opened: object,
        rows: dict[str, dict[str, object]],
        messages: list[ReceivedMessage],
        attempt: ListAttempt,
    ) -> None:
        recorded: set[str] = set()

        async def write_rows(driver: AsyncDriver, connection: Any) -> None:
            # In one order: two transactions that share messages then wait for each other's rows, and do not deadlock.
            for message_id in sorted(rows):
                if await record_on_connection(driver, connection, rows[message_id], goes_on=True):
                    recorded.add(message_id)
            if not recorded:
                raise HandledBefore

        with suppress(HandledBefore):
            async with AsyncConnectionTransaction(opened, write_rows, owner=self.owner) as connection:
                new = self.new_of(messages, rows, recorded)
                attempt.has_begun = True
                self._all_handled(await finished_async(self.owner, await self.handler(connection, new)))
                return
        self.new_of(messages, rows, recorded)

    def _all_handled(self, result: object) -> None:
        if result is not None:
            raise MisuseError(
                f"{self.owner} returned {shown(result)}: its list is handled in one transaction, all or none, so it "
                "returns nothing, or raises"
            )

    async def _handle_on_connection(self, opened: object, row: dict[str, object], message: ReceivedMessage) -> None:
        async def write_row(driver: AsyncDriver, connection: Any) -> None:
            if not await record_on_connection(driver, connection, row):
                raise HandledBefore

        try:
            async with AsyncConnectionTransaction(opened, write_row, owner=self.owner) as connection:
                handled(self.owner, await finished_async(self.owner, await self.handler(connection, message)))
        except HandledBefore:
            self.skip(message)
