"""The checker's side of the fence. Each step begins and ends its own transactions on the connection, which has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, Insert, Select, String, bindparam, exc, insert, literal, select, text
from sqlalchemy.dialects import postgresql, sqlite

from txmsg.checker.fence import identity
from txmsg.checker.fence.driver import codes_of, has_met_another
from txmsg.checker.tables import ID, fence_identity_table, fence_table
from txmsg.message import TransactionId, TransactionState

LOCK_WAIT_S = 0.2
"""Seconds a check waits for a running transaction before it answers UNKNOWN. MySQL rounds it up to 1 s."""

_SELECT_OUTCOME = select(fence_table.c.outcome).where(fence_table.c.transaction_id == bindparam("id", type_=ID))

# Through the identity table, like the business row: in a copy of the database that has been given an id of its own,
# a client that still knows the old one finds no row of a new transaction, and must not conclude anything from that.
_ROLLBACK_ROW: Select[UUID, str] = select(bindparam("id", type_=ID), literal("rollback", String(8))).where(
    fence_identity_table.c.fence_id == bindparam("fence", type_=ID)
)
_COLUMNS: Final = ["transaction_id", "outcome"]
_INSERT_ROLLBACK: Final[dict[str, Insert]] = {
    "postgresql": postgresql.insert(fence_table).from_select(_COLUMNS, _ROLLBACK_ROW).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(fence_table).from_select(_COLUMNS, _ROLLBACK_ROW).on_conflict_do_nothing(),
    # Not INSERT IGNORE: it makes warnings of all errors, and a row that is not the one meant.
    "mysql": insert(fence_table).from_select(_COLUMNS, _ROLLBACK_ROW),
    "mariadb": insert(fence_table).from_select(_COLUMNS, _ROLLBACK_ROW),
}


def check(connection: Connection, transaction_id: TransactionId, known_id: UUID | None) -> TransactionState:
    """Return the outcome, as `Fence.check` does. known_id: the fence id, if it has been read before."""
    # Three transactions, not one statement: a combined CTE returns no row when the other side commits during the wait.
    with _bounded_lock_wait(connection):
        try:
            fence_id = known_id or identity.fence_id(connection)
            state = _recorded(connection, transaction_id)
            if state is TransactionState.UNKNOWN:
                if _insert_rollback(connection, transaction_id, fence_id):
                    return TransactionState.ROLLBACK
                # The insert met a row, which may be the business transaction's: it committed during the wait, so
                # COMMIT is read now. An unchanged UNKNOWN here means that the fence has another id: nothing follows
                # from an absent row.
                state = _recorded(connection, transaction_id)
            return state
        except exc.DBAPIError as error:
            if _is_in_flight(connection.dialect.name, error):
                return TransactionState.UNKNOWN
            raise


def _recorded(connection: Connection, transaction_id: TransactionId) -> TransactionState:
    with transaction(connection):
        outcome: str | None = connection.execute(_SELECT_OUTCOME, {"id": transaction_id}).scalar_one_or_none()
    return TransactionState.UNKNOWN if outcome is None else TransactionState(outcome)


def _insert_rollback(connection: Connection, transaction_id: TransactionId, fence_id: UUID) -> bool:
    """Insert the row 'rollback' and commit it. Return False if a row exists already, or the fence id has changed."""
    statement = _INSERT_ROLLBACK[connection.dialect.name].execution_options(preserve_rowcount=True)
    try:
        with transaction(connection):
            result = connection.execute(statement, {"id": transaction_id, "fence": fence_id})
    except exc.DBAPIError as error:
        if has_met_another(error):
            return False
        raise
    return result.rowcount == 1


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """A transaction that waits for locks only briefly, and is on disk once it has committed."""
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
    """Limit lock waits on this connection, where only the session has such a limit, and restore the old one."""
    match connection.dialect.name:
        case "postgresql":
            yield  # per transaction, see transaction
        case "sqlite":
            with _busy_timeout(connection):
                yield
        case _:
            with _innodb_lock_wait(connection):
                yield


@contextmanager
def _busy_timeout(connection: Connection) -> Iterator[None]:
    # Past SQLAlchemy, whose begin may be a BEGIN IMMEDIATE of the application: that would wait by the old limit.
    cursor = connection.connection.cursor()
    cursor.execute("PRAGMA busy_timeout")
    (before_ms,) = cursor.fetchone() or (0,)
    cursor.execute(f"PRAGMA busy_timeout = {int(LOCK_WAIT_S * 1000)}")
    try:
        yield
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {before_ms}")
        cursor.close()


@contextmanager
def _innodb_lock_wait(connection: Connection) -> Iterator[None]:
    with connection.begin():
        before_s = connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar_one()
        connection.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 1")
    try:
        yield
    finally:
        if not connection.invalidated:  # a broken connection does not go back to the pool
            with connection.begin():
                connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {before_s}")


def _is_in_flight(dialect_name: str, error: exc.DBAPIError) -> bool:
    """Return True if the wait for another transaction timed out or ended as a deadlock: either means it is running."""
    codes = codes_of(error)
    match dialect_name:
        case "postgresql":
            return not {"55P03", "40P01"}.isdisjoint(codes)
        case "sqlite":  # SQLITE_BUSY, SQLITE_LOCKED and their extended codes
            return any(isinstance(code, int) and code & 0xFF in (5, 6) for code in codes)
        case _:
            return not {1205, 1213}.isdisjoint(codes)
