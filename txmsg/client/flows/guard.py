"""Watches a session while user code runs in its transaction, so that one transaction stays one transaction.

The flow's own row (fence or inbox), the business effects and the outcome belong to a single commit on a single
connection. `session.commit()` that returns is no proof of it: PostgreSQL answers COMMIT in an aborted transaction by
rolling back, MySQL rolls a deadlocked transaction back and begins another. So text that ends a transaction is refused
before it is sent, errors are noted, and after a noted error the own row is read before COMMIT. Knows no messages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NoReturn, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import Dialect, ExceptionContext
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from txmsg.checker.fence.driver import DriverState, codes_of, driver_state, in_autocommit, rolls_back_all
from txmsg.checker.fence.engines import sync_session_of
from txmsg.checker.fence.own_statement import unheard
from txmsg.client.flows.sql_text import StatementKind, first_word, steps
from txmsg.errors import MisuseError, OutcomeUnknown, shown

P = TypeVar("P")
_BEGUN_BY_DRIVER: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "PRAGMA", "EXPLAIN", "VALUES"})
"""Statements before which SQLite's driver begins a transaction, or that need none."""
_LOCK_WAIT_TIMEOUT: Final = 1205
_FLUSHES_MAX: Final = 100
"""In one commit. As SQLAlchemy's own bound."""
_IN_ABORTED: Final = "25P02"


class SavepointListener(Protocol):
    """Hears of savepoints: what was done inside one that is rolled back has not happened."""

    def savepoint(self, name: str, *, replaces: bool) -> None: ...
    def begun(self, nested: SessionTransaction) -> None: ...
    def released(self, name: str) -> None: ...
    def rolled_back_to(self, name: str) -> None: ...
    def rolled_back_unsent(self, nested: SessionTransaction) -> None: ...


