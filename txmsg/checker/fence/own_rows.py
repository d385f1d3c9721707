"""Where a session writes txmsg's own rows: on which of its connections."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Connection, Engine, Table, Update, update
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from txmsg.errors import MisuseError


def own_connection(session: Session, table: Table) -> Connection:
    """The session's connection for this table of txmsg. Raises MisuseError for a session that has none."""
    try:
        return session.connection(bind_arguments={"clause": _write_to(table)})
    except UnboundExecutionError as error:
        raise _unbound(table) from error


def own_bind(session: Session, table: Table) -> Engine | Connection:
    """What the session takes that connection from."""
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
    """A session that routes by statements sends those that it knows to write to the primary, others to a replica."""
    return update(table)
