# Generated from drivers_async.py by `make generate`: change that one.

"""What drivers do differently: where their transactions begin and end, and how a statement is sent.

Statements are written with `%s`. Values are text and numbers, and `id_of` a UUID.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final
from uuid import UUID

from txmsg.errors import OutcomeUnknown

_IDLE: Final = 0
_UNKNOWN: Final = 4
_IN_TRANSACTION: Final = 1
"""Of what a MySQL server says with each reply."""


class Psycopg:
    """psycopg 3."""

    dialect: Final = "postgresql"

    def id_of(self, value: UUID) -> object:
        """As `txmsg.checker.tables.ID` stores it."""
        return value

    def is_in_transaction(self, connection: Any) -> bool:
        """Whether one has begun on this connection, as the driver knows without asking the server."""
        return int(connection.info.transaction_status) not in (_IDLE, _UNKNOWN)

    def transaction(self, connection: Any) -> PsycopgTransaction:
        """One that commits at the end of its block, and rolls back what raises. Not begun yet."""
        return PsycopgTransaction(connection)

    def execute(self, connection: Any, sql: str, *values: object) -> int:
        """How many rows were written."""
        return int((connection.execute(sql, values or None)).rowcount)


class PsycopgTransaction:
    """psycopg's own, in which `connection.commit()` is refused and `connection.transaction()` is a savepoint."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._own = connection.transaction()

    def __enter__(self) -> None:
        self._own.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own.__exit__(kind, value, trace)
        # On a connection that broke psycopg sends nothing, and says nothing.
        if kind is None and int(self._connection.info.transaction_status) != _IDLE:
            raise OutcomeUnknown(
                "the connection broke before its COMMIT was answered: what was done may be committed or not, its "
                "check-back decides"
            )


class Sqlite:
    """Python's own SQLite."""

    dialect: Final = "sqlite"

    def id_of(self, value: UUID) -> object:
        return value.hex

    def is_in_transaction(self, connection: Any) -> bool:
        # With autocommit=False (Python 3.12) the driver begins one by itself, so that there always is one.
        return bool(connection.in_transaction) and getattr(connection, "autocommit", None) is not False

    def transaction(self, connection: Any) -> SqliteTransaction:
        return SqliteTransaction(connection)

    def execute(self, connection: Any, sql: str, *values: object) -> int:
        return int((connection.execute(sql.replace("%s", "?"), values)).rowcount)


class SqliteTransaction:
    """By SQL: what `commit()` does depends on how the connection was opened."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:  # also one whose COMMIT met a reader
                try:
                    self._connection.execute("ROLLBACK")
                except Exception:
                    if self._connection.in_transaction:  # else the COMMIT went through, after a cancellation
                        raise


class MySQL:
    """PyMySQL, and what resembles it."""

    dialect: Final = "mysql"

    def id_of(self, value: UUID) -> object:
        return value.hex

    def is_in_transaction(self, connection: Any) -> bool:
        return bool(connection.server_status & _IN_TRANSACTION)

    def transaction(self, connection: Any) -> MySQLTransaction:
        return MySQLTransaction(connection)

    def execute(self, connection: Any, sql: str, *values: object) -> int:
        with connection.cursor() as cursor:
            cursor.execute(sql, values)
            return int(cursor.rowcount)

    def packet_bytes(self, connection: Any) -> int:
        """The largest packet that the server takes."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet AS allowed")
            row = cursor.fetchone()
            return int(row["allowed"] if isinstance(row, dict) else row[0])


class MySQLTransaction:
    """Never in autocommit: after a deadlock InnoDB has rolled back all, and later statements would be committed."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._autocommits = False

    def __enter__(self) -> None:
        self._autocommits = self._connection.get_autocommit()
        if self._autocommits:
            self._connection.autocommit(False)
        self._connection.begin()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            (self._connection.commit() if kind is None else self._connection.rollback())
        finally:
            if self._autocommits and not self._is_closed():
                self._connection.autocommit(True)

    def _is_closed(self) -> bool:
        return not getattr(self._connection, "open", True) or bool(getattr(self._connection, "closed", False))
