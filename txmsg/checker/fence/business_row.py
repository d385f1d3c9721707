"""The business side of the fence: the row that commits with the effects. Runs in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import Connection, Engine, String, Table, bindparam, exc, insert, literal_column, select
from sqlalchemy.orm import Session

from txmsg.checker.fence.driver import has_met_another, in_autocommit, is_absent_table
from txmsg.checker.fence.identity import SELECT_IDENTITY
from txmsg.checker.fence.own_rows import own_bind, own_connection
from txmsg.checker.fence.own_statement import OwnStatement
from txmsg.checker.tables import ID, fence_identity_table, fence_table
from txmsg.errors import MisuseError, StorageError, TransactionRefused
from txmsg.message import TransactionId

RowOptions: TypeAlias = Mapping[str, Any]
"""The execution options that `row_options` returns."""

# Without ON CONFLICT DO NOTHING: a late transaction would see 0 rows and continue. By the identity table, so that a
# session of another database inserts nothing: a fence row that no check finds would lose the message.
_INSERT_COMMIT: Final = OwnStatement(
    insert(fence_table).from_select(
        ["transaction_id", "outcome"],
        select(bindparam("id", type_=ID), literal_column("'commit'", String(8))).where(
            fence_identity_table.c.fence_id == bindparam("fence", type_=ID)
        ),
    )
)


def fence_id(session: Session, options: RowOptions) -> UUID | None:
    """Return the id of the fence in the session's database; None if the row is not yet inserted.

    Raises StorageError if the table is absent.
    """
    connection = _own_connection(session)
    try:
        found: UUID | None = connection.execute(SELECT_IDENTITY, execution_options=options).scalar_one_or_none()
        return found
    except exc.DBAPIError as error:
        refuse_absent_tables(connection.engine, error, fence_identity_table)
        raise


def write(session: Session, transaction_id: TransactionId, fence_id: UUID, options: RowOptions) -> None:
    connection = _own_connection(session)
    try:
        row = {"id": transaction_id, "fence": fence_id}
        written = _INSERT_COMMIT.execute(connection, row, options["schema_translate_map"])
    except exc.DBAPIError as error:
        if has_met_another(error):
            raise TransactionRefused(
                f"transaction {transaction_id} must not commit: its fence row exists already, because a check has "
                "decided ROLLBACK, or because the id was used before; run the operation again as a new transaction"
            ) from error
        refuse_absent_tables(connection.engine, error, fence_table, fence_identity_table)
        raise
    if written != 1:
        raise MisuseError(
            f"the session's database {connection.engine.url} is not that of fence {fence_id}: checks would "
            "look for the transaction elsewhere and drop its message; give both the same database"
        )


_SELECT_COMMIT = select(fence_table.c.outcome).where(
    fence_table.c.transaction_id == bindparam("id", type_=ID), fence_table.c.outcome == "commit"
)


def is_written(connection: Connection, transaction_id: TransactionId, options: RowOptions) -> bool:
    """Return True if the row exists, as the transaction of this connection sees it."""
    return connection.execute(_SELECT_COMMIT, {"id": transaction_id}, execution_options=options).first() is not None


def refuse_absent_tables(engine: Engine, error: exc.DBAPIError, *tables: Table) -> None:
    """Raises StorageError if the reason for `error` is that one of these tables is absent."""
    for table in tables:
        if is_absent_table(error, table.name):
            raise StorageError(
                f"table {table.name} is absent from {engine.url}, which session= opens: call "
                "txmsg.create_tables(engine) there, or give session= and FenceCheckListener the same database"
            ) from error


def _own_connection(session: Session) -> Connection:
    """Return the session's connection, in a transaction that the session ends. Raises MisuseError for any other."""
    # Read before own_connection, which begins a transaction: afterwards the session is in one in any case, and a
    # transaction that was begun outside could no longer be told from the session's own.
    owned = session.in_transaction() or not _is_begun(own_bind(session, fence_table))
    connection = own_connection(session, fence_table)
    if session.in_nested_transaction() or connection.in_nested_transaction():
        raise MisuseError(
            "a fence row inside a savepoint is lost when the savepoint is rolled back and the transaction commits: "
            "write it before session.begin_nested()"
        )
    if not owned:
        raise MisuseError(
            "the session is bound to a connection whose transaction began outside it, so session.commit() does not "
            "commit: bind the session to an engine"
        )
    if in_autocommit(connection):
        raise MisuseError(
            "the session's connection is in AUTOCOMMIT, so the fence row would not depend on the business effects: "
            "use a transactional isolation level"
        )
    return connection


def _is_begun(bind: Engine | Connection) -> bool:
    return isinstance(bind, Connection) and bind.in_transaction()
