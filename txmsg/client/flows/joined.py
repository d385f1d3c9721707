# Generated from joined_async.py by `make generate`: change that one.

"""Messages that are sent with a transaction that is not ours: its owner begins and ends it.

Events of the session take the place of the late flow's block. Right before COMMIT the fence row is written and the half
messages are stored; when the transaction has ended, and has given back its connection, brokers are told. Rolled back,
or closed, it sends nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm import Session as SyncSession

from txmsg.checker.fence.engines import in_event, in_session, sync_session_of
from txmsg.client.flows.flow import report_commit, report_outcome
from txmsg.client.flows.guard import SessionGuard, check_session
from txmsg.client.flows.halves import HalfSender
from txmsg.client.flows.sent import SentMessages
from txmsg.client.flows.transaction import Transaction
from txmsg.client.running import running
from txmsg.client.sending.half import Half
from txmsg.errors import MisuseError
from txmsg.message import (
    Message,
    MessageId,
    TransactionState,
    message_id,
    new_transaction_id,
)

_OWNER: Final = "the transaction that app.join(session) has joined"


class JoinedTransaction(Transaction):
    """The result of `join`: for the transaction that the session is in, or begins now. Ends with it.

    Its session has to be closed: one that is dropped meanwhile keeps its connection.
    """

    def __init__(self, producer: HalfSender, session: Session) -> None:
        self.transaction_id = new_transaction_id()
        self._producer = producer
        self._session = session
        self._sync_session = sync_session_of(session)
        self._sent = SentMessages()
        self._guard = SessionGuard(self._sync_session, owner=_OWNER, savepoints=self._sent)
        self._guard.__enter__()
        self._guard.leave_commit_to_others()
        self._root = self._sync_session.get_transaction()
        self._running = ExitStack()
        self._is_fenced = False
        self._is_open = True
        self._half: Half | None = None
        self._may_be_stored = False
        self._is_committed = False

    def _add(self, message: Message) -> MessageId:
        if not self._is_open:
            raise MisuseError(f"tx.send() after the end of {_OWNER}: call app.join(session) in the next one")
        place = self._sent.add(message, self._sync_session.get_nested_transaction())
        return message_id(self.transaction_id, place)

    def require(self, producer: HalfSender) -> None:
        """Raise MisuseError unless the transaction sends by this producer."""
        if producer is not self._producer:
            raise MisuseError(
                "app.join(session): another application has joined the transaction of this session, and its messages "
                "would leave by that one: send by it, or give each application a session of its own"
            )

    def note_committed(self) -> None:
        """Note that the session has committed its transaction."""
        self._is_committed = True

    def is_of(self, transaction: SessionTransaction) -> bool:
        """Return True if this is the transaction that was joined."""
        return transaction is self._root

    def store(self) -> None:
        """Write the fence row and store the half messages, right before COMMIT."""
        in_session(self._session, lambda _: self._guard.end_work())
        self._is_open = False
        if not self._sent:
            return
        if self._producer.fence is not None:
            if not self._is_fenced:  # else a commit that failed before, for want of a broker, is tried again
                self._producer.fence.write(self._session, self.transaction_id)
                self._is_fenced = True
            self._guard.own_row = self._producer.fence._own_row(self.transaction_id)
        if self._half is None:  # else something raised after it was stored, and the commit is tried again
            self._store_halves()

    def _store_halves(self) -> None:
        if self._may_be_stored and self._producer._is_sharded:
            raise MisuseError(
                f"an attempt to commit {_OWNER} had no answer, and its half messages may be in one of several Notify "
                "databases: roll back, and begin again"
            )
        # Set before the call: if that is cancelled or raises, the half messages may be stored all the same, and a
        # second attempt must not choose another database.
        self._may_be_stored = True
        self._half = self._producer._half(self._sent.messages(), self.transaction_id, carry_context=True)
        self._running.enter_context(running(self._half.id_bytes))

    def after_end(self) -> None:
        """Report the outcome after the end of the transaction, of whatever kind."""
        self._is_open = False
        self._guard.__exit__(None, None, None)
        self._running.close()
        if self._half is not None:
            in_event(self._report_outcome)

    def _report_outcome(self) -> None:
        assert self._half is not None, "`after_end` has looked"
        if self._is_committed and self._guard.is_committed:
            report_commit(self._producer, self._half)
        else:
            report_outcome(self._producer, self._half, TransactionState.UNKNOWN, wait=False)


# Sessions get listeners once, at the first join: an event that runs cannot be taken a listener.

_joined: Final[WeakKeyDictionary[SyncSession, JoinedTransaction | None]] = WeakKeyDictionary()
"""By their sessions; None where there is none now."""


def _listen(session: SyncSession) -> None:
    event.listen(session, "before_commit", _before_commit)
    event.listen(session, "after_commit", _after_commit)
    event.listen(session, "after_transaction_end", _after_transaction_end)


def _before_commit(session: SyncSession) -> None:
    joined = _joined.get(session)
    if joined is not None and not session.in_nested_transaction():  # these events come for savepoints, too
        in_event(joined.store)


def _after_commit(session: SyncSession) -> None:
    joined = _joined.get(session)
    if joined is not None and not session.in_nested_transaction():
        joined.note_committed()


def _after_transaction_end(session: SyncSession, transaction: SessionTransaction) -> None:
    joined = _joined.get(session)
    if joined is not None and joined.is_of(transaction):
        _joined[session] = None
        joined.after_end()


def join(producer: HalfSender, session: Session) -> Transaction:
    """Return the Transaction of the session's transaction, the same for each call in it. Raises MisuseError."""
    check_session("app.join", session, Session)
    sync_session = sync_session_of(session)
    found = _joined.get(sync_session)
    if found is not None:
        found.require(producer)
        return found
    if sync_session.in_nested_transaction():
        raise MisuseError("app.join(session) inside a savepoint: call it before session.begin_nested()")
    if sync_session not in _joined:
        _listen(sync_session)
    _joined[sync_session] = made = JoinedTransaction(producer, session)
    return made
