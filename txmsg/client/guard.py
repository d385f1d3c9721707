"""Watches a session while user code runs in its transaction, so that one transaction stays one transaction.

The fence row, the business effects and the outcome told to the broker belong to a single commit on a single
connection. Knows no messages.
"""

from __future__ import annotations

import threading
from functools import cache
from types import TracebackType
from typing import Final, NoReturn, Self
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction

from txmsg.errors import MisuseError

__all__ = ["SessionGuard"]


_KEY: Final = "txmsg_guards"
"""Where a session keeps its guards, in its `info`."""


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
        _listen_to_sessions()
        self._session.info.setdefault(_KEY, []).append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.info[_KEY].remove(self)
        if self._connection is not None:
            _guards_of_connections[self._connection].remove(self)

    def watch(self, connection: Connection) -> None:
        """Names the connection of the transaction, where it is known; else the first statement's is taken."""
        self._connection = connection
        _listen_to_engine(connection.engine)
        _guards_of_connections.setdefault(connection, []).append(self)

    def check_intact(self) -> None:
        """Raises MisuseError when the code ended the transaction and went on as if not, or left a savepoint open."""
        if self._session.get_transaction() is not self._root:
            raise MisuseError(
                f"the transaction of {self._owner} was rolled back or closed inside it, yet it returned normally: "
                "raise an exception after a rollback, or use session.begin_nested() for the part that may fail"
            )
        if self._session.in_nested_transaction():
            raise MisuseError(f"a savepoint is still open at the end of {self._owner}: end it inside")

    def refuse_commit(self) -> NoReturn:
        """The transaction is being committed, and not by who guards it."""
        raise MisuseError(
            f"commit inside {self._owner}: it commits by itself at its end, so that the broker hears of exactly one "
            "outcome; use session.flush() to send statements, session.begin_nested() for savepoints"
        )

    def begun(self, connection: Connection) -> None:
        """A transaction of the session has its first statement on this connection."""
        if self._session.get_transaction() is not self._root:
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


# Listening anew in each transaction cost a quarter of the time of a small one. So sessions and engines are listened to
# once, and most of what is heard belongs to nobody.

_guards_of_connections: WeakKeyDictionary[Connection, list[SessionGuard]] = WeakKeyDictionary()
_engines: WeakSet[Engine] = WeakSet()
_listening = threading.Lock()


@cache
def _listen_to_sessions() -> None:
    event.listen(Session, "before_commit", _before_commit)
    event.listen(Session, "after_begin", _after_begin)


def _listen_to_engine(engine: Engine) -> None:
    if engine in _engines:
        return
    with _listening:
        if engine not in _engines:
            event.listen(engine, "commit", _connection_commit)
            _engines.add(engine)


def _before_commit(session: Session) -> None:
    for guard in session.info.get(_KEY, ()):
        if not session.in_nested_transaction():  # SQLAlchemy calls this for savepoints, too
            guard.refuse_commit()


def _after_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    for guard in session.info.get(_KEY, ()):
        guard.begun(connection)


def _connection_commit(connection: Connection) -> None:
    for guard in _guards_of_connections.get(connection, ()):
        # An error here would leave the connection's transaction open and put it back into the pool like that.
        connection.invalidate()
        guard.refuse_commit()
