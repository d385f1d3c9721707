# Generated from inbox_handler_async.py by `make generate`: change that one.

"""A handler whose message is recorded in the inbox, in the transaction of its effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from txmsg.checker.fence.engines import in_session, sync_session_of
from txmsg.client.connections.rows import record as record_on_connection
from txmsg.client.connections.transaction import ConnectionTransaction
from txmsg.client.flows.guard import SessionGuard
from txmsg.client.flows.outer import inside
from txmsg.client.receiving.inbox import HandledBefore, InboxHandler, record
from txmsg.connections.opening import Driver
from txmsg.consumer.subscriptions import handled
from txmsg.message import ReceivedMessage
from txmsg.runtime.user_function import finished

_Handler = Callable[[Any, ReceivedMessage], object]


class IdempotentHandler(InboxHandler[_Handler]):
    """A handler `(session, message)` made into a handler `(message)`."""

    def __call__(self, message: ReceivedMessage) -> None:
        """Runs the handler in a transaction that also records the message; skips it if it is recorded."""
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

    def _handle_on_connection(self, opened: object, row: dict[str, object], message: ReceivedMessage) -> None:
        def write_row(driver: Driver, connection: Any) -> None:
            if not record_on_connection(driver, connection, row):
                raise HandledBefore

        try:
            with ConnectionTransaction(opened, write_row, owner=self.owner) as connection:
                handled(self.owner, finished(self.owner, self.handler(connection, message)))
        except HandledBefore:
            self.skip(message)