class SessionGuard:
    """A context manager around user code and the commit after it.

    Inside it, committing the transaction raises MisuseError, and so do text that ends it, a statement after it was
    rolled back, and a statement on a second database; code that continues after such a refusal fails at its end.
    Savepoints are allowed, and a rollback that is followed by an exception is fine. `end_work` ends the part in which
    user code runs; `session.commit()` may follow, then `check_committed`.

    own_row: says whether the flow's own row is in the connection's transaction; None until it is written.
    """

    def __init__(self, session: Session, *, owner: str, savepoints: SavepointListener | None = None) -> None:
        self.own_row: Callable[[Connection], bool] | None = None
        self.commit_sent = False
        """True if COMMIT may have reached the database."""
        self._savepoints = savepoints
        self._session = session
        self._owner = owner
        self._root: SessionTransaction | None = None
        self._connection: Connection | None = None
        self._watched: list[Connection] = []
        """That connection, and others that were refused: a session may continue to use a refused one."""
        self._flow_commits = False
        """True while the flow itself has the session commit."""
        self._work_ended = False
        """True once no user code runs any more."""
        self._refusal: MisuseError | None = None
        self._noted: BaseException | None = None
        self._codes: set[int | str] = set()
        self._lost: BaseException | None = None
        self._was_open = False

    def __enter__(self) -> Self:
        if self._session.twophase:
            raise MisuseError(
                f"the session of {self._owner} commits in two phases, and the second may come much later: "
                "use a session without twophase=True"
            )
        self._root = self._session.get_transaction() or self._session.begin()
        _listen_to_sessions()
        _add(_of_sessions, self._session, self)
        try:
            for connection, *_ in set(self._root._connections.values()):  # where the transaction has begun already
                self.begun(connection)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _remove(_of_sessions, self._session, self)
        for connection in self._watched:
            _remove(_of_connections, connection, self)

    # ---- the end

    def check_intact(self) -> None:
        """Raise MisuseError if the code ended the transaction and continued as if not, or left a savepoint open."""
        if self._refusal is not None:
            raise self._refusal
        if self._session.get_transaction() is not self._root:
            raise MisuseError(
                f"the transaction of {self._owner} was rolled back or closed inside it, yet it returned normally: "
                "raise an exception after a rollback, or use session.begin_nested() for the part that may fail"
            )
        if self._session.in_nested_transaction():
            raise MisuseError(f"a savepoint is still open at the end of {self._owner}: end it inside")

    def end_work(self, *, is_last: bool = True) -> None:
        """Flush. Raises MisuseError if the transaction is not the one that began; otherwise it may be committed.

        is_last: False if it is called again after the user's listeners to `before_commit`.
        """
        self.check_intact()
        self._flush()
        self.check_intact()  # events of the user's run in a flush
        if self._connection is not None:
            self._prove(self._connection)
        self._flow_commits = True
        self._work_ended = is_last

    def leave_commit_to_others(self) -> None:
        """Allow the commit at any time: the transaction is not the flow's, and its owner commits it."""
        self._flow_commits = self._work_ended = True

    @property
    def is_committed(self) -> bool:
        """True if a commit that has returned committed what was proved."""
        return self.commit_sent and self._noted is None

    def _flush(self) -> None:
        """Flush, also the changes of the user's listeners to a flush: COMMIT would flush them later."""
        for _ in range(_FLUSHES_MAX):
            self._session.flush()
            if not (self._session.new or self._session.dirty or self._session.deleted):
                return
        raise MisuseError(
            f"the session of {self._owner} has changes after {_FLUSHES_MAX} flushes: a listener to after_flush makes "
            "new ones each time"
        )

    def check_committed(self) -> None:
        """Raise unless `session.commit()`, which has returned, committed what was proved."""
        if self._connection is not None and not self.commit_sent:
            raise MisuseError(
                f"session.commit() at the end of {self._owner} committed nothing: its connection belongs to a "
                "transaction that began outside; bind the session to an engine"
            )
        if self._noted is not None:  # by a listener to `commit` that ran after ours
            raise OutcomeUnknown(
                f"an error in an event listener during the commit of {self._owner} was caught ({_said(self._noted)}): "
                "it may be committed or not, its check-back decides; let such errors out"
            ) from self._noted

    def _prove(self, connection: Connection) -> None:
        """Raise MisuseError unless the transaction is still the one that began. Asks only where there is a doubt."""
        error = self._lost or self._noted
        if error is not None:
            if self._lost is not None or connection.invalidated or not self._survived(connection):
                raise self._rolled_back(error) from error
            self._noted = None
        elif (state := driver_state(connection)) is DriverState.ABORTED or (
            state is DriverState.NONE and self.own_row is not None
        ):
            raise MisuseError(
                f"the transaction of {self._owner} was aborted or ended on the driver's connection, past SQLAlchemy: "
                "nothing is committed; leave the transaction to the session"
            )

    def _survived(self, connection: Connection) -> bool:
        try:
            if self.own_row is not None and not self.own_row(connection):
                return False
            if _LOCK_WAIT_TIMEOUT in self._codes and _is_mysql(connection.dialect):
                return not connection.scalar(text("SELECT @@innodb_rollback_on_timeout"))
            if self.own_row is None:
                connection.execute(text("SELECT 1"))  # fails where PostgreSQL has aborted
        except SQLAlchemyError:
            return False
        return True

    def _rolled_back(self, error: BaseException) -> MisuseError:
        return MisuseError(
            f"the database has rolled back the transaction of {self._owner} after an error that was caught inside it "
            f"({_said(error)}): nothing is committed; let such an error out, or use session.begin_nested() for the "
            "part that may fail"
        )

    def _refuse(self, refusal: MisuseError) -> NoReturn:
        self._refusal = refusal
        raise refusal

    # ---- what is heard meanwhile

    def committing_session(self) -> None:
        """Refuse the commit that the session is about to begin, unless the flow has it commit."""
        if not self._flow_commits:
            self._refuse_commit()

    def committing(self, connection: Connection) -> None:
        """COMMIT is about to be sent. An error that comes from here leaves the connection broken, and closes it."""
        try:
            if not self._work_ended:
                self._refuse_commit()
            self._prove(connection)
        except BaseException:
            # Its transaction would stay open, and go back into the pool like that.
            connection.invalidate()
            raise
        self.commit_sent = True

    def _refuse_commit(self) -> NoReturn:
        self._refuse(
            MisuseError(
                f"commit inside {self._owner}: it commits at its end, so that the broker gets exactly one outcome; "
                "use session.flush() to send statements, session.begin_nested() for savepoints"
            )
        )

    def begun(self, connection: Connection) -> None:
        """Check a connection on which a transaction of the session has its first statement."""
        self._watch(connection)
        if self._root is not None and self._root is not self._session.get_transaction():
            self._refuse(
                MisuseError(
                    f"a statement after the rollback of the transaction of {self._owner}: it would no longer belong "
                    "to the message; let the exception out, or use session.begin_nested() for the part that may fail"
                )
            )
        if connection is self._connection:
            return
        if self._connection is not None:
            self._refuse(
                MisuseError(
                    f"the transaction of {self._owner} works on {self._connection.engine.url} and now on "
                    f"{connection.engine.url}: one transaction is one database, or its two halves could end "
                    "differently; let a session that routes reads to a replica use the primary here"
                )
            )
        if in_autocommit(connection):
            self._refuse(
                MisuseError(
                    f"the connection of {self._owner} is in AUTOCOMMIT, so that each statement is committed by itself: "
                    "use a transactional isolation level"
                )
            )
        self._connection = connection

    def _watch(self, connection: Connection) -> None:
        if connection not in self._watched:
            _listen_to_engine(connection.engine)
            _add(_of_connections, connection, self)
            self._watched.append(connection)

    def executing(self, connection: Connection, sql: str) -> None:
        """Check a statement that is about to be sent."""
        if connection is not self._connection and self._refusal is not None:
            raise self._refusal  # of this connection, which the session uses nevertheless
        if self._lost is not None:
            raise self._rolled_back(self._lost) from self._lost
        for kind, what in steps(sql, connection.dialect.name):
            if kind is StatementKind.END:
                self._refuse(
                    MisuseError(
                        f"{what} as SQL inside {self._owner} would end its transaction: raise an exception to roll "
                        "back, use session.begin_nested() for savepoints, and run DDL of MySQL outside"
                    )
                )
        if connection.dialect.name == "sqlite":
            self._was_open = driver_state(connection) is DriverState.OPEN
            if not self._was_open and first_word(sql) not in _BEGUN_BY_DRIVER:
                # The driver would not: a savepoint's release, or the statement itself, would commit.
                connection.connection.cursor().execute("BEGIN")

    def executed(self, connection: Connection, sql: str) -> None:
        """Note a statement that was carried out. A savepoint statement that failed has changed none."""
        if self._savepoints is not None:
            for kind, what in steps(sql, connection.dialect.name):
                self._tell_of_savepoint(self._savepoints, kind, what, connection.dialect)

    def _tell_of_savepoint(self, listener: SavepointListener, kind: StatementKind, name: str, dialect: Dialect) -> None:
        match kind:
            case StatementKind.SAVEPOINT:
                listener.savepoint(name, replaces=_is_mysql(dialect))
            case StatementKind.RELEASE:
                listener.released(name)
            case StatementKind.ROLLBACK_TO:
                listener.rolled_back_to(name)

    def failed(self, connection: Connection, error: BaseException) -> None:
        """Note a statement that has failed, whether or not the error is caught."""
        if isinstance(error, MisuseError):
            return  # ours, and nothing was sent
        codes = codes_of(error)
        # The first error is the one to report: after it PostgreSQL refuses every statement with 25P02, which would hide
        # the reason.
        if self._noted is None or _IN_ABORTED not in codes:  # that one only follows from another
            self._noted = error
        self._codes |= codes
        is_over = self._was_open and driver_state(connection) is DriverState.NONE
        if self._lost is None and (is_over or rolls_back_all(connection.dialect.name, error)):
            self._lost = error

    def begun_nested(self, nested: SessionTransaction) -> None:
        """Note that the session's SAVEPOINT was carried out, before the first statement in it."""
        if self._savepoints is not None:
            self._savepoints.begun(nested)

    def rolled_back(self, transaction: SessionTransaction) -> None:
        """Note the rollback of a transaction of the session, or of a savepoint that was never sent; a sent one is noted
        by its statements."""
        if self._savepoints is not None and not transaction._connections:
            self._savepoints.rolled_back_unsent(transaction)


