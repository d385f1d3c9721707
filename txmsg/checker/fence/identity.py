"""The fence's id, kept in a table. Each step owns its transactions."""

from __future__ import annotations

from typing import Final
from uuid import UUID, uuid4

from sqlalchemy import Connection, bindparam, exc, insert, select, update

from txmsg.checker.tables import ID, REVISION, fence_identity_table, schema_of
from txmsg.errors import StorageError

SELECT_IDENTITY = select(fence_identity_table.c.fence_id)
_INSERT_IDENTITY = (
    insert(fence_identity_table).values(one=1, fence_id=bindparam("fence", type_=ID), revision=REVISION).inline()
)
_RENEW: Final = update(fence_identity_table).values(fence_id=bindparam("fence", type_=ID))


class FenceIdentity:
    """A process's cached fence id of one database. Objects for the same database may share it."""

    __slots__ = ("fence_id",)

    def __init__(self) -> None:
        self.fence_id: UUID | None = None
        """The id; None until it is read."""


def fence_id(connection: Connection) -> UUID:
    """Return the id; create it if there is none yet. Raises StorageError if the table is absent."""
    found = _found(connection)
    if found is not None:
        return found
    try:
        with connection.begin():
            connection.execute(_INSERT_IDENTITY, {"fence": uuid4()})
    except exc.IntegrityError:
        pass  # Another process was first: its id is read below.
    made = _found(connection)
    assert made is not None, "the row of the identity is there once an INSERT has succeeded or met it"
    return made


def renew_fence_id(connection: Connection) -> UUID:
    """Give a copy of a database a fence id of its own, before its services start; the old one goes with it.

    Until then the copy answers checks for the transactions of the original. Use it in copies only: in a database whose
    services run, half messages that are undecided at this moment could not be checked, and would be parked.
    """
    new = uuid4()
    with connection.begin():
        if not connection.execute(_RENEW, {"fence": new}).rowcount:
            connection.execute(_INSERT_IDENTITY, {"fence": new})
    return new


def _found(connection: Connection) -> UUID | None:
    try:
        with connection.begin():
            found: UUID | None = connection.execute(SELECT_IDENTITY).scalar_one_or_none()
            return found
    except (exc.ProgrammingError, exc.OperationalError) as error:
        if connection.dialect.has_table(connection, fence_identity_table.name, schema=schema_of(connection)):
            raise
        raise StorageError(
            f"table {fence_identity_table.name} is absent from {connection.engine.url}: call "
            "txmsg.create_tables(engine), or add txmsg.checker.tables.metadata to your migrations"
        ) from error
