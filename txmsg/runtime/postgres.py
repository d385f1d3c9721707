"""Sessions with PostgreSQL: what each of them sets, in one place. Knows no statement beyond that.

Databases, roles and environments have defaults that applications and people chose for themselves: DateStyle German,
PGCLIENTENCODING=LATIN1, serializable, a search_path of their own. So a session of txmsg asks for all that it
relies on before its first statement. A test looks that no other module connects.
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
"""The form of values, which the driver relies on. Only this is set where statements are the user's."""

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
"""What every session on a Notify database sets."""

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
"""How soon a session whose server was cut off is seen to be gone: parameters of `connect`."""

SERVER_KEEPALIVES: Final[Mapping[str, str]] = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15s",
}
"""The same from the other side: how soon the server ends the session of a process that was cut off. By the defaults of
most systems it would keep it for two hours. A session on a Unix socket passes over them."""


def connect(
    url: str, settings: Mapping[str, str] = PINNED, *, autocommit: bool = True, **parameters: Any
) -> psycopg.Connection[Any]:
    """A session with these settings, whatever server, URL and environment say. Raises psycopg.Error.

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
    """Has a session in autocommit, which was connected with client_encoding ENCODING, set all this."""
    await connection.execute(_statement(settings, connection.info.server_version))


def _statement(settings: Mapping[str, str], server_version: int) -> sql.Composed:
    """Without parameters, which a session for replication does not take."""
    calls = [
        sql.SQL("pg_catalog.set_config({}, {}, false)").format(name, value)
        for name, value in settings.items()
        if server_version >= _SINCE.get(name, 0)
    ]
    return sql.SQL("select {}").format(sql.SQL(", ").join(calls))


def shares_sessions(one: psycopg.Connection[Any], another: psycopg.Connection[Any]) -> bool:
    """Whether something between here and the server gives each transaction any session of the server, as poolers do.

    Both connections are in autocommit, to the same server, and stay open. A single one does not tell: while nothing
    else asks, it may get the same session each time; of a pooler that gives its sessions in turn, another one. So the
    other connection takes a session for a transaction: that of the first, which then gets another.
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
    """The database's encoding, which the server has told at the beginning."""
    return connection.info.parameter_status("server_encoding") or "unknown"


def require_utf8(connection: psycopg.Connection[Any]) -> None:
    """Raises StorageError when the Notify database has another encoding."""
    if (encoding := encoding_of(connection)) != ENCODING:
        raise StorageError(f"the Notify database {connection.info.dbname} has encoding {encoding}: {ENCODING_ADVICE}")


def cut(connection: psycopg.Connection[Any] | AsyncConnection[Any]) -> None:
    """Ends what is under way on a connection, from outside and at once: the driver sees it closed by the server."""
    with suppress(OSError, psycopg.Error):  # it is closed already
        with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


@contextmanager
def cut_after(timeout_s: float, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """For a server that takes a connection and says nothing more. No end for math.inf."""
    timer = threading.Timer(min(timeout_s, threading.TIMEOUT_MAX), cut, (connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
