"""Differences between drivers: begin and end of transactions, and sending of statements.

Statements are written with `%s`. Values are text, numbers, and UUIDs converted by `id_of`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final
from uuid import UUID

from txmsg.errors import OutcomeUnknown

_IDLE: Final = 0
_UNKNOWN: Final = 4
_IN_TRANSACTION: Final = 1
"""The bit SERVER_STATUS_IN_TRANS of the status that a MySQL server sends with each reply."""


class AsyncPsycopg:
    """psycopg 3."""

    dialect: Final = "postgresql"

    def id_of(self, value: UUID) -> object:
        """Return the value as `txmsg.checker.tables.ID` stores it."""
        return value

    def is_in_transaction(self, connection: Any) -> bool:
        """Return True if a transaction has begun on this connection, as the driver knows without a round trip."""
        return int(connection.info.transaction_status) not in (_IDLE, _UNKNOWN)

    def transaction(self, connection: Any) -> AsyncPsycopgTransaction:
        """Return a transaction that commits at the end of its block and rolls back on an exception. Not begun yet."""
        return AsyncPsycopgTransaction(connection)

    async def execute(self, connection: Any, sql: str, *values: object) -> int:
        """Execute the statement. Return the number of rows written."""
        return int((await connection.execute(sql, values or None)).rowcount)


class AsyncPsycopgTransaction:
    """psycopg's own transaction: it refuses `connection.commit()`, and `connection.transaction()` is a savepoint."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._own = connection.transaction()

    async def __aenter__(self) -> None:
        await self._own.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._own.__aexit__(kind, value, trace)
        # On a broken connection psycopg sends no COMMIT and raises nothing, so its silence proves no commit.
        if kind is None and int(self._connection.info.transaction_status) != _IDLE:
            raise OutcomeUnknown(
                "the connection broke before its COMMIT was answered: what was done may be committed or not, its "
                "check-back decides"
            )


class AsyncSqlite:
    """Python's own SQLite."""

    dialect: Final = "sqlite"

    def id_of(self, value: UUID) -> object:
        return value.hex

    def is_in_transaction(self, connection: Any) -> bool:
        # With autocommit=False (Python 3.12) the driver begins one by itself, so that there always is one.
        return bool(connection.in_transaction) and getattr(connection, "autocommit", None) is not False

    def transaction(self, connection: Any) -> AsyncSqliteTransaction:
        return AsyncSqliteTransaction(connection)

    async def execute(self, connection: Any, sql: str, *values: object) -> int:
        return int((await connection.execute(sql.replace("%s", "?"), values)).rowcount)


class AsyncSqliteTransaction:
    """A transaction by SQL statements: the effect of `commit()` depends on how the connection was opened."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def __aenter__(self) -> None:
        if not self._connection.in_transaction:
            await self._connection.execute("BEGIN")

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:  # also one whose COMMIT met a reader
                try:
                    await self._connection.execute("ROLLBACK")
                except Exception:
                    if self._connection.in_transaction:  # else the COMMIT went through, after a cancellation
                        raise


class AsyncMySQL:
    """PyMySQL, and what resembles it."""

    dialect: Final = "mysql"

    def id_of(self, value: UUID) -> object:
        return value.hex

    def is_in_transaction(self, connection: Any) -> bool:
        return bool(connection.server_status & _IN_TRANSACTION)

    def transaction(self, connection: Any) -> AsyncMySQLTransaction:
        return AsyncMySQLTransaction(connection)

    async def execute(self, connection: Any, sql: str, *values: object) -> int:
        async with connection.cursor() as cursor:
            await cursor.execute(sql, values)
            return int(cursor.rowcount)

    async def packet_bytes(self, connection: Any) -> int:
        """Return the largest packet that the server accepts, in bytes."""
        async with connection.cursor() as cursor:
            await cursor.execute("SELECT @@max_allowed_packet AS allowed")
            row = await cursor.fetchone()
            return int(row["allowed"] if isinstance(row, dict) else row[0])


class AsyncMySQLTransaction:
    """A transaction with autocommit off: after a deadlock InnoDB has rolled back everything, and in autocommit later
    statements would be committed.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._autocommits = False

    async def __aenter__(self) -> None:
        self._autocommits = self._connection.get_autocommit()
        if self._autocommits:
            await self._connection.autocommit(False)
        await self._connection.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await (self._connection.commit() if kind is None else self._connection.rollback())
        finally:
            if self._autocommits and not self._is_closed():
                await self._connection.autocommit(True)

    def _is_closed(self) -> bool:
        return not getattr(self._connection, "open", True) or bool(getattr(self._connection, "closed", False))