def check_session(owner: str, session: object, kind: type[Session | AsyncSession]) -> None:
    """Raise MisuseError unless `session` is of this kind, and commits what it has begun."""
    if isinstance(session, Connection | AsyncConnection):
        # It has events before its commit only: what became of it could not be told.
        raise MisuseError(
            f"{owner} got {shown(session)}, and a connection does not say whether its commit has succeeded: begin with "
            "a session instead, `with Session(engine) as session, session.begin():`, whose session.connection() is the "
            "connection for statements of your own"
        )
    if not isinstance(session, kind):
        raise MisuseError(
            f"{owner} got {shown(session)} of type {type(session).__name__}: give a Session to a Producer, an "
            "AsyncSession to an AsyncProducer; of a scoped_session, what calling it returns"
        )
    # Not its own: in SQLAlchemy 2.0 an AsyncSession whose sync_session_class finds the engines has none.
    if isinstance(sync_session_of(session).bind, Connection):
        raise MisuseError(
            "the session is bound to a connection, whose transaction may go on after session.commit(): "
            "bind it to an engine, and take session.connection() for statements of your own"
        )


def keep_loaded(session: Session, owner: str) -> None:
    """Keep what a new session has loaded after its commit. Raises MisuseError for one that is in a transaction."""
    if session.in_transaction():
        raise MisuseError(
            f"session= of {owner} gave a session that is already in a transaction: give a sessionmaker, whose sessions "
            "are new, not a scoped_session or one session for all"
        )
    # The session closes with the call, so expired attributes of a returned object could never be loaded again.
    session.expire_on_commit = False


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _is_mysql(dialect: Dialect) -> bool:
    return dialect.name in ("mysql", "mariadb")


