"""Business databases of tests: tables of the test's own beside those of txmsg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, MetaData, create_engine

from txmsg.tables import create_tables


@contextmanager
def business_database(url: str, tables: MetaData) -> Iterator[Engine]:
    """An engine on a database with these tables and those of txmsg."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    tables.create_all(engine)
    create_tables(engine)
    yield engine
    engine.dispose()
