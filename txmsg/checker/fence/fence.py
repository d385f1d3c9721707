"""The fence as an application holds it, and the check listener made of it. The steps stand beside this file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine, exc
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from txmsg.checker.fence import checking, identity, purging, writing
from txmsg.checker.fence.tables import DIALECTS
from txmsg.errors import MisuseError, shown
from txmsg.message import ReceivedMessage, TransactionId, TransactionState

__all__ = ["Fence", "FenceCheckListener"]

T = TypeVar("T")


class Fence:
    """The fence of one business database: PostgreSQL, MySQL, MariaDB or SQLite (a file).

    `engine` runs the checks, on connections of its own; an Engine serves the methods without `_async`, an AsyncEngine
    those with it. `write` and `write_async` run in the session they are given. Raises MisuseError for an engine whose
    checks would share their connection, and so their transaction, with the business.
    """

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise MisuseError(
                f"the fence needs the engine of the business database, not {shown(engine)} of type "
                f"{type(engine).__name__}: give what create_engine() or create_async_engine() returned"
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
        self._engine = engine
        self._fence_id: UUID | None = None

    @property
    def is_async(self) -> bool:
        """Whether the engine is an AsyncEngine."""
        return isinstance(self._engine, AsyncEngine)

    # ---- tables and identity

    def create_tables(self) -> None:
        """Creates both tables where they are absent. Idempotent; several processes may do it at once."""
        self._run(identity.create_tables)

    async def create_tables_async(self) -> None:
        """`create_tables` on an AsyncEngine."""
        await self._run_async(identity.create_tables)

    def fence_id(self) -> UUID:
        """Which fence this is. Made at random on first use, then kept in the database for good.

        Raises StorageError when the tables are absent.
        """
        if self._fence_id is None:
            self._fence_id = self._run(identity.fence_id)
        return self._fence_id

    async def fence_id_async(self) -> UUID:
        """`fence_id` on an AsyncEngine."""
        if self._fence_id is None:
            self._fence_id = await self._run_async(identity.fence_id)
        return self._fence_id

    def renew_fence_id(self) -> UUID:
        """Gives this database a fence id of its own: for a copy of a database, before its services start.

        Until then the copy answers checks for the transactions of the original. In a database whose services run, the
        halves that are undecided at this moment lose whom to ask, and are parked: do it in copies only.
        """
        self._fence_id = self._run(identity.renew_fence_id)
        return self._fence_id

    async def renew_fence_id_async(self) -> UUID:
        """`renew_fence_id` on an AsyncEngine."""
        self._fence_id = await self._run_async(identity.renew_fence_id)
        return self._fence_id

    # ---- the business transaction

    def write(self, session: Session, transaction_id: TransactionId) -> None:
        """Inserts the fence row in the transaction of `session`: it commits, or not, with the business effects.

        Call it first in the transaction, and outside any savepoint. The caller owns the transaction. Raises
        TransactionRefused when a check has decided ROLLBACK already (or the id was used before): roll back, and begin
        again under a new transaction id. Raises MisuseError inside a savepoint, in autocommit, inside a transaction
        that the session does not own, and for a session of another database than the fence's.
        """
        writing.write(session, transaction_id, self.fence_id())

    async def write_async(self, session: AsyncSession, transaction_id: TransactionId) -> None:
        """`write` for an AsyncSession, on an AsyncEngine."""
        fence_id = await self.fence_id_async()
        await session.run_sync(writing.write, transaction_id, fence_id)

    def own_row(self, transaction_id: TransactionId) -> Callable[[Connection], bool]:
        """A function that says whether the row that `write` wrote is still in the transaction of a connection."""
        return lambda connection: writing.is_written(connection, transaction_id)

    # ---- the check

    def check(self, transaction_id: TransactionId) -> TransactionState:
        """What became of the transaction; ROLLBACK also makes sure that it can never commit. Idempotent.

        UNKNOWN while it is running: a check waits about LOCK_WAIT_S for it. Raises what the driver raises when the
        database is away or read-only; whoever asked counts that as UNKNOWN.
        """
        return self._run(checking.check, transaction_id, self._fence_id)

    async def check_async(self, transaction_id: TransactionId) -> TransactionState:
        """`check` on an AsyncEngine."""
        return await self._run_async(checking.check, transaction_id, self._fence_id)

    # ---- upkeep

    def purge(self, older_than_s: float, held: Callable[[list[TransactionId]], Collection[TransactionId]]) -> int:
        """Deletes the rows that are older than `older_than_s` and not held by a broker; how many they were.

        Age is by the database's clock. `held` is given up to 1,000 ids at a time and returns those of them that a
        Notify database still holds undecided: for these the row is still needed (`held_by` asks the brokers). Its
        exceptions end the purge; what was deleted before stays deleted. It is first given no ids, so that nobody there
        to ask is noticed also on a day without old rows. Raises MisuseError below PURGE_AGE_S_MIN.
        """
        purging.check_age(older_than_s)
        held([])
        after, deleted = UUID(int=0), 0
        while old := self._run(purging.old_rows, older_than_s, after):
            deleted += self._run(purging.delete_rows, purging.without(old, held(old)))
            after = old[-1]
        return deleted

    async def purge_async(
        self, older_than_s: float, held: Callable[[list[TransactionId]], Awaitable[Collection[TransactionId]]]
    ) -> int:
        """`purge` on an AsyncEngine, with an async `held`."""
        purging.check_age(older_than_s)
        await held([])
        after, deleted = UUID(int=0), 0
        while old := await self._run_async(purging.old_rows, older_than_s, after):
            deleted += await self._run_async(purging.delete_rows, purging.without(old, await held(old)))
            after = old[-1]
        return deleted

    # ---- running a step on a connection of our own

    def _run(self, step: Callable[..., T], *args: Any) -> T:
        if isinstance(self._engine, AsyncEngine):
            raise MisuseError("this fence has an AsyncEngine: await the method of the same name that ends in _async")
        try:
            return self._run_once(self._engine, step, *args)
        except exc.DBAPIError as error:
            if not error.connection_invalidated:
                raise
        # It broke while it lay in the pool, which SQLAlchemy has emptied now. All steps are idempotent.
        return self._run_once(self._engine, step, *args)

    @staticmethod
    def _run_once(engine: Engine, step: Callable[..., T], *args: Any) -> T:
        with engine.connect() as connection:
            return step(_read_committed(connection), *args)

    async def _run_async(self, step: Callable[..., T], *args: Any) -> T:
        if isinstance(self._engine, Engine):
            raise MisuseError("this fence has a (sync) Engine: call the method of the same name without _async")
        try:
            return await self._run_once_async(self._engine, step, *args)
        except exc.DBAPIError as error:
            if not error.connection_invalidated:
                raise
        return await self._run_once_async(self._engine, step, *args)

    @staticmethod
    async def _run_once_async(engine: AsyncEngine, step: Callable[..., T], *args: Any) -> T:
        async with engine.connect() as connection:
            return await connection.run_sync(lambda sync_connection: step(_read_committed(sync_connection), *args))


def _read_committed(connection: Connection) -> Connection:
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


class FenceCheckListener:
    """The ready-made CheckMessageListener: the fence of the database of `engine` answers.

    With an Engine `check` blocks (call it on a thread), with an AsyncEngine it returns an awaitable, to be awaited on
    the event loop that the engine belongs to.
    """

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self.fence = Fence(engine)

    def check(self, message: ReceivedMessage) -> TransactionState | Awaitable[TransactionState]:
        """What became of the transaction of `message`, by its fence row."""
        if self.fence.is_async:
            return self.fence.check_async(message.transaction_id)
        return self.fence.check(message.transaction_id)
