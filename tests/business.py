"""Business databases of tests: tables of the test's own beside those of txmsg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Engine, MetaData, NullPool, create_engine

from txmsg.tables import create_tables

POOL_OF_ONE: Final[dict[str, Any]] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}
"""Options of `create_engine` for tests that are not about several connections at once.

Whatever of txmsg's asks the pool for a second one, in a thread or task that holds the first, fails after 5 s.
"""


@contextmanager
def business_database(url: str, tables: MetaData) -> Iterator[Engine]:
    """An engine on a database with these tables and those of txmsg."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), **POOL_OF_ONE)
    tables.create_all(engine)
    create_tables(engine)
    yield engine
    engine.dispose()


def seen_from_outside(engine: Engine) -> Engine:
    """The same database by connections beside the engine's pool: what others see of it meanwhile."""
    return create_engine(engine.url, poolclass=NullPool)
