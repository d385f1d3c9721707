"""Finds the connection on which a session writes txmsg's own rows."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Connection, Engine, Table, Update, update
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from txmsg.errors import MisuseError


def own_connection(session: Session, table: Table) -> Connection:
    """Return the session's connection for this table of txmsg. Raises MisuseError for a session that has none."""
    try:
        return session.connection(bind_arguments={"clause": _write_to(table)})
    except UnboundExecutionError as error:
        raise _unbound(table) from error


def own_bind(session: Session, table: Table) -> Engine | Connection:
    """Return the engine or connection from which the session takes that connection. Raises MisuseError."""
    try:
        return session.get_bind(clause=_write_to(table))
    except UnboundExecutionError as error:
        raise _unbound(table) from error


def _unbound(table: Table) -> MisuseError:
    return MisuseError(
        f"the session has no bind for table {table.name}: give it one for each table of txmsg, "
        "sessionmaker(binds={..., **dict.fromkeys(txmsg.checker.tables.metadata.sorted_tables, engine)})"
    )


@cache
def _write_to(table: Table) -> Update:
    """Return a write: a session that routes by statement sends known writes to the primary, others to a replica."""
    return update(table)