# Registering listeners in each transaction cost a quarter of the time of a small one. So sessions and engines get them
# once, and most events belong to no flow.

_of_sessions: WeakKeyDictionary[Session, tuple[SessionGuard, ...]] = WeakKeyDictionary()
_of_connections: WeakKeyDictionary[Connection, tuple[SessionGuard, ...]] = WeakKeyDictionary()
_engines: WeakSet[Engine] = WeakSet()
_dialects: WeakSet[Dialect] = WeakSet()
_listening = threading.Lock()


def _forget_in_child() -> None:
    global _listening  # noqa: PLW0603 - of the process
    _listening = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


def _add(guards: WeakKeyDictionary[Any, tuple[SessionGuard, ...]], key: object, guard: SessionGuard) -> None:
    # A new tuple, never a changed list: an event that runs at this moment iterates over the old one.
    guards[key] = (*guards.get(key, ()), guard)


def _remove(guards: WeakKeyDictionary[Any, tuple[SessionGuard, ...]], key: object, guard: SessionGuard) -> None:
    if left := tuple(other for other in guards.get(key, ()) if other is not guard):
        guards[key] = left
    else:
        guards.pop(key, None)


@cache
def _listen_to_sessions() -> None:
    event.listen(Session, "before_commit", _before_commit)
    event.listen(Session, "after_begin", _after_begin)
    event.listen(Session, "after_soft_rollback", _after_soft_rollback)


def _listen_to_engine(engine: Engine) -> None:
    if engine in _engines:
        return
    # Two threads that see an engine for the first time would each add listeners, and every statement would be checked
    # twice.
    with _listening:
        if engine.dialect not in _dialects:  # which engines with other execution options share
            event.listen(engine, "handle_error", _handle_error, insert=True)  # before one that raises
            _dialects.add(engine.dialect)
        if engine not in _engines:
            event.listen(engine, "before_cursor_execute", _before_cursor_execute, retval=True)
            event.listen(engine, "after_cursor_execute", _after_cursor_execute)
            event.listen(engine, "commit", _commit)
            _engines.add(engine)


def _before_commit(session: Session) -> None:
    for guard in _of_sessions.get(session, ()):
        if not session.in_nested_transaction():  # SQLAlchemy calls this for savepoints, too
            guard.committing_session()


def _after_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    for guard in _of_sessions.get(session, ()):
        guard.begun(connection)
        if transaction.nested:
            guard.begun_nested(transaction)


def _after_soft_rollback(session: Session, transaction: SessionTransaction) -> None:
    for guard in _of_sessions.get(session, ()):
        guard.rolled_back(transaction)


def _before_cursor_execute(
    connection: Connection, _cursor: object, statement: str, parameters: P, *_: object
) -> tuple[str, P]:
    for guard in _of_connections.get(connection, ()):
        guard.executing(connection, statement)
    return statement, parameters


def _after_cursor_execute(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
    for guard in _of_connections.get(connection, ()):
        guard.executed(connection, statement)


unheard.update((_before_cursor_execute, _after_cursor_execute))


def _handle_error(context: ExceptionContext) -> None:
    if context.connection is not None:
        for guard in _of_connections.get(context.connection, ()):
            guard.failed(context.connection, context.sqlalchemy_exception or context.original_exception)


def _commit(connection: Connection) -> None:
    for guard in _of_connections.get(connection, ()):
        guard.committing(connection)
