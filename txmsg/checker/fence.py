"""The fence: one row per business transaction, in the database of the business, by which a check cannot go wrong.

The transaction inserts the row ('commit') with its effects; so the row is there if and only if the effects are. A check
that finds no row inserts one itself ('rollback'); so a transaction that was late, paused or still to begin fails on the
unique key and can never commit after its message was thrown away. A row whose transaction is still running makes the
check wait on its lock, briefly: UNKNOWN, ask again later.

Source of the idea: the barrier row of dtm. Knows SQLAlchemy, and no network.

What the fence cannot see: a check must read the primary (on a replica its INSERT fails, which counts as UNKNOWN); a
business database that loses commits it had reported (an asynchronous failover, or synchronous_commit=off and a crash)
loses fence rows with them; a copy of the business database has the fence id of the original, until
`DELETE FROM txmsg_fence_identity` is run in the copy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    CursorResult,
    DateTime,
    Engine,
    Insert,
    MetaData,
    SmallInteger,
    String,
    Table,
    Uuid,
    bindparam,
    delete,
    exc,
    insert,
    literal,
    select,
    text,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool, StaticPool
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql import Executable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from txmsg.errors import MisuseError, StorageError, TransactionRefused
from txmsg.message import ReceivedMessage, TransactionId, TransactionState

__all__ = [
    "LOCK_WAIT_S",
    "PURGE_AGE_S_MIN",
    "Fence",
    "FenceCheckListener",
    "fence_identity_table",
    "fence_metadata",
    "fence_table",
]

LOCK_WAIT_S = 0.2
"""Seconds a check waits for a running transaction before it answers UNKNOWN. MySQL rounds it up to 1 s."""

PURGE_AGE_S_MIN = 600.0
"""No row younger than this is purged: without its row, a paused transaction could commit after its rollback."""

_PURGE_BATCH = 1000
_CREATION_LOCK = 7_269_853_771_002  # any number: a PostgreSQL advisory lock key of our own

T = TypeVar("T")


class _Ago(FunctionElement[Any]):
    """The database's clock, in UTC, some seconds ago. Never a client's clock: those disagree."""

    inherit_cache = True
    type = DateTime(timezone=True)


@compiles(_Ago, "postgresql")
def _ago_postgresql(element: _Ago, compiler: SQLCompiler, **kw: Any) -> str:
    return f"now() - make_interval(secs => {compiler.process(element.clauses, **kw)})"


@compiles(_Ago, "mysql")
@compiles(_Ago, "mariadb")
def _ago_mysql(element: _Ago, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(UTC_TIMESTAMP(6) - INTERVAL {compiler.process(element.clauses, **kw)} SECOND)"


@compiles(_Ago, "sqlite")
def _ago_sqlite(element: _Ago, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || {compiler.process(element.clauses, **kw)} || ' seconds'))"


_UTC = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")

fence_metadata = MetaData()
"""Both tables, for an application that creates its tables by its own migrations."""

fence_table = Table(
    "txmsg_fence",
    fence_metadata,
    Column("transaction_id", Uuid, primary_key=True),
    Column("outcome", String(8), CheckConstraint("outcome IN ('commit', 'rollback')"), nullable=False),
    Column("created_at", _UTC, server_default=_Ago(literal(0, literal_execute=True)), nullable=False),
    comment="One row per business transaction that sends txmsg messages: the proof of its outcome.",
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

fence_identity_table = Table(
    "txmsg_fence_identity",
    fence_metadata,
    Column("one", SmallInteger, CheckConstraint("one = 1"), primary_key=True, autoincrement=False),
    Column("fence_id", Uuid, nullable=False),
    comment="Which fence this is: a check is never answered from another database.",
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

_SELECT_OUTCOME = select(fence_table.c.outcome).where(fence_table.c.transaction_id == bindparam("id", type_=Uuid()))

# Without ON CONFLICT DO NOTHING: a late transaction would see 0 rows and go on. Through the identity table, so that a
# session of another database inserts nothing: a fence row that no check finds would lose the message.
_INSERT_COMMIT = (
    insert(fence_table)
    .from_select(
        ["transaction_id", "outcome"],
        select(bindparam("id", type_=Uuid()), literal("commit", String(8))).where(
            fence_identity_table.c.fence_id == bindparam("fence", type_=Uuid())
        ),
    )
    .execution_options(preserve_rowcount=True)
)

_SELECT_IDENTITY = select(fence_identity_table.c.fence_id)

_ROLLBACK_ROW = {"transaction_id": bindparam("id", type_=Uuid()), "outcome": "rollback"}
_IDENTITY_ROW = {"one": 1, "fence_id": bindparam("fence", type_=Uuid())}


def _insert_if_absent(dialect_name: str, table: Table, row: dict[str, Any]) -> Executable:
    statement: Insert
    match dialect_name:
        case "postgresql":
            statement = postgresql.insert(table).values(row).on_conflict_do_nothing()
        case "sqlite":
            statement = sqlite.insert(table).values(row).on_conflict_do_nothing()
        case _:
            statement = insert(table).values(row).prefix_with("IGNORE")
    return statement.inline().execution_options(preserve_rowcount=True)


_DIALECTS = ("postgresql", "mysql", "mariadb", "sqlite")
_INSERT_ROLLBACK = {name: _insert_if_absent(name, fence_table, _ROLLBACK_ROW) for name in _DIALECTS}
_INSERT_IDENTITY = {name: _insert_if_absent(name, fence_identity_table, _IDENTITY_ROW) for name in _DIALECTS}

_SELECT_OLD = (
    select(fence_table.c.transaction_id)
    .where(fence_table.c.created_at < _Ago(bindparam("older_than_s")))
    .where(fence_table.c.transaction_id > bindparam("after", type_=Uuid()))
    .order_by(fence_table.c.transaction_id)
    .limit(_PURGE_BATCH)
)


class Fence:
    """The fence of one business database: PostgreSQL, MySQL, MariaDB or SQLite (a file).

    `engine` runs the checks, on connections of its own; an Engine serves the methods without `_async`, an AsyncEngine
    those with it. `write` and `write_async` run in the session they are given. Raises MisuseError for an engine whose
    checks would share their connection, and so their transaction, with the business.
    """

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        sync_engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
        if sync_engine.dialect.name not in _DIALECTS:
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
        self._run(_create_tables)

    async def create_tables_async(self) -> None:
        """`create_tables` on an AsyncEngine."""
        await self._run_async(_create_tables)

    def fence_id(self) -> UUID:
        """Which fence this is. Made at random on first use, then kept in the database for good.

        Raises StorageError when the tables are absent.
        """
        if self._fence_id is None:
            self._fence_id = self._run(_fence_id)
        return self._fence_id

    async def fence_id_async(self) -> UUID:
        """`fence_id` on an AsyncEngine."""
        if self._fence_id is None:
            self._fence_id = await self._run_async(_fence_id)
        return self._fence_id

    # ---- the business transaction

    def write(self, session: Session, transaction_id: TransactionId) -> None:
        """Inserts the fence row in the transaction of `session`: it commits, or not, with the business effects.

        Call it first in the transaction, and outside any savepoint. The caller owns the transaction. Raises
        TransactionRefused when a check has decided ROLLBACK already (or the id was used before): roll back, and begin
        again under a new transaction id. Raises MisuseError inside a savepoint, in autocommit, inside a transaction
        that the session does not own, and for a session of another database than the fence's.
        """
        _write(session, transaction_id, self.fence_id())

    async def write_async(self, session: AsyncSession, transaction_id: TransactionId) -> None:
        """`write` for an AsyncSession, on an AsyncEngine."""
        fence_id = await self.fence_id_async()
        await session.run_sync(_write, transaction_id, fence_id)

    # ---- the check

    def check(self, transaction_id: TransactionId) -> TransactionState:
        """What became of the transaction; ROLLBACK also makes sure that it can never commit. Idempotent.

        UNKNOWN while it is running: a check waits about LOCK_WAIT_S for it. Raises what the driver raises when the
        database is away or read-only; whoever asked counts that as UNKNOWN.
        """
        return self._run(_check, transaction_id)

    async def check_async(self, transaction_id: TransactionId) -> TransactionState:
        """`check` on an AsyncEngine."""
        return await self._run_async(_check, transaction_id)

    # ---- upkeep

    def purge(self, older_than_s: float, held: Callable[[list[TransactionId]], Collection[TransactionId]]) -> int:
        """Deletes the rows that are older than `older_than_s` and not held by a broker; how many they were.

        Age is by the database's clock. `held` is given up to 1,000 ids at a time and returns those of them that a
        Notify database still holds undecided: for these the row is still needed. Its exceptions end the purge; what was
        deleted before stays deleted. Raises MisuseError below PURGE_AGE_S_MIN.
        """
        _check_purge_age(older_than_s)
        after, deleted = UUID(int=0), 0
        while old := self._run(_old, older_than_s, after):
            deleted += self._run(_delete, _without(old, held(old)))
            after = old[-1]
        return deleted

    async def purge_async(
        self, older_than_s: float, held: Callable[[list[TransactionId]], Awaitable[Collection[TransactionId]]]
    ) -> int:
        """`purge` on an AsyncEngine, with an async `held`."""
        _check_purge_age(older_than_s)
        after, deleted = UUID(int=0), 0
        while old := await self._run_async(_old, older_than_s, after):
            deleted += await self._run_async(_delete, _without(old, await held(old)))
            after = old[-1]
        return deleted

    # ---- running a step on a connection of our own

    def _run(self, step: Callable[..., T], *args: Any) -> T:
        if isinstance(self._engine, AsyncEngine):
            raise MisuseError("this fence has an AsyncEngine: await the method of the same name that ends in _async")
        with self._engine.connect() as connection:
            return step(_read_committed(connection), *args)

    async def _run_async(self, step: Callable[..., T], *args: Any) -> T:
        if isinstance(self._engine, Engine):
            raise MisuseError("this fence has a (sync) Engine: call the method of the same name without _async")
        async with self._engine.connect() as connection:
            return await connection.run_sync(lambda sync_connection: step(_read_committed(sync_connection), *args))


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


# ---- steps: each begins and ends its own transactions on the connection, which has none


def _read_committed(connection: Connection) -> Connection:
    # Explicitly: under a stricter default of the engine or the server, INSERT ... DO NOTHING fails with 40001.
    if connection.dialect.name == "sqlite":
        return connection  # has no such level; its writers exclude each other
    return connection.execution_options(isolation_level="READ COMMITTED")


def _create_tables(connection: Connection) -> None:
    with connection.begin():
        if connection.dialect.name == "postgresql":  # where two CREATE TABLE IF NOT EXISTS at once can fail
            connection.execute(select(text("pg_advisory_xact_lock(:key)")), {"key": _CREATION_LOCK})
        for table in fence_metadata.sorted_tables:
            connection.execute(CreateTable(table, if_not_exists=True))
    _fence_id(connection)


def _fence_id(connection: Connection) -> UUID:
    try:
        with connection.begin():
            found: UUID | None = connection.execute(_SELECT_IDENTITY).scalar_one_or_none()
        if found is not None:
            return found
    except (exc.ProgrammingError, exc.OperationalError) as error:
        if connection.dialect.has_table(connection, fence_identity_table.name):
            raise
        raise StorageError(
            f"table {fence_identity_table.name} is absent from {connection.engine.url}: call "
            "Fence(engine).create_tables(), or add txmsg.checker.fence.fence_metadata to your migrations"
        ) from error
    with connection.begin():
        connection.execute(_INSERT_IDENTITY[connection.dialect.name], {"fence": uuid4()})
    with connection.begin():  # another process may have been first
        made: UUID = connection.execute(_SELECT_IDENTITY).scalar_one()
    return made


def _write(session: Session, transaction_id: TransactionId, fence_id: UUID) -> None:
    _refuse_misuse(session)
    try:
        result = session.execute(_INSERT_COMMIT, {"id": transaction_id, "fence": fence_id})
    except exc.IntegrityError as error:
        raise TransactionRefused(
            f"transaction {transaction_id} must not commit: its fence row exists already, because a check has decided "
            "ROLLBACK meanwhile, or because the id was used before; run the operation again as a new transaction"
        ) from error
    if cast("CursorResult[Any]", result).rowcount != 1:
        raise MisuseError(
            f"the session's database {session.connection().engine.url} is not that of fence {fence_id}: checks would "
            "look for the transaction elsewhere and throw its message away; give both the same database"
        )


def _refuse_misuse(session: Session) -> None:
    bind = session.get_bind()
    owned = session.in_transaction() or not (isinstance(bind, Connection) and bind.in_transaction())
    if session.in_nested_transaction() or session.connection().in_nested_transaction():
        raise MisuseError(
            "a fence row inside a savepoint is lost when the savepoint is rolled back and the transaction commits: "
            "write it before session.begin_nested()"
        )
    if not owned:
        raise MisuseError(
            "the session is bound to a connection whose transaction began outside it, so session.commit() does not "
            "commit: bind the session to an engine"
        )
    if _in_autocommit(session.connection()):
        raise MisuseError(
            "the session's connection is in AUTOCOMMIT, so the fence row would not depend on the business effects: "
            "use a transactional isolation level"
        )


def _in_autocommit(connection: Connection) -> bool:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    pooled = connection.connection
    # An SQLite driver may be in autocommit while SQLAlchemy's recipe for it sends BEGIN by itself.
    begun = getattr(pooled.driver_connection, "in_transaction", False)
    assert pooled.dbapi_connection is not None, "a connection in use has a driver connection"
    return not begun and connection.dialect.detect_autocommit_setting(pooled.dbapi_connection)


def _check(connection: Connection, transaction_id: TransactionId) -> TransactionState:
    # Three transactions, not one statement: a combined CTE returns no row when the other side commits during the wait.
    with _bounded_lock_wait(connection):
        try:
            state = _recorded(connection, transaction_id)
            if state is TransactionState.UNKNOWN:
                if _insert_rollback(connection, transaction_id):
                    return TransactionState.ROLLBACK
                state = _recorded(connection, transaction_id)
            return state
        except exc.DBAPIError as error:
            if _is_lock_timeout(connection.dialect.name, error):
                return TransactionState.UNKNOWN  # exactly: in flight
            raise


def _recorded(connection: Connection, transaction_id: TransactionId) -> TransactionState:
    with _transaction(connection):
        outcome: str | None = connection.execute(_SELECT_OUTCOME, {"id": transaction_id}).scalar_one_or_none()
    return TransactionState.UNKNOWN if outcome is None else TransactionState(outcome)


def _insert_rollback(connection: Connection, transaction_id: TransactionId) -> bool:
    with _transaction(connection):
        result = connection.execute(_INSERT_ROLLBACK[connection.dialect.name], {"id": transaction_id})
    return result.rowcount == 1


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    with connection.begin():
        if connection.dialect.name == "postgresql":
            # LOCAL: a plain SET leaks into the pool. The rollback row must be on disk before it is told, even where the
            # business has synchronous_commit off by default.
            connection.execute(_SET_LOCAL)
        yield


_SET_LOCAL = select(
    text(f"set_config('lock_timeout', '{int(LOCK_WAIT_S * 1000)}ms', true)"),
    text(
        "set_config('synchronous_commit', case current_setting('synchronous_commit') "
        "when 'remote_apply' then 'remote_apply' else 'on' end, true)"
    ),
)


@contextmanager
def _bounded_lock_wait(connection: Connection) -> Iterator[None]:
    """Limits the waits on this connection where only the session can say so, and puts the old limit back."""
    match connection.dialect.name:
        case "postgresql":
            yield  # per transaction, see _transaction
        case "sqlite":
            with _session_setting(
                connection, "PRAGMA busy_timeout", "PRAGMA busy_timeout = {}", int(LOCK_WAIT_S * 1000)
            ):
                yield
        case _:
            with _session_setting(
                connection, "SELECT @@innodb_lock_wait_timeout", "SET SESSION innodb_lock_wait_timeout = {}", 1
            ):
                yield


@contextmanager
def _session_setting(connection: Connection, query: str, command: str, value: int) -> Iterator[None]:
    with connection.begin():
        before = int(connection.exec_driver_sql(query).scalar_one())
        connection.exec_driver_sql(command.format(value))
    try:
        yield
    finally:
        if not connection.invalidated:  # a broken connection does not go back to the pool
            with connection.begin():
                connection.exec_driver_sql(command.format(before))


def _is_lock_timeout(dialect_name: str, error: exc.DBAPIError) -> bool:
    original = error.orig
    match dialect_name:
        case "postgresql":  # psycopg and asyncpg say sqlstate, psycopg2 pgcode
            return "55P03" in (getattr(original, "sqlstate", None), getattr(original, "pgcode", None))
        case "sqlite":  # SQLITE_BUSY, SQLITE_LOCKED and their extended codes
            return getattr(original, "sqlite_errorcode", 0) & 0xFF in (5, 6)
        case _:
            return 1205 in (getattr(original, "errno", None), *getattr(original, "args", ())[:1])


def _check_purge_age(older_than_s: float) -> None:
    if older_than_s < PURGE_AGE_S_MIN:
        raise MisuseError(
            f"purge of fence rows older than {older_than_s} s: at least {PURGE_AGE_S_MIN:.0f} s are needed, or a "
            "transaction that was paused could commit after its message was thrown away"
        )


def _old(connection: Connection, older_than_s: float, after: UUID) -> list[TransactionId]:
    with connection.begin():
        found = connection.execute(_SELECT_OLD, {"older_than_s": older_than_s, "after": after}).scalars()
        return [TransactionId(transaction_id) for transaction_id in found]


def _without(ids: list[TransactionId], held: Collection[TransactionId]) -> list[TransactionId]:
    kept = set(held)
    return [transaction_id for transaction_id in ids if transaction_id not in kept]


def _delete(connection: Connection, ids: list[TransactionId]) -> int:
    if not ids:
        return 0
    with connection.begin():
        return connection.execute(delete(fence_table).where(fence_table.c.transaction_id.in_(ids))).rowcount
