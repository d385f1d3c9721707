"""Watches a session while user code runs in its transaction, so that one transaction stays one transaction.

The fence row, the business effects and the outcome told to the broker belong to a single commit on a single
connection. Knows no messages.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from txmsg.errors import MisuseError

__all__ = ["SessionGuard"]


class SessionGuard:
    """A context manager around user code.

    Inside it, committing the transaction raises MisuseError, and so do a statement after a rollback of the whole
    transaction and a statement on a second database. Savepoints (`begin_nested`) are free. A rollback that is followed
    by an exception is fine. `check_intact` tells afterwards whether the transaction is still the one it was.
    """

    def __init__(self, session: Session, *, owner: str) -> None:
        self._session = session
        self._owner = owner
        self._root: SessionTransaction | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        self._root = self._session.get_transaction() or self._session.begin()
        event.listen(self._session, "before_commit", self._before_commit)
        event.listen(self._session, "after_begin", self._after_begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        event.remove(self._session, "before_commit", self._before_commit)
        event.remove(self._session, "after_begin", self._after_begin)
        if self._connection is not None:
            event.remove(self._connection, "commit", self._connection_commit)

    def watch(self, connection: Connection) -> None:
        """Names the connection of the transaction, where it is known; else the first statement's is taken."""
        self._connection = connection
        event.listen(connection, "commit", self._connection_commit)

    def check_intact(self) -> None:
        """Raises MisuseError when the code ended the transaction and went on as if not, or left a savepoint open."""
        if self._session.get_transaction() is not self._root:
            raise MisuseError(
                f"the transaction of {self._owner} was rolled back or closed inside it, yet it returned normally: "
                "raise an exception after a rollback, or use session.begin_nested() for the part that may fail"
            )
        if self._session.in_nested_transaction():
            raise MisuseError(f"a savepoint is still open at the end of {self._owner}: end it inside")

    def _before_commit(self, session: Session) -> None:
        if not session.in_nested_transaction():  # SQLAlchemy calls this for savepoints, too
            self._refuse_commit()

    def _connection_commit(self, connection: Connection) -> None:
        # An error here would leave the connection's transaction open and put it back into the pool like that.
        connection.invalidate()
        self._refuse_commit()

    def _refuse_commit(self) -> None:
        raise MisuseError(
            f"commit inside {self._owner}: it commits by itself at its end, so that the broker hears of exactly one "
            "outcome; use session.flush() to send statements, session.begin_nested() for savepoints"
        )

    def _after_begin(self, session: Session, transaction: SessionTransaction, connection: Connection) -> None:
        if session.get_transaction() is not self._root:
            raise MisuseError(
                f"a statement after the rollback of the transaction of {self._owner}: it would not belong to the "
                "message any more; let the exception out, or use session.begin_nested() for the part that may fail"
            )
        if self._connection is None:
            self.watch(connection)
        elif connection is not self._connection:
            raise MisuseError(
                f"the transaction of {self._owner} works on {self._connection.engine.url} and now on "
                f"{connection.engine.url}: one transaction is one database, or its two halves could end differently"
            )
