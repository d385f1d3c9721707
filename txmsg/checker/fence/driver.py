"""Reads errors and the state of a transaction from the driver, past SQLAlchemy. Sends nothing."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

_ABORTED: Final = 3
_OPEN: Final = 2
_ROLLS_BACK_ALL: Final = frozenset({1020, 1206, 1213, 1614})
"""Errors after which InnoDB has rolled back the whole transaction, and the next statement begins another: an overtaken
snapshot (MariaDB's innodb_snapshot_isolation), a full lock table, a deadlock (also Galera's code of a conflict)."""

_OVERTAKEN: Final = 1020
_DUPLICATE: Final = frozenset({"23505", 1062, 1555, 2067})
_ABSENT_TABLE: Final = frozenset({"42P01", 1146})
"""PostgreSQL's undefined_table and MySQL's ER_NO_SUCH_TABLE. SQLite has no code of its own for it."""


class DriverState(Enum):
    """The state of the transaction on a driver's connection."""

    OPEN = "open"
    ABORTED = "aborted"
    NONE = "none"
    UNTOLD = "untold"


def driver_state(connection: Connection) -> DriverState:
    """Return the transaction's state as the driver knows it, without a round trip."""
    driver: Any = connection.connection.driver_connection
    status = getattr(getattr(driver, "info", None), "transaction_status", None)  # psycopg and psycopg2
    if status is not None:
        return {_OPEN: DriverState.OPEN, _ABORTED: DriverState.ABORTED}.get(int(status), DriverState.NONE)
    is_open = getattr(driver, "in_transaction", None)  # sqlite3, aiosqlite
    if is_open is None and hasattr(driver, "is_in_transaction"):  # asyncpg
        is_open = driver.is_in_transaction()
    if is_open is None:
        return DriverState.UNTOLD
    return DriverState.OPEN if is_open else DriverState.NONE


def in_autocommit(connection: Connection) -> bool:
    """Return True if each statement commits by itself."""
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    pooled = connection.connection
    # An SQLite driver may be in autocommit while SQLAlchemy's recipe for it sends BEGIN by itself.
    begun = getattr(pooled.driver_connection, "in_transaction", False)
    assert pooled.dbapi_connection is not None, "a connection in use has a driver connection"
    return not begun and connection.dialect.detect_autocommit_setting(pooled.dbapi_connection)


def codes_of(error: BaseException | None) -> set[int | str]:
    """Return the database's codes for an error of a driver: SQLSTATE on PostgreSQL, numbers on the others."""
    original = getattr(error, "orig", None) or error
    names = ("sqlstate", "pgcode", "errno", "sqlite_errorcode")  # psycopg and asyncpg, psycopg2, MySQL's, sqlite3
    codes = *(getattr(original, name, None) for name in names), *getattr(original, "args", ())[:1]
    return {code for code in codes if isinstance(code, int | str)}


def is_absent_table(error: BaseException, name: str = "") -> bool:
    """Return True if a statement failed because a table, or the one with this name, is absent.

    Asks no database: the connection may be the only one of its pool, and may refuse statements after the error.
    """
    said = str(getattr(error, "orig", None) or error)
    return name in said and (not _ABSENT_TABLE.isdisjoint(codes_of(error)) or "no such table" in said)


def is_duplicate(error: BaseException) -> bool:
    """Return True if a row was not inserted because its key exists: rows of ours can break no other constraint."""
    return isinstance(error, IntegrityError) or not _DUPLICATE.isdisjoint(codes_of(error))


def has_met_another(error: BaseException) -> bool:
    """Return True if a row was not inserted because another transaction has committed one of the same key.

    MariaDB reports this as 1020 where the transaction has an older snapshot, as INSERT ... SELECT takes one, and
    rolls the whole transaction back: innodb_snapshot_isolation, on by default from 11.6.
    """
    return is_duplicate(error) or _OVERTAKEN in codes_of(error)


def rolls_back_all(dialect_name: str, error: BaseException) -> bool:
    """Return True if the database has certainly rolled back the whole transaction because of `error`.

    Later statements then begin another one.
    """
    return dialect_name in ("mysql", "mariadb") and not _ROLLS_BACK_ALL.isdisjoint(codes_of(error))
