"""Runs a step on an engine and in a session, for SQLAlchemy's synchronous and asynchronous kinds.

A step is a plain function that sends statements. `fence_async.py` uses the functions whose names end in `_async`;
`fence.py`, which is generated from it, uses the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, event, exc
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool, StaticPool
from sqlalchemy.util import await_only

from txmsg.checker.connections.engines import AsyncConnectedBy, ConnectedBy, connected_by, is_function
from txmsg.checker.fence.own_rows import own_bind
from txmsg.checker.tables import DIALECTS, fence_table
from txmsg.errors import MisuseError, shown
from txmsg.runtime.forks import keep

FenceEngine: TypeAlias = Engine | ConnectedBy
AsyncFenceEngine: TypeAlias = AsyncEngine | AsyncConnectedBy | Engine | ConnectedBy

T = TypeVar("T")


def on_engine(engine: FenceEngine, step: Callable[..., T], *args: Any) -> T:
    """Run `step(connection, *args)` on a connection of its own, in READ COMMITTED."""
    if isinstance(engine, ConnectedBy):
        engine = engine.engine()
    with engine.connect() as connection:
        return step(read_committed(connection), *args)


async def on_engine_async(engine: AsyncFenceEngine, step: Callable[..., T], *args: Any) -> T:
    """`on_engine` for asyncio. On an Engine it blocks a thread, not the loop."""
    if isinstance(engine, FenceEngine):
        return await asyncio.to_thread(on_engine, engine, step, *args)
    if isinstance(engine, AsyncConnectedBy):
        engine = await engine.engine()
    async with engine.connect() as connection:
        return await connection.run_sync(lambda sync_connection: step(read_committed(sync_connection), *args))


def in_session(session: Session, step: Callable[..., T], *args: Any) -> T:
    """Run `step(session, *args)`, which sends statements of the session."""
    return step(session, *args)


async def in_session_async(session: AsyncSession, step: Callable[..., T], *args: Any) -> T:
    """`in_session` for asyncio."""
    return await session.run_sync(step, *args)


def commit_after(session: Session, step: Callable[[], None]) -> None:
    """Commit. `step` runs during the commit, after all other listeners to `before_commit`."""
    with _last_before_commit(session, step):
        session.commit()


async def commit_after_async(session: AsyncSession, step: Callable[[], Awaitable[None]]) -> None:
    """`commit_after` for asyncio."""
    with _last_before_commit(session.sync_session, lambda: await_only(step())):
        await session.commit()


def in_event(step: Callable[[], None]) -> None:
    """Run `step()` in an event of a session."""
    step()


def in_event_async(step: Callable[[], Awaitable[None]]) -> None:
    """`in_event` for asyncio: a session calls events synchronously, so `await_only` waits for the coroutine."""
    await_only(step())


@contextmanager
def _last_before_commit(session: Session, step: Callable[[], None]) -> Iterator[None]:
    def last(_: Session) -> None:
        if not session.in_nested_transaction():  # SQLAlchemy calls this for savepoints, too
            step()

    # Added to this session, not to its class: listeners of the class run before, also those that are added later.
    event.listen(session, "before_commit", last)
    try:
        yield
    finally:
        event.remove(session, "before_commit", last)


def sync_session_of(session: Session | AsyncSession) -> Session:
    """Return the session itself, or the one inside an AsyncSession."""
    return session.sync_session if isinstance(session, AsyncSession) else session


def is_of_pool(session: Session, engine: AsyncFenceEngine) -> bool:
    """Return True if the session takes the connection for txmsg's tables from the pool of this engine."""
    sync_engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    return isinstance(sync_engine, Engine) and own_bind(session, fence_table).engine.pool is sync_engine.pool


def row_options(engine: AsyncFenceEngine) -> dict[str, Any]:
    """Return execution options by which a session writes its rows into the schema in which this engine reads them.

    The session may have a schema for each tenant, and another one in the next transaction.
    """
    sync_engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    given = sync_engine.get_execution_options() if isinstance(sync_engine, Engine) else {}
    return {"schema_translate_map": given.get("schema_translate_map") or {}}


def forget_connections(engine: AsyncFenceEngine) -> None:
    """Empty the engine's pool in a forked child: the connections in it are the parent's."""
    if isinstance(engine, ConnectedBy | AsyncConnectedBy):
        return  # without a pool
    sync_engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    # Never finalized, and not closed (close=False): either would end the parent's sessions at the server.
    keep(sync_engine.pool)
    sync_engine.dispose(close=False)


def checked_engine(engine: object) -> FenceEngine:
    """Return the engine on which a Fence runs its checks, made of its argument. Raises MisuseError for other types."""
    checked = checked_engine_async(engine)
    if isinstance(checked, AsyncEngine | AsyncConnectedBy):
        raise MisuseError(f"a Fence was given {shown(engine)}, which is for asyncio: make an AsyncFence of it")
    return checked


def checked_engine_async(engine: object) -> AsyncFenceEngine:
    """Return the same for an AsyncFence. Raises MisuseError also for databases without a fence, and for pools of one
    connection.
    """
    if isinstance(engine, ConnectedBy | AsyncConnectedBy):
        return engine
    if not isinstance(engine, Engine | AsyncEngine):
        if is_function(engine):
            return connected_by(engine)
        raise MisuseError(
            f"the fence needs the engine of the business database, not {shown(engine)} of type "
            f"{type(engine).__name__}: give what create_engine() or create_async_engine() returned, or a function that "
            "opens a connection, such as `def connect(): return psycopg.connect(...)`"
        )
    sync_engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    if sync_engine.dialect.name not in DIALECTS:
        raise MisuseError(
            f"the fence does not work on {sync_engine.dialect.name}: use PostgreSQL, MySQL, MariaDB or SQLite, "
            "or a CheckMessageListener of your own"
        )
    if isinstance(sync_engine.pool, StaticPool | SingletonThreadPool):
        raise MisuseError(
            f"engine {sync_engine.url} keeps one connection for all (or one per thread), so a check would run in "
            "the transaction it asks about: use a database file or server, and the default pool"
        )
    return engine


def read_committed(connection: Connection) -> Connection:
    """Return the connection, set to READ COMMITTED for its next transaction."""
    # Explicitly: under a stricter default of the engine or the server, INSERT ... DO NOTHING fails with 40001.
    if connection.dialect.name == "sqlite":
        return connection  # has no such level; its writers exclude each other
    try:
        return connection.execution_options(isolation_level="READ COMMITTED")
    except connection.dialect.loaded_dbapi.Error as error:
        # MySQL's drivers send a statement here, and SQLAlchemy does not wrap what comes of it on a connection that
        # broke while it lay in the pool.
        connection.invalidate(error)
        said = exc.OperationalError("SET SESSION TRANSACTION ISOLATION LEVEL", None, error)
        said.connection_invalidated = True
        raise said from error
