"""Opens connections by an application's function and finds their driver. Knows no transactions."""

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
    """Return the driver's package, such as "psycopg"; None if the object is not a connection of a known driver."""
    return next((name for name, _ in _origins(connection) if name in _DRIVERS or name in _ASYNC_DRIVERS), None)


def driver_of(connection: object) -> Driver | None:
    """Return the driver; None if the object is not a synchronous connection of a known driver."""
    package = package_of(connection)
    return None if package is None or is_for_asyncio(connection) else _DRIVERS[package]


def driver_of_async(connection: object) -> AsyncDriver | None:
    """Return the driver; None if the object is not a connection for asyncio of a known driver."""
    package = package_of(connection)
    return None if package is None or not is_for_asyncio(connection) else _ASYNC_DRIVERS[package]


def is_for_asyncio(connection: object) -> bool:
    """Return True for a connection for asyncio. The driver must be a known one."""
    return any(not _ASYNC_CLASSES.isdisjoint(origin) for origin in _origins(connection))


def _origins(connection: object) -> Iterator[tuple[str, str]]:
    """Yield package and name of the connection's classes, base classes too: applications have subclasses.

    Yields nothing for a cursor or a pool.
    """
    for kind in type(connection).__mro__:
        if "Connection" in kind.__name__:
            yield kind.__module__.partition(".")[0], kind.__name__


@contextmanager
def opened(given: Any, owner: str) -> Iterator[tuple[Driver, Any]]:
    """Yield driver and connection of a function's result: an open connection, closed at the end, or a pool's block.

    Raises MisuseError for anything else.
    """
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
    """`opened` for asyncio. Also accepts an awaitable, such as `asyncpg.connect()`."""
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
