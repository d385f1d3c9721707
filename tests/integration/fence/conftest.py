"""Business databases: PostgreSQL, MariaDB, and SQLite with either journal."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import aiomysql
import pytest
from sqlalchemy import Engine, create_engine

from tests.integration.fence.business import create_users
from tests.living import living
from txmsg.checker.fence import Fence
from txmsg.checker.tables import create_tables

SERVERS = ("postgresql", "mariadb")


def make_business(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Create a fresh database with the table users and without the fence, and return its URL."""
    if name == "postgresql":
        url: str = request.getfixturevalue("database_url").replace("postgresql:", "postgresql+psycopg:", 1)
    elif name == "mariadb":
        url = request.getfixturevalue("mariadb_url")
    else:
        url = f"sqlite:///{tmp_path / 'business.db'}"
    create_users(url, wal=name == "sqlite-wal")
    return url


@pytest.fixture(params=[*SERVERS, "sqlite", "sqlite-wal"])
def business_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_business(request.param, request, tmp_path)


@pytest.fixture(params=["postgresql", "asyncpg", "mariadb", "sqlite"])
def async_url(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    """The URL of a fresh business database for each asyncio driver."""
    if request.param == "asyncpg":
        yield make_business("postgresql", request, tmp_path).replace("+psycopg:", "+asyncpg:")
        return
    url = make_business(request.param, request, tmp_path)
    yield url.replace("+pymysql:", "+aiomysql:").replace("sqlite:", "sqlite+aiosqlite:")
    if request.param == "mariadb":
        caplog.get_records("call").clear()  # log records of SQLAlchemy would keep the connection alive
        close_what_aiomysql_left()


def close_what_aiomysql_left() -> None:
    """Collect the sockets that aiomysql leaves of killed or cancelled connections.

    They would otherwise warn in an unrelated test.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for each in living(aiomysql.Connection):
            each._writer = each._reader = None
        gc.collect()


@pytest.fixture
def engine(business_url: str) -> Iterator[Engine]:
    engine = create_engine(business_url)
    yield engine
    engine.dispose()


@pytest.fixture
def fence(engine: Engine) -> Fence:
    fence = Fence(engine)
    create_tables(engine)
    return fence


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A database of a server with the fence tables."""
    engine = create_engine(make_business(request.param, request, tmp_path))
    create_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def postgres_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(make_business("postgresql", request, tmp_path))
    create_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def mariadb_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(make_business("mariadb", request, tmp_path))
    create_tables(engine)
    yield engine
    engine.dispose()
