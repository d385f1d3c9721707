"""Business databases of tests: tables of the test's own beside those of txmsg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Engine, MetaData, NullPool, create_engine, event, select
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from txmsg.tables import create_tables, fence_table, metadata

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


def awkward_sessions(engine: Engine, base: type[DeclarativeBase]) -> sessionmaker[Session]:
    """Sessions as an application may have them for reasons of its own: no flow depends on plainer ones.

    Each table has a bind, the session itself has none; transactions are SERIALIZABLE; a listener flushes and reads
    before each commit.
    """
    strict = engine.execution_options(isolation_level="SERIALIZABLE")
    binds: dict[Any, Engine] = dict.fromkeys([base, *metadata.sorted_tables], strict)
    sessions = sessionmaker(binds=binds)

    def look(session: Session) -> None:
        session.flush()
        session.execute(select(fence_table).limit(0))

    event.listen(sessions, "before_commit", look)
    return sessions


def seen_from_outside(engine: Engine) -> Engine:
    """The same database by connections beside the engine's pool: what others see of it meanwhile."""
    return create_engine(engine.url, poolclass=NullPool)
