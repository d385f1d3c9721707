"""From what an application's function returns to an open connection and its driver. Knows no transactions."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, Final, TypeAlias

from txmsg.checker.connections.asyncpg_driver import AsyncpgDriver
from txmsg.checker.connections.drivers import MySQL, Psycopg, Sqlite
from txmsg.checker.connections.drivers_async import AsyncMySQL, AsyncPsycopg, AsyncSqlite
from txmsg.errors import MisuseError, shown

Driver: TypeAlias = Psycopg | Sqlite | MySQL
AsyncDriver: TypeAlias = AsyncPsycopg | AsyncpgDriver | AsyncSqlite | AsyncMySQL

_DRIVERS: Final[dict[str, Driver]] = {"psycopg": Psycopg(), "sqlite3": Sqlite(), "pymysql": MySQL()}
_ASYNC_DRIVERS: Final[dict[str, AsyncDriver]] = {
    "psycopg": AsyncPsycopg(),
    "asyncpg": AsyncpgDriver(),
    "aiosqlite": AsyncSqlite(),
    "aiomysql": AsyncMySQL(),
}
_ASYNC_CLASSES: Final = {"asyncpg", "aiosqlite", "aiomysql", "AsyncConnection"}


def package_of(connection: object) -> str | None:
    """The driver's package, such as "psycopg"; None for what is not a connection of a driver that is known."""
    return next((name for name, _ in _origins(connection) if name in _DRIVERS or name in _ASYNC_DRIVERS), None)


def driver_of(connection: object) -> Driver | None:
    """None for what is not a connection of a driver that is known."""
    package = package_of(connection)
    return None if package is None or is_for_asyncio(connection) else _DRIVERS[package]


def driver_of_async(connection: object) -> AsyncDriver | None:
    """The same of drivers for asyncio."""
    package = package_of(connection)
    return None if package is None or not is_for_asyncio(connection) else _ASYNC_DRIVERS[package]


def is_for_asyncio(connection: object) -> bool:
    """Of a connection of a known driver."""
    return any(not _ASYNC_CLASSES.isdisjoint(origin) for origin in _origins(connection))


def _origins(connection: object) -> Iterator[tuple[str, str]]:
    """Package and name of the connection's classes: applications have subclasses. None of a cursor or a pool."""
    for kind in type(connection).__mro__:
        if "Connection" in kind.__name__:
            yield kind.__module__.partition(".")[0], kind.__name__


@contextmanager
def opened(given: Any, owner: str) -> Iterator[tuple[Driver, Any]]:
    """The connection that a function has returned, or the block of a pool that gives one; closed, or given back."""
    if driver_of(given) is not None:
        with closing(given):
            yield _known(driver_of(given), given, owner), given
    elif hasattr(given, "__enter__"):
        with given as connection:
            yield _known(driver_of(connection), connection, owner), connection
    else:
        _known(None, given, owner)


@asynccontextmanager
async def opened_async(given: Any, owner: str) -> AsyncIterator[tuple[AsyncDriver, Any]]:
    """`opened` for asyncio. Also for what is to be awaited, as `asyncpg.connect()` is."""
    if hasattr(given, "__aenter__"):
        async with given as connection:
            yield _known(driver_of_async(connection), connection, owner), connection
    elif inspect.isawaitable(given):
        connection = await given
        driver = _known(driver_of_async(connection), connection, owner)
        try:
            yield driver, connection
        finally:
            closed = connection.close()
            if closed is not None:  # aiomysql's is not awaited
                await closed
    else:
        _known(None, given, owner)


def _known(driver: Any, connection: object, owner: str) -> Any:
    if driver is None:
        raise MisuseError(
            f"session= of {owner} gave {shown(connection)} of type {type(connection).__name__}: give a sessionmaker of "
            "SQLAlchemy, or a function that opens a connection of psycopg, asyncpg, sqlite3, aiosqlite, PyMySQL or "
            "aiomysql, of the asynchronous kind for async def"
        )
    return driver
