"""The tables of txmsg in a business database: fence, outbox and inbox. Knows no statement on their rows.

They are created by `create_tables`, or by the application's own migrations: `metadata` lists them, and `changes_sql`
returns the statements from one revision to the next.

changes    the revisions, as SQL
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, overload
from uuid import uuid4

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Dialect,
    Engine,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    Uuid,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable, SetColumnComment, SetTableComment
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from txmsg.checker.connections.engines import AsyncConnect, AsyncConnectedBy, Connect, connected_by, is_function
from txmsg.checker.tables.changes import changes_sql
from txmsg.errors import MisuseError, StorageError, shown

__all__ = [
    "changes_sql",
    "create_tables",
    "fence_identity_table",
    "fence_table",
    "inbox_table",
    "metadata",
    "outbox_table",
    "outbox_turn_table",
]

DIALECTS: Final = ("postgresql", "mysql", "mariadb", "sqlite")
_MYSQL: Final = ("mysql", "mariadb")

ID: Final = Uuid().with_variant(Uuid(native_uuid=False), *_MYSQL)
"""CHAR(32) on every MySQL and MariaDB. Uuid alone would be UUID from MariaDB 10.7 on: after an upgrade of the server
its values would not fit the column that was made before."""


class Ago(FunctionElement[Any]):
    """The database's clock, in UTC, minus some seconds. Never a client's clock: those disagree."""

    inherit_cache = True
    type = DateTime(timezone=True)


@compiles(Ago, "postgresql")
def _ago_postgresql(element: Ago, compiler: SQLCompiler, **kw: Any) -> str:
    return f"now() - make_interval(secs => {compiler.process(element.clauses, **kw)})"


@compiles(Ago, "mysql")
@compiles(Ago, "mariadb")
def _ago_mysql(element: Ago, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(UTC_TIMESTAMP(6) - INTERVAL {compiler.process(element.clauses, **kw)} SECOND)"


@compiles(Ago, "sqlite")
def _ago_sqlite(element: Ago, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', -({compiler.process(element.clauses, **kw)}) || ' seconds'))"


def _exact(size: int) -> String:
    """Return a type of ASCII text that is compared by bytes: by default MySQL treats `mailer` and `Mailer` as equal."""
    return String(size).with_variant(mysql.VARCHAR(size, charset="ascii", collation="ascii_bin"), *_MYSQL)


_UTC = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *_MYSQL)

REVISION: Final = "0001"
"""The revision of these tables: the last one in `changes`."""

metadata = MetaData()
"""All tables of txmsg in a business database, for Alembic's `target_metadata`."""

