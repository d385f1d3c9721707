"""BEGIN and the first statement of a transaction in one round trip, on psycopg's connection below SQLAlchemy's.

psycopg sends BEGIN by itself before the first statement, and waits for its answer. In one text both are one request,
which also spares making a cursor; psycopg sees by the answer that a transaction is open, as if it had begun it itself.
A text has no parameters, and nothing is prepared, so a pooler in transaction mode takes it as well.
"""

from __future__ import annotations

import importlib
import string
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.util import await_only

_PLAIN: Final = frozenset(string.ascii_letters + string.digits + ".%_-")
"""The characters of ids and checked names. None needs quoting in SQL."""
_IDLE: Final = 0
_COMMAND_OK: Final = 1
_PIPELINE_OFF: Final = 0


def not_begun(connection: Connection) -> Any:
    """Return psycopg's connection if it has yet to send BEGIN; else None, also for other drivers."""
    if connection.dialect.driver != "psycopg":
        return None
    driver: Any = connection.connection.driver_connection
    pgconn = getattr(driver, "pgconn", None)
    if pgconn is None or driver.autocommit:
        return None
    is_idle = pgconn.transaction_status == _IDLE and pgconn.pipeline_status == _PIPELINE_OFF
    return driver if is_idle else None


def begin_with(connection: Connection, driver: Any, sql: str, values: Mapping[str, object]) -> int:
    """Send BEGIN with a statement, whose parameters are written as `%(name)s`. Return the number of rows written.

    Errors are those of any statement of SQLAlchemy's connection.
    """
    begin_and_sql = f"{_begin_sql(driver)}; {sql % {name: _literal(value) for name, value in values.items()}}"
    try:
        if connection.dialect.is_async:
            results = await_only(_send_sql_async(driver, begin_and_sql.encode()))
        else:
            results = _send_sql(driver, begin_and_sql.encode())
        for result in results:
            if result.status != _COMMAND_OK:
                raise _psycopg("errors").error_from_result(result, encoding=driver.info.encoding)
    except BaseException as exc:  # noqa: BLE001 - it raises
        # A private method: SQLAlchemy has no public way that notifies listeners to errors, wraps the exception and
        # empties a pool whose server has gone.
        connection._handle_dbapi_exception(exc, begin_and_sql, None, None, None)
    return int(results[-1].command_tuples or 0)


def _send_sql(driver: Any, sql: bytes) -> Any:
    with driver.lock:
        driver.pgconn.send_query(sql)
        return driver.wait(_psycopg("generators").execute(driver.pgconn))


async def _send_sql_async(driver: Any, sql: bytes) -> Any:
    async with driver.lock:
        driver.pgconn.send_query(sql)
        return await driver.wait(_psycopg("generators").execute(driver.pgconn))


def _begin_sql(driver: Any) -> str:
    """Return BEGIN with the options that the driver would send: isolation level, access mode, deferrable."""
    sql = "BEGIN"
    if driver.isolation_level is not None:
        level = importlib.import_module("psycopg").IsolationLevel(driver.isolation_level)
        sql += f" ISOLATION LEVEL {level.name.replace('_', ' ')}"
    if driver.read_only is not None:
        sql += " READ ONLY" if driver.read_only else " READ WRITE"
    if driver.deferrable is not None:
        sql += " DEFERRABLE" if driver.deferrable else " NOT DEFERRABLE"
    return sql


def _literal(value: object) -> str:
    """Return a literal for a value of txmsg's own rows: an id, a name or a number."""
    if isinstance(value, int):
        return str(value)
    assert isinstance(value, UUID | str), f"{value!r} is of type {type(value).__name__}"
    text = str(value)
    assert _PLAIN.issuperset(text), f"{text!r} needs quoting"
    return f"'{text}'"


@cache
def _psycopg(module: str) -> Any:
    """Import by name: applications with another driver have no psycopg."""
    return importlib.import_module(f"psycopg.{module}")
