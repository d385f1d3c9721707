"""Tables in a business database, created through any kind of engine or connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData, create_engine, inspect
from sqlalchemy.ext.asyncio import create_async_engine

from tests.business import business_database
from txmsg.checker.tables import create_tables, metadata
from txmsg.errors import MisuseError

ALL = {"txmsg_fence", "txmsg_fence_identity", "txmsg_inbox", "txmsg_outbox", "txmsg_outbox_turn"}


def tables_of(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"{tmp_path / 'shop.db'}"


def test_an_engine_creates_missing_tables_and_a_second_call_changes_nothing(url: str) -> None:
    engine = create_engine(f"sqlite:///{url}")
    create_tables(engine)
    create_tables(engine)
    assert tables_of(engine) == ALL == set(metadata.tables)
    assert len(inspect(engine).get_indexes("txmsg_inbox")) == 1
    engine.dispose()


def test_a_connection_creates_tables_in_its_transaction(url: str) -> None:
    engine = create_engine(f"sqlite:///{url}")
    with engine.connect() as connection:
        create_tables(connection)
        assert connection.in_transaction(), "the caller commits"
        connection.commit()
    assert tables_of(engine) == ALL
    engine.dispose()


@pytest.mark.parametrize("by_connection", [False, True])
async def test_async_engines_and_connections_are_awaited(url: str, by_connection: bool) -> None:
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{url}")
    if by_connection:
        async with async_engine.begin() as connection:
            await create_tables(connection)
    else:
        await create_tables(async_engine)
    await async_engine.dispose()
    engine = create_engine(f"sqlite:///{url}")
    assert tables_of(engine) == ALL
    engine.dispose()


def test_other_objects_are_refused() -> None:
    with pytest.raises(MisuseError, match="give the Engine or AsyncEngine"):
        create_tables("sqlite:///shop.db")  # type: ignore[call-overload]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_alembic_finds_nothing_to_change(database: str, url: str, request: pytest.FixtureRequest) -> None:
    address = f"sqlite:///{url}" if database == "sqlite" else request.getfixturevalue("database_url")
    with business_database(address, MetaData()) as engine, engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