fence_table = Table(
    "txmsg_fence",
    metadata,
    Column("transaction_id", ID, primary_key=True),
    Column("outcome", String(8), CheckConstraint("outcome IN ('commit', 'rollback')"), nullable=False),
    Column("created_at", _UTC, server_default=Ago(literal(0, literal_execute=True)), nullable=False),
    comment="One row per business transaction that sends txmsg messages: the proof of its outcome.",
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

fence_identity_table = Table(
    "txmsg_fence_identity",
    metadata,
    Column("one", SmallInteger, CheckConstraint("one = 1"), primary_key=True, autoincrement=False),
    Column("fence_id", ID, nullable=False),
    Column("revision", _exact(4), nullable=False, comment="Of txmsg's tables here."),
    comment="Which fence this is: a check is never answered from another database.",
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

_SEQ: Final = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows automatically only if the key's type is INTEGER."""
_ASCII: Final = Text().with_variant(mysql.LONGTEXT(charset="ascii", collation="ascii_bin"), *_MYSQL)
"""Base64 text rather than bytes: aiomysql fails on values of type bytes."""

outbox_table = Table(
    "txmsg_outbox",
    metadata,
    Column("seq", _SEQ, primary_key=True),
    Column("group_name", _exact(127), nullable=False),
    Column("transaction_id", ID, nullable=False),
    Column("ordering_key", _exact(1536), comment="In UTF-8, percent-encoded."),
    Column("size_bytes", Integer, nullable=False),
    Column("written_at", _UTC, server_default=Ago(literal(0, literal_execute=True)), nullable=False),
    Column("refused", Text, comment="Why the brokers did not take it."),
    # The last column: to read a column behind a large value, SQLite reads the value.
    Column("messages", _ASCII, nullable=False, comment="A SendRequest of txmsg.v1, in base64."),
    Index("txmsg_outbox_seq", "group_name", "seq"),
    Index("txmsg_outbox_key", "group_name", "ordering_key"),
    comment="Messages of committed transactions that no broker took at the time.",
    sqlite_autoincrement=True,  # or a number would be given again, and the relay of an earlier row delete a later one
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

outbox_turn_table = Table(
    "txmsg_outbox_turn",
    metadata,
    Column("group_name", _exact(127), primary_key=True),
    Column("holder", ID, nullable=False),
    Column("taken_at", _UTC, nullable=False),
    Column("waiting", Integer, server_default="0", nullable=False, comment="Rows of the group, as it counted them."),
    Column("refused", Integer, server_default="0", nullable=False, comment="Those of them that brokers refused."),
    comment="Which process relays the outbox of a producer group.",
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

inbox_table = Table(
    "txmsg_inbox",
    metadata,
    Column("group_name", _exact(127), primary_key=True),
    Column("message_id", _exact(48), primary_key=True),
    Column(
        "generation",
        Integer,
        nullable=False,
        comment="Rises with each request to handle the message again. The last one that was handled.",
    ),
    Column("handled_at", DateTime(timezone=True), server_default=func.now(), nullable=False, index=True),
    comment="Messages whose effects are in this database: a repeat is skipped.",
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)


# Made with the tables, so that it is older than the snapshot of any transaction that writes a fence row.
_INSERT_IDENTITY: Final = {
    "postgresql": postgresql.insert(fence_identity_table).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(fence_identity_table).on_conflict_do_nothing(),
    **dict.fromkeys(_MYSQL, insert(fence_identity_table).prefix_with("IGNORE")),
}


@overload
def create_tables(bind: Engine | Connection | Connect) -> None: ...
@overload
def create_tables(bind: AsyncEngine | AsyncConnection | AsyncConnect) -> Coroutine[Any, Any, None]: ...
def create_tables(
    bind: Engine | Connection | Connect | AsyncEngine | AsyncConnection | AsyncConnect,
) -> Coroutine[Any, Any, None] | None:
    """Create the missing tables of txmsg in a business database: fence, outbox and inbox.

    bind: an Engine; or a Connection, in whose transaction they are created, as in an Alembic migration:
    `create_tables(op.get_bind())`; or the asynchronous kind of either: then await the result; or a function that opens
    a connection, see `FenceCheckListener`. Idempotent; several processes may call it at once. Raises MisuseError for
    databases other than PostgreSQL, MySQL, MariaDB and SQLite, and StorageError, with what to run, for tables of a
    release before that this one does not work with.
    """
    if is_function(bind):
        connected = connected_by(bind)
        if isinstance(connected, AsyncConnectedBy):
            return _create_by(connected)
        bind = connected.engine()
    match bind:
        case AsyncEngine() | AsyncConnection():
            return _create_async(bind)
        case Engine():
            with bind.connect() as connection:
                _create_and_commit(connection)
        case Connection():
            _create(bind)
        case _:
            raise MisuseError(
                f"create_tables was given {shown(bind)} of type {type(bind).__name__}: give the Engine or AsyncEngine "
                "of the business database, or a connection of it; in a migration that Alembic prints by --sql there is "
                "none, so execute each statement of txmsg.checker.tables.changes_sql"
            )
    return None


async def _create_by(connected: AsyncConnectedBy) -> None:
    await _create_async(await connected.engine())


async def _create_async(bind: AsyncEngine | AsyncConnection) -> None:
    if isinstance(bind, AsyncConnection):
        await bind.run_sync(_create)
        return
    async with bind.connect() as connection:
        await connection.run_sync(_create_and_commit)


def _create_and_commit(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        # At a stricter level a process that waited for another one here fails with 40001; in autocommit the advisory
        # lock, which is the transaction's, would be released at once.
        connection.execution_options(isolation_level="READ COMMITTED")
    with connection.begin():
        _create(connection)


def _create(connection: Connection) -> None:
    dialect_name = connection.dialect.name
    if dialect_name not in DIALECTS:
        raise MisuseError(f"txmsg has no tables for {dialect_name}: use PostgreSQL, MySQL, MariaDB or SQLite")
    with _alone(connection):
        # Looks first: PostgreSQL asks for permissions, and for an index locks out writers of the table, before it sees
        # that there is nothing to create.
        schema = schema_of(connection)
        if connection.dialect.has_table(connection, fence_identity_table.name, schema=schema):
            refuse_old_tables(connection)
        for table in metadata.sorted_tables:
            if not connection.dialect.has_table(connection, table.name, schema=schema):
                connection.execute(CreateTable(table, if_not_exists=True))
                for comment in comments_of(table, connection.dialect):
                    connection.execute(comment)
            for index in indexes_of(table):
                if not connection.dialect.has_index(connection, table.name, str(index.name), schema=schema):
                    connection.execute(CreateIndex(index, if_not_exists=dialect_name not in _MYSQL))
        if connection.scalar(select(fence_identity_table.c.fence_id)) is None:  # as above: it may only read
            connection.execute(_INSERT_IDENTITY[dialect_name], {"one": 1, "fence_id": uuid4(), "revision": REVISION})


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the tables in a business database; None if it is not yet written."""
    found: str | None = connection.scalar(select(fence_identity_table.c.revision))
    return found


def refuse_old_tables(connection: Connection) -> None:
    """Raises StorageError for tables of an older revision than this release works with."""
    revision = revision_of(connection)
    if revision is not None and revision < REVISION:
        name = "mysql" if connection.dialect.name in _MYSQL else connection.dialect.name
        raise StorageError(
            f"txmsg's tables in {connection.engine.url} have revision {revision}, and this release works with "
            f"{REVISION}: have their owner run what `txmsg tables sql --dialect {name} --from-revision {revision}` "
            "prints"
        )


def schema_of(connection: Connection) -> str | None:
    """Return the schema of txmsg's tables by the engine's `schema_translate_map`; None: the default schema."""
    schema: str | None = (connection.get_execution_options().get("schema_translate_map") or {}).get(None)
    return schema


def comments_of(table: Table, dialect: Dialect) -> list[SetTableComment | SetColumnComment]:
    """Return the comments that CREATE TABLE omits in this database. Without them, Alembic always finds a difference."""
    if not dialect.supports_comments or dialect.inline_comments:
        return []
    return [SetTableComment(table), *(SetColumnComment(column) for column in table.columns if column.comment)]


def indexes_of(table: Table) -> list[Index]:
    """Return the table's indexes in a fixed order: SQLAlchemy keeps them in a set."""
    return sorted(table.indexes, key=lambda index: str(index.name))


_LOCK_KEY: Final = 7_269_853_771_002  # any number: a PostgreSQL advisory lock key of our own
_LOCK_NAME: Final = "txmsg.create_tables"
_LOCK_WAIT_S: Final = 60


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Exclude other processes that create tables: on PostgreSQL two concurrent CREATE TABLE IF NOT EXISTS can fail."""
    match connection.dialect.name:
        case "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK_KEY)))
            yield
        case "mysql" | "mariadb":
            connection.execute(select(func.get_lock(_LOCK_NAME, _LOCK_WAIT_S)))
            try:
                yield
            finally:
                connection.execute(select(func.release_lock(_LOCK_NAME)))
        case _:
            yield
