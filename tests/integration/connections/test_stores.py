"""Each of the project's fences keeps the fence contract on real databases, whatever happens inside."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.orm import Session

from tests.integration.connections.drivers import ASYNC, SYNC, Connect, address_of, connecting
from tests.integration.connections.stores import AsyncConnectionStore, ConnectionStore, SessionStore
from txmsg.checker.connections.opening import driver_of, driver_of_async
from txmsg.checker.fence import AsyncFenceStore, FenceStore
from txmsg.checker.tables import create_tables
from txmsg.testing import FenceStoreContract

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

_MAKE = "create table effects (name varchar(80) primary key)"


class _OfConnections(FenceStoreContract):
    """SQL that tries to mislead the fence through the connection of a driver."""

    connect: Connect
    dialect: str

    def prepare(self, driver: str, address: str) -> None:
        self.connect = connecting(driver, address)
        made = create_tables(self.connect)
        if inspect.isawaitable(made):
            asyncio.run(_awaited(made))
            asyncio.run(self._make_table_async())
        else:
            connection = self.connect()
            found = driver_of(connection)
            assert found is not None
            self.dialect = found.dialect
            connection.cursor().execute(_MAKE)
            connection.commit()
            connection.close()

    async def _make_table_async(self) -> None:
        connection = await self.connect()
        driver = driver_of_async(connection)
        assert driver is not None
        self.dialect = driver.dialect
        async with driver.transaction(connection):
            await driver.execute(connection, _MAKE)
        await _awaited(connection.close())

    def sql(self, *statements: str) -> Callable[[Any], Any]:
        """Execute the statements and swallow their errors, as careless code does."""
        return lambda connection: self._send(connection, *statements)

    def _send(self, connection: Any, *statements: str) -> Any:
        raise NotImplementedError

    def interferences(self) -> Mapping[str, Callable[[Any], Any]]:
        twice = "insert into effects select name from effects"
        return {
            "a commit by SQL": self.sql("COMMIT"),
            "a rollback by SQL": self.sql("ROLLBACK"),
            "another transaction behind a commit": self.sql("COMMIT", "BEGIN"),
            "another transaction behind a rollback": self.sql("ROLLBACK", "BEGIN"),
            "a caught error": self.sql(twice),
            "a caught error in a savepoint": self.sql("SAVEPOINT own", twice, "ROLLBACK TO SAVEPOINT own"),
            "a savepoint that is left open": self.sql("SAVEPOINT own"),
            "a savepoint of the same name": self.sql("SAVEPOINT txmsg_own", twice),
            "a table": self.sql("create table if not exists made_inside (id integer)"),
            "an error that rolls back": self.sql(
                "insert or rollback into effects select name from effects" if self.dialect == "sqlite" else twice
            ),
            **self.by_the_driver(),
        }

    def by_the_driver(self) -> Mapping[str, Callable[[Any], Any]]:
        return {}


@pytest.mark.parametrize("driver", SYNC)
class TestConnections(_OfConnections):
    @pytest.fixture(autouse=True)
    def _prepared(self, driver: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.driver = driver
        self.prepare(driver, address_of(driver, request, tmp_path))

    def make_store(self) -> FenceStore[Any]:
        return ConnectionStore(self.connect)

    def write(self, opened: Any, name: str) -> None:
        found = driver_of(opened)
        assert found is not None
        found.execute(opened, "insert into effects values (%s)", name)

    def names(self) -> list[str]:
        connection = self.connect()
        cursor = connection.cursor()
        cursor.execute("select name from effects")
        found = [name for (name,) in cursor.fetchall()]
        connection.close()
        return found

    def _send(self, connection: Any, *statements: str) -> None:
        for statement in statements:
            with suppress(Exception):
                connection.cursor().execute(statement)

    def by_the_driver(self) -> Mapping[str, Callable[[Any], Any]]:
        def commits(connection: Any) -> None:
            with suppress(Exception):  # psycopg refuses
                connection.commit()

        def rolls_back(connection: Any) -> None:
            with suppress(Exception):
                connection.rollback()

        def in_block(connection: Any) -> None:
            if self.driver != "pymysql":  # whose block closes the connection
                with suppress(Exception), connection:
                    connection.cursor().execute("select 1")

        return {"commit()": commits, "rollback()": rolls_back, "with connection": in_block}


@pytest.mark.parametrize("driver", ASYNC)
class TestAsyncConnections(_OfConnections):
    @pytest.fixture(autouse=True)
    def _prepared(self, driver: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.prepare(driver, address_of(driver, request, tmp_path))

    def make_store(self) -> AsyncFenceStore[Any]:
        return AsyncConnectionStore(self.connect)

    async def write(self, opened: Any, name: str) -> None:
        found = driver_of_async(opened)
        assert found is not None
        await found.execute(opened, "insert into effects values (%s)", name)

    async def names(self) -> list[str]:
        connection = await self.connect()
        if hasattr(connection, "fetch"):  # asyncpg
            found = [row[0] for row in await connection.fetch("select name from effects")]
        else:
            cursor = await _awaited(connection.cursor())
            await cursor.execute("select name from effects")
            found = [name for (name,) in await cursor.fetchall()]
        await _awaited(connection.close())
        return found

    async def _send(self, connection: Any, *statements: str) -> None:
        found = driver_of_async(connection)
        assert found is not None
        for statement in statements:
            with suppress(Exception):
                await found.execute(connection, statement)

    def by_the_driver(self) -> Mapping[str, Callable[[Any], Any]]:
        async def commits(connection: Any) -> None:
            if hasattr(connection, "commit"):  # asyncpg's has none
                with suppress(Exception):
                    await connection.commit()

        async def rolls_back(connection: Any) -> None:
            if hasattr(connection, "rollback"):
                with suppress(Exception):
                    await connection.rollback()

        return {"commit()": commits, "rollback()": rolls_back}


@pytest.mark.parametrize("driver", SYNC)
class TestSessions(FenceStoreContract):
    """The fence of SQLAlchemy's sessions keeps the same contract."""

    engine: Engine

    @pytest.fixture(autouse=True)
    def _prepared(self, driver: str, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        address = address_of(driver, request, tmp_path)
        url = make_url(f"sqlite:///{address}" if driver == "sqlite3" else address)
        self.engine = create_engine(url.set(drivername="postgresql+psycopg") if driver == "psycopg" else url)
        create_tables(self.engine)
        with self.engine.begin() as connection:
            connection.execute(text(_MAKE))
        yield
        self.engine.dispose()

    def make_store(self) -> FenceStore[Any]:
        return SessionStore(self.engine)

    def write(self, opened: Session, name: str) -> None:
        opened.execute(text("insert into effects values (:name)"), {"name": name})

    def names(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(text("select name from effects")))

    def interferences(self) -> Mapping[str, Callable[[Session], None]]:
        def send(statement: str) -> Callable[[Session], None]:
            def sends(session: Session) -> None:
                with suppress(Exception):
                    session.execute(text(statement))

            return sends

        return {
            "a commit by SQL": send("COMMIT"),
            "a caught error": send("insert into effects select name from effects"),
            "commit()": lambda session: suppress_all(session.commit),
            "rollback()": lambda session: suppress_all(session.rollback),
        }


def suppress_all(call: Callable[[], object]) -> None:
    with suppress(Exception):
        call()


async def _awaited(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given
