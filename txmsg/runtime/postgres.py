"""Sessions with PostgreSQL and the settings of each, in one place. Knows no other statement.

Databases, roles and environments may have defaults of their own: DateStyle German, PGCLIENTENCODING=LATIN1,
serializable, another search_path. So a session of txmsg sets everything that it relies on before its first statement.
A test ensures that no other module connects.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, sql

from txmsg.errors import StorageError

ENCODING: Final = "UTF8"
ENCODING_ADVICE: Final = (
    f"txmsg needs {ENCODING}, and an encoding cannot be changed: create another database with "
    f"`createdb --encoding {ENCODING} --template template0 NAME`, and name that one"
)

FORM: Final[Mapping[str, str]] = {
    "client_encoding": ENCODING,
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
}
"""Settings for the form of values, which the driver relies on. Sessions for the user's statements set only these."""

PINNED: Final[Mapping[str, str]] = {
    **FORM,
    # Names of tables are written with their schema; functions and operators are those of PostgreSQL.
    "search_path": "pg_catalog, pg_temp",
    "TimeZone": "UTC",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    # Definitions of constraints and indexes are compared as text.
    "quote_all_identifiers": "off",
    "client_min_messages": "warning",
    # A session that wants a bound gives its own.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
}
"""The settings of every session on a Notify database."""

_SINCE: Final = {"idle_session_timeout": 140000, "transaction_timeout": 170000}
_SETUP_S_MAX: Final = 30.0
_ROUNDS: Final = 5

WITHOUT_POOLER: Final = "connect directly, or through a pooler in session mode (PgBouncer: pool_mode = session)"

KEEPALIVES: Final[Mapping[str, Any]] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""Parameters of `connect` that bound the time until a session notices that its server was cut off."""

SERVER_KEEPALIVES: Final[Mapping[str, str]] = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15s",
}
"""The same for the server: they bound the time until it ends the session of a process that was cut off. By defaults of
most systems it would keep it for two hours. A session on a Unix socket passes over them."""


def connect(
    url: str, settings: Mapping[str, str] = PINNED, *, autocommit: bool = True, **parameters: Any
) -> psycopg.Connection[Any]:
    """Return a session with these settings, which override server, URL and environment. Raises psycopg.Error.

    parameters: as psycopg.connect takes them; they may make it a session for replication.
    """
    connection = psycopg.connect(url, autocommit=True, **parameters, client_encoding=ENCODING)
    try:
        with cut_after(_SETUP_S_MAX, connection):
            connection.execute(_statement(settings, connection.info.server_version))
        connection.autocommit = autocommit
    except BaseException:
        connection.close()
        raise
    return connection


async def pin(connection: AsyncConnection[Any], settings: Mapping[str, str] = PINNED) -> None:
    """Apply the settings to a session in autocommit that was connected with client_encoding ENCODING."""
    await connection.execute(_statement(settings, connection.info.server_version))


def _statement(settings: Mapping[str, str], server_version: int) -> sql.Composed:
    """Return the statement that sets them, without parameters: a session for replication takes none."""
    calls = [
        sql.SQL("pg_catalog.set_config({}, {}, false)").format(name, value)
        for name, value in settings.items()
        if server_version >= _SINCE.get(name, 0)
    ]
    return sql.SQL("select {}").format(sql.SQL(", ").join(calls))


def shares_sessions(one: psycopg.Connection[Any], another: psycopg.Connection[Any]) -> bool:
    """Return True if transactions of one connection may get different sessions of the server, as behind a pooler.

    Both connections are in autocommit, to the same server, and stay open. One connection is not enough: while idle, a
    pooler may give it the same session each time. So the other connection holds a session in a transaction: if it is
    the first one's, the first gets another.
    """
    try:
        for _ in range(_ROUNDS):
            before = _backend(one)
            if _backend(one) != before:
                return True
            another.execute("begin")
            if _backend(another) == before or _backend(one) != before:
                return True
            another.execute("rollback")
    except psycopg.errors.ProtocolViolation:  # a pooler in statement mode refuses transactions
        return True
    return False


def _backend(connection: psycopg.Connection[Any]) -> int:
    ((pid,),) = connection.execute("select pg_catalog.pg_backend_pid()", prepare=False).fetchall()
    return int(pid)


def encoding_of(connection: psycopg.Connection[Any]) -> str:
    """Return the database's encoding, which the server reported at the start of the session."""
    return connection.info.parameter_status("server_encoding") or "unknown"


def require_utf8(connection: psycopg.Connection[Any]) -> None:
    """Raises StorageError if the Notify database has another encoding."""
    if (encoding := encoding_of(connection)) != ENCODING:
        raise StorageError(f"the Notify database {connection.info.dbname} has encoding {encoding}: {ENCODING_ADVICE}")


def cut(connection: psycopg.Connection[Any] | AsyncConnection[Any]) -> None:
    """End a connection's work from outside and at once: to the driver, the server has closed it."""
    with suppress(OSError, psycopg.Error):  # it is closed already
        with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            # Not `close`, which would free a descriptor that the driver still uses; shutdown wakes its wait, on any
            # thread.
            duplicate.shutdown(socket.SHUT_RDWR)


@contextmanager
def cut_after(timeout_s: float, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Cut the connection if the block takes longer: a server may accept and then stay silent. Never for math.inf."""
    timer = threading.Timer(min(timeout_s, threading.TIMEOUT_MAX), cut, (connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
