# Generated from inbox_handler_async.py by `make generate`: change that one.

"""A handler whose message is recorded in the inbox, in the transaction of its effects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy.orm import Session

from txmsg.checker.connections.opening import Driver
from txmsg.checker.fence.engines import in_session, sync_session_of
from txmsg.client.connections.rows import record as record_on_connection
from txmsg.client.connections.transaction import ConnectionTransaction
from txmsg.client.flows.guard import SessionGuard
from txmsg.client.flows.outer import inside
from txmsg.client.receiving.inbox import HandledBefore, InboxHandler, ListAttempt, record, record_list
from txmsg.consumer.subscriptions import handled
from txmsg.errors import MisuseError, shown
from txmsg.message import ReceivedMessage
from txmsg.runtime.user_function import finished

_Handler = Callable[[Any, ReceivedMessage], object]


class IdempotentHandler(InboxHandler[_Handler]):
    """A handler `(session, message)` made into a handler `(message)`."""

    def __call__(self, message: ReceivedMessage) -> None:
        """Run the handler in a transaction that also records the message; skips it if it is recorded."""
        row = self.row_of(message)
        opened = self.factory()
        if not isinstance(opened, Session):
            self._handle_on_connection(opened, row, message)
            return
        with opened as session:
            with SessionGuard(sync_session_of(session), owner=self.owner) as guard:
                if not in_session(session, record, guard, row):
                    self.skip(message)
                    return
                with inside(self.owner, sync_session_of(session)):
                    handled(self.owner, finished(self.owner, self.handler(session, message)))
                in_session(session, lambda _: guard.end_work())
                session.commit()
                guard.check_committed()

    def handle_list(self, messages: list[ReceivedMessage]) -> list[Exception | None]:
        """Handle them in one transaction; if that fails, each in its own, so that one fails alone. Says what failed.

        The handler gets the list of those that are not recorded. Raises what would be raised for each of them.
        """
        attempt = ListAttempt()
        try:
            self._handle_together(messages, attempt)
        except Exception as exc:
            if len(messages) == 1 or attempt.fails_for_each(exc):
                raise
        else:
            return [None] * len(messages)
        return self._handle_each(messages)

    def _handle_each(self, messages: list[ReceivedMessage]) -> list[Exception | None]:
        results: list[Exception | None] = []
        for message in messages:
            attempt = ListAttempt()
            try:
                self._handle_together([message], attempt)
            except Exception as exc:  # noqa: BLE001 - it is told to who delivers
                if not attempt.has_begun:  # the database has gone meanwhile: not tried once for each that is left
                    return results + [exc] * (len(messages) - len(results))
                results.append(exc)
            else:
                results.append(None)
        return results

    def _handle_together(self, messages: list[ReceivedMessage], attempt: ListAttempt) -> None:
        rows = self.rows_of(messages)
        opened = self.factory()
        if not isinstance(opened, Session):
            self._handle_together_on_connection(opened, rows, messages, attempt)
            return
        with opened as session:
            with SessionGuard(sync_session_of(session), owner=self.owner) as guard:
                new = self.new_of(messages, rows, in_session(session, record_list, guard, rows))
                if not new:
                    return
                attempt.has_begun = True
                with inside(self.owner, sync_session_of(session)):
                    self._all_handled(finished(self.owner, self.handler(session, new)))
                in_session(session, lambda _: guard.end_work())
                session.commit()
                guard.check_committed()

    def _handle_together_on_connection(
        self,
        opened: object,
        rows: dict[str, dict[str, object]],
        messages: list[ReceivedMessage],
        attempt: ListAttempt,
    ) -> None:
        recorded: set[str] = set()

        def write_rows(driver: Driver, connection: Any) -> None:
            # In one order: two transactions that share messages then wait for each other's rows, and do not deadlock.
            for message_id in sorted(rows):
                if record_on_connection(driver, connection, rows[message_id], goes_on=True):
                    recorded.add(message_id)
            if not recorded:
                raise HandledBefore

        with suppress(HandledBefore):
            with ConnectionTransaction(opened, write_rows, owner=self.owner) as connection:
                new = self.new_of(messages, rows, recorded)
                attempt.has_begun = True
                self._all_handled(finished(self.owner, self.handler(connection, new)))
                return
        self.new_of(messages, rows, recorded)

    def _all_handled(self, result: object) -> None:
        if result is not None:
            raise MisuseError(
                f"{self.owner} returned {shown(result)}: its list is handled in one transaction, all or none, so it "
                "returns nothing, or raises"
            )

    def _handle_on_connection(self, opened: object, row: dict[str, object], message: ReceivedMessage) -> None:
        def write_row(driver: Driver, connection: Any) -> None:
            if not record_on_connection(driver, connection, row):
                raise HandledBefore

        try:
            with ConnectionTransaction(opened, write_row, owner=self.owner) as connection:
                handled(self.owner, finished(self.owner, self.handler(connection, message)))
        except HandledBefore:
            self.skip(message)
