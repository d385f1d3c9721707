# Generated from transaction_async.py by `make generate`: change that one.

"""A transaction on a connection of a driver, and the proof that what commits is the transaction that began.

Nothing tells what application code does on such a connection. So a savepoint is set behind the flow's own row and
released before COMMIT: a commit, a rollback, an implicit commit of MySQL and a deadlock all end the savepoint, and in a
transaction that PostgreSQL has aborted its release fails. If it can be released, the row is in what commits.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from txmsg.checker.connections.opening import Driver, opened
from txmsg.checker.fence.driver import codes_of
from txmsg.errors import MisuseError
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_SAVEPOINT: Final = "SAVEPOINT txmsg_own"
_RELEASE: Final = "RELEASE SAVEPOINT txmsg_own"
_IS_OVER: Final = frozenset({"3B001", "25P01", "25P02", 1305})
"""Codes of the release's failure without such a savepoint, without a transaction, and in an aborted one. SQLite has no
code for it."""

WriteRow = Callable[[Driver, Any], None]


class ConnectionTransaction:
    """A context manager around application code: the transaction that the flow owns, on a connection of `given`.

    given: what a function that opens connections has returned. write_row: writes the flow's own row. An error is raised
    unless the row is certainly in what has committed.
    """

    def __init__(self, given: Any, write_row: WriteRow | None, *, owner: str) -> None:
        self._opened = opened(given, owner)
        self._write_row = write_row
        self._owner = owner
        self._driver: Driver
        self._connection: Any = None
        self._transaction: Any = None

    def __enter__(self) -> Any:
        self._driver, self._connection = self._opened.__enter__()
        try:
            # A transaction that its owner may roll back after our COMMIT was reported would deliver a message without
            # its effects.
            if self._driver.is_in_transaction(self._connection):
                raise MisuseError(
                    f"session= of {self._owner} gave a connection that is in a transaction already, which may still "
                    "be rolled back: give a function that opens a connection of its own, or the block of a pool, such "
                    "as pool.connection"
                )
            self._transaction = self._driver.transaction(self._connection)
            self._transaction.__enter__()
            try:
                if self._write_row is not None:
                    self._write_row(self._driver, self._connection)
                # After the own row, never before it: a savepoint that can be released then proves that the row is in
                # the same transaction.
                self._driver.execute(self._connection, _SAVEPOINT)
            except BaseException as exc:
                self._roll_back(exc)
                raise
        except BaseException as exc:
            self._opened.__exit__(type(exc), exc, exc.__traceback__)
            raise
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if value is not None:
                self._roll_back(value)
            else:
                self._commit()
        except BaseException as exc:
            self._opened.__exit__(type(exc), exc, exc.__traceback__)
            raise
        self._opened.__exit__(kind, value, trace)

    def _commit(self) -> None:
        try:
            self._prove()
        except BaseException as exc:
            self._roll_back(exc)
            raise
        self._transaction.__exit__(None, None, None)

    def _prove(self) -> None:
        try:
            self._driver.execute(self._connection, _RELEASE)
        except Exception as exc:
            if _IS_OVER.isdisjoint(codes_of(exc)) and "no such savepoint" not in str(exc):
                raise
            raise MisuseError(
                f"the transaction of {self._owner} was ended or aborted inside it ({exc}): it commits at its end, and "
                "nothing is left to commit; let errors of the database out, or use a savepoint for the part that may "
                "fail, and leave out commit(), rollback(), `with connection:`, and statements that commit by "
                "themselves, as DDL of MySQL does"
            ) from exc

    def _roll_back(self, reason: BaseException) -> None:
        try:
            self._transaction.__exit__(type(reason), reason, reason.__traceback__)
        except Exception as exc:  # noqa: BLE001 - the connection is gone: the caller is to see the first error
            if exc is not reason:
                _log.warning(
                    "transaction.rollback_failed",
                    "rolling back the session of %(function)s failed",
                    function=self._owner,
                    exc_info=True,
                )
