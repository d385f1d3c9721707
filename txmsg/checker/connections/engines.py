"""SQLAlchemy engines on connections that an application's function opens, for work that txmsg does by itself.

So there is one implementation of checks, upkeep and tables. The application's own transactions do not
use this module.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, cast

from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from txmsg.checker.connections.opening import driver_of, driver_of_async, package_of
from txmsg.errors import MisuseError, shown


class DriverConnection(Protocol):
    """The methods by which a driver's connection differs from a session of SQLAlchemy."""

    def cursor(self) -> Any: ...
    def close(self) -> Any: ...


Connect: TypeAlias = Callable[[], DriverConnection]
AsyncConnect: TypeAlias = Callable[[], Awaitable[Any]]

_URLS: Final = {
    "psycopg": "postgresql+psycopg://",
    "asyncpg": "postgresql+asyncpg://",
    "sqlite3": "sqlite+pysqlite://",
    "aiosqlite": "sqlite+aiosqlite://",
    "pymysql": "mysql+pymysql://",
    "aiomysql": "mysql+aiomysql://",
}


class ConnectedBy:
    """The engine on connections that an application's function opens.

    Created on first use: only a connection shows the kind of its database, and an application may be imported while
    its database is away. Each use opens a connection and closes it: checks are rare, and nothing is left to close.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._engine: Engine | None = None
        self._first: object = None

    def engine(self) -> Engine:
        if self._engine is None:
            self._first = first = self._open()
            first.close()
            # Without a pool (decision 0085): nothing stays open between checks, and a forked child inherits no
            # connection.
            self._engine = create_engine(_URLS[str(package_of(first))], creator=self._open, poolclass=NullPool)
        return self._engine

    def _open(self) -> Any:
        connection: Any = self._connect()
        if inspect.iscoroutine(connection):
            connection.close()  # or Python would warn that it is never awaited
        if driver_of(connection) is None:
            raise _not_a_connection(connection, self._connect)
        _refuse_same(connection, self._first)
        return _as_sqlalchemy_expects(connection)


class AsyncConnectedBy:
    """The same for an `async def`."""

    def __init__(self, connect: AsyncConnect) -> None:
        self._connect = connect
        self._engine: AsyncEngine | None = None
        self._first: object = None

    async def engine(self) -> AsyncEngine:
        if self._engine is None:
            self._first = first = await self._open()
            closed = first.close()
            if closed is not None:  # aiomysql's is not awaited
                await closed
            url = _URLS[str(package_of(first))]
            self._engine = create_async_engine(url, async_creator=self._open, poolclass=NullPool)
        return self._engine

    async def _open(self, *_: object, **__: object) -> Any:  # what SQLAlchemy would give the driver
        connection = await self._connect()
        if driver_of_async(connection) is None:
            raise _not_a_connection(connection, self._connect)
        _refuse_same(connection, self._first)
        return _as_sqlalchemy_expects(connection)


def is_function(given: object) -> TypeGuard[Connect]:
    """Return True for a function that may open connections; False for callable ones of sqlite3, and sessionmakers."""
    is_other = isinstance(given, sessionmaker | scoped_session | async_sessionmaker) or package_of(given) is not None
    return callable(given) and not is_other


def connected_by(connect: Connect | AsyncConnect) -> ConnectedBy | AsyncConnectedBy:
    """Return the lazy engine for this function: asynchronous for an `async def`."""
    function = connect
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return AsyncConnectedBy(cast("AsyncConnect", connect))
    return ConnectedBy(cast("Connect", connect))


def _not_a_connection(given: object, connect: object) -> MisuseError:
    return MisuseError(
        f"{shown(connect)} returned {shown(given)} of type {type(given).__name__}: give a function that opens a "
        "connection of its own, such as `def connect(): return psycopg.connect(...)`, for asyncio an `async def`; "
        "not the connection of a pool, which checks would wait for"
    )


def _refuse_same(connection: object, first: object) -> None:
    if connection is first:
        raise MisuseError(
            f"the function that opens connections returned {shown(connection)} twice: a check on a connection that "
            "others use would run in their transactions; open a new one each time"
        )


def _as_sqlalchemy_expects(connection: Any) -> Any:
    """Set rows to tuples, and transactions to the driver's default: the application may have chosen others."""
    match package_of(connection):
        case "psycopg":
            connection.row_factory = importlib.import_module("psycopg.rows").tuple_row
        case "sqlite3" | "aiosqlite":
            if getattr(connection, "autocommit", -1) != -1:
                connection.autocommit = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL
            connection.isolation_level = ""
            connection.row_factory = None
        case "pymysql" | "aiomysql" as package:
            connection.cursorclass = importlib.import_module(f"{package}.cursors").Cursor
    return connection
