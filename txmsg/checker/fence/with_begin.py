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
    if pgconn is None or driver.autocommit or not _is_of_psycopg(driver.cursor_factory):
        return None
    is_idle = pgconn.transaction_status == _IDLE and pgconn.pipeline_status == _PIPELINE_OFF
    return driver if is_idle else None


def literals_of(values: Mapping[str, object]) -> Mapping[str, str] | None:
    """Return the values as SQL; None if one would need quoting, or is of a type that txmsg's rows do not have."""
    literals = {}
    for name, value in values.items():
        if isinstance(value, int):
            literals[name] = str(int(value))
        elif isinstance(value, UUID | str) and _PLAIN.issuperset(text := str(value)):
            literals[name] = f"'{text}'"
        else:
            return None
    return literals


def begin_with(
    connection: Connection, driver: Any, sql: str, values: Mapping[str, object], literals: Mapping[str, str]
) -> int:
    """Send BEGIN with a statement, whose parameters are written as `%(name)s`. Return the number of rows written.

    Errors are those of any statement of SQLAlchemy's connection, but for their execution context, which is None.
    """
    begin = _begin_sql(driver)
    try:
        request = f"{begin}; {sql % literals}".encode(driver.info.encoding)
        if connection.dialect.is_async:
            results = await_only(_send_sql_async(driver, request))
        else:
            results = _send_sql(driver, request)
        for result in results:
            if result.status != _COMMAND_OK:
                raise _psycopg("errors").error_from_result(result, encoding=driver.info.encoding)
    except BaseException as exc:  # noqa: BLE001 - it raises
        # A private method: SQLAlchemy has no public way that notifies listeners to errors, wraps the exception and
        # empties a pool whose server has gone.
        parameters: Any = dict(values)
        connection._handle_dbapi_exception(exc, f"{begin}; {sql}", parameters, None, None)
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


def _is_of_psycopg(cursor_factory: Any) -> bool:
    """Return True for psycopg's own cursors. Others are instrumented: they are to see each statement."""
    module: str = cursor_factory.__module__
    return module.partition(".")[0] == "psycopg"


@cache
def _psycopg(module: str) -> Any:
    """Import by name: applications with another driver have no psycopg."""
    return importlib.import_module(f"psycopg.{module}")
