# Generated from inbox_handler_async.py by `make generate`: change that one.

"""A handler whose message is recorded in the inbox, in the transaction of its effects."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

from txmsg.checker.fence.engines import in_session, sync_session_of
from txmsg.client.guard import SessionGuard
from txmsg.client.inbox import InboxHandler, record
from txmsg.message import ReceivedMessage

_Handler = Callable[[Session, ReceivedMessage], None]


class IdempotentHandler(InboxHandler[_Handler, Session]):
    """A handler `(session, message)` made into a handler `(message)`."""

    def __call__(self, message: ReceivedMessage) -> None:
        """Runs the handler in a transaction that also records the message; skips it if it is recorded."""
        row = self.row_of(message)
        with self.factory() as session:
            with SessionGuard(sync_session_of(session), owner=self.owner) as guard:
                if not in_session(session, record, guard, row):
                    self.skip(message)
                    return
                self.handler(session, message)
                in_session(session, lambda _: guard.end_work())
                session.commit()
                guard.check_committed()
