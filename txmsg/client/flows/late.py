# Generated from late_async.py by `make generate`: change that one.

"""The late flow: messages that depend on what a transaction computed leave just before it commits.

`with producer.transaction(session) as tx` owns the end of the session's transaction: its exit flushes, writes the
fence row, sends all half messages in one request, commits, and tells the broker. Listeners of the application that run
at that flush, or before the commit, may still send. An exception inside rolls the session back; nothing has been sent
by then. Without messages it merely commits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from txmsg.checker.fence.engines import commit_after, in_session, sync_session_of
from txmsg.checker.fence.store import FenceStore
from txmsg.client.flows.flow import report_commit, report_outcome
from txmsg.client.flows.guard import SessionGuard, check_session
from txmsg.client.flows.halves import HalfSender
from txmsg.client.flows.outer import inside, refuse_nested
from txmsg.client.flows.sent import SentMessages
from txmsg.client.flows.transaction import Transaction
from txmsg.client.running import running
from txmsg.client.sending.half import Half
from txmsg.client.sending.traced import NOT_TRACED, transaction
from txmsg.errors import MisuseError
from txmsg.message import (
    Message,
    MessageId,
    TransactionState,
    message_id,
    new_transaction_id,
)
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_OWNER = "producer.transaction(session)"


class LateTransaction(Transaction):
    """The result of `Producer.transaction(session)`. Not reusable. The caller closes the session.

    owner: whose transaction it is, as errors name it. wait: for the reply to the outcome.
    """

    def __init__(self, producer: HalfSender, session: Session, *, owner: str = _OWNER, wait: bool = False) -> None:
        check_session("producer.transaction", session, Session)
        if producer.check_listener is None:
            raise MisuseError(
                "producer.transaction needs a producer with a check_listener, which resolves a transaction whose "
                "outcome was lost: give it FenceCheckListener(engine)"
            )
        if isinstance(producer.check_listener, FenceStore):
            raise MisuseError(
                "producer.transaction works on a session, and the producer's fence is a store of its own: use "
                "@transactional_message(..., session=store)"
            )
        self.transaction_id = new_transaction_id()
        self._producer = producer
        self._owner = owner
        self._wait = wait
        self._session = session
        self._sync_session = sync_session_of(session)
        self._sent = SentMessages()
        self._guard = SessionGuard(self._sync_session, owner=owner, savepoints=self._sent)
        self._span: AbstractContextManager[object] = NOT_TRACED
        self._inside = inside(owner, self._sync_session)
        self._half: Half | None = None
        self._open = False
        self._used = False
        self._is_void = False

    def _add(self, message: Message) -> MessageId:
        if not self._open:
            raise MisuseError(f"tx.send() outside {self._owner}, which tx belongs to: send before it ends")
        place = self._sent.add(message, self._sync_session.get_nested_transaction())
        return message_id(self.transaction_id, place)

    def _discard(self) -> None:
        """Let the end of the block roll back, without an exception."""
        self._is_void = True

    def __enter__(self) -> Self:
        if self._used:
            raise MisuseError(f"{self._owner} is entered a second time: create a new one with producer.transaction()")
        if self._sync_session.in_nested_transaction():
            raise MisuseError(
                f"{self._owner} inside a savepoint: it commits the outer transaction, so begin it before "
                "session.begin_nested()"
            )
        refuse_nested(self._owner, self._producer.fence)
        self._guard.__enter__()
        self._inside.__enter__()
        self._span = transaction(self._producer.tracing)
        self._span.__enter__()
        self._open = self._used = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.__exit__(None, None, None)
        try:
            self._end_transaction(value)
        except BaseException as exc:
            self._span.__exit__(type(exc), exc, exc.__traceback__)
            raise
        self._span.__exit__(kind, value, trace)

    def _end_transaction(self, value: BaseException | None) -> None:
        try:
            try:
                if value is None and not self._is_void:
                    self._commit()
            finally:
                self._open = False
                self._guard.__exit__(None, None, None)
        except BaseException:
            self._roll_back()
            raise
        if value is not None or self._is_void:
            self._roll_back()

    def _roll_back(self) -> None:
        try:
            self._session.rollback()
        except SQLAlchemyError:  # the connection is gone: the caller is to see the first error, not this one
            _log.warning(
                "transaction.rollback_failed",
                "rolling back the session of %(function)s failed",
                function=self._owner,
                exc_info=True,
            )

    def _commit(self) -> None:
        in_session(self._session, lambda _: self._guard.end_work(is_last=False))
        try:
            with ExitStack() as entered:
                commit_after(self._session, lambda: self._send_halves(entered))
                if self._guard.own_row is not None:  # else it is no transaction of ours
                    self._guard.check_committed()
        except BaseException as exc:
            if self._half is not None:
                report_outcome(self._producer, self._half, TransactionState.UNKNOWN, wait=isinstance(exc, Exception))
            raise
        if self._half is not None:
            report_commit(self._producer, self._half, wait=self._wait)

    def _send_halves(self, entered: ExitStack) -> None:
        """Write the fence row and store the half messages, right before COMMIT. entered: is exited after it."""
        in_session(self._session, lambda _: self._guard.end_work())
        self._open = False
        if not self._sent:
            return
        entered.enter_context(running(self.transaction_id.bytes))
        fence = self._producer.fence
        if fence is not None:
            # In this session, not by a connection of its own: the thread or task holds one already, and a pool of one
            # would deadlock.
            fence._identify(self._session)  # which the producer reads when it starts
        # Sent before the fence row is written, so that both travel at the same time. The commit waits for both.
        begun = self._producer._begin_half(self._sent.messages(), self.transaction_id)
        try:
            if fence is not None:  # while they are on their way
                fence.write(self._session, self.transaction_id)
                self._guard.own_row = fence._own_row(self.transaction_id)
            begun.stored()
        except BaseException:
            begun.leave()
            raise
        self._half = begun.half
