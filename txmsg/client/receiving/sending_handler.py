# Generated from sending_handler_async.py by `make generate`: change that one.

"""A handler that sends: the row of its message, its effects and its messages belong to one transaction.

The row of the inbox is the first statement, so attempts at one message exclude each other: a second one waits for the
first, is skipped if that commits, and continues if it does not. Each attempt sends under a transaction id of its own:
messages that it has stored at the broker and not committed stay undelivered, whatever the next attempt sends.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

from txmsg.checker.fence.engines import in_session
from txmsg.client.flows.halves import HalfSender
from txmsg.client.flows.late import LateTransaction
from txmsg.client.flows.transaction import Transaction
from txmsg.client.receiving.inbox import InboxHandler, record
from txmsg.message import ReceivedMessage
from txmsg.runtime.user_function import finished

_Handler = Callable[[Session, Transaction, ReceivedMessage], object]


class SendingHandler(InboxHandler[_Handler]):
    """A handler `(session, tx, message)` made into a handler `(message)`.

    producer: stores the half messages, and tells brokers the outcome. Its fence is in the database of the sessions.
    """

    given = 2

    def __init__(
        self, handler: _Handler, factory: Callable[[], Session], group: str | None, producer: HalfSender
    ) -> None:
        super().__init__(handler, factory, group)
        self._producer = producer

    def __call__(self, message: ReceivedMessage) -> None:
        """Run the handler in a transaction that also records the message; skip it if it is recorded."""
        row = self.row_of(message)
        with self.factory() as session:
            with LateTransaction(self._producer, session, owner=self.owner) as tx:
                if not in_session(session, record, tx._guard, row):
                    tx._discard()
                    self.skip(message)
                    return
                finished(self.owner, self.handler(session, tx, message))
