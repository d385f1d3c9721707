"""Business databases of tests: their own tables beside those of txmsg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, MetaData, NullPool, create_engine, event, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from txmsg.checker.tables import create_tables, fence_table, metadata

AnEngine = TypeVar("AnEngine", Engine, AsyncEngine)

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
    """Sessions with unusual settings, as an application may have them; every flow has to work with them.

    Each table has a bind, the session itself has none; transactions are SERIALIZABLE; a listener flushes and reads
    before each commit.
    """
    sessions = sessionmaker(binds=_binds(engine.execution_options(**_STRICT), base))
    event.listen(sessions, "before_commit", _flush_and_read)
    return sessions


def awkward_async_sessions(engine: AsyncEngine, base: type[DeclarativeBase]) -> async_sessionmaker[AsyncSession]:
    """Async sessions with the settings of `awkward_sessions`."""
    sync = sessionmaker()
    event.listen(sync, "before_commit", _flush_and_read)
    return async_sessionmaker(sync_session_class=sync.class_, binds=_binds(engine.execution_options(**_STRICT), base))


_STRICT: Final[dict[str, Any]] = {"isolation_level": "SERIALIZABLE"}


def _binds(engine: AnEngine, base: type[DeclarativeBase]) -> dict[Any, AnEngine]:
    return dict.fromkeys([base, *metadata.sorted_tables], engine)


def _flush_and_read(session: Session) -> None:
    session.flush()
    session.execute(select(fence_table).limit(0))


def seen_from_outside(engine: Engine) -> Engine:
    """A connection to the same database outside the engine's pool, which sees only committed data."""
    return create_engine(engine.url, poolclass=NullPool)
