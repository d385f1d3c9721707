"""The tables of a business database as SQL, and the rights that roles need on them. For a DBA; knows no connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from sqlalchemy import Dialect, Table
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from txmsg.checker.tables import (
    REVISION,
    comments_of,
    fence_identity_table,
    fence_table,
    inbox_table,
    indexes_of,
    metadata,
    outbox_table,
    outbox_turn_table,
)

RUNNING: Final[Mapping[Table, tuple[str, ...]]] = {
    fence_table: ("SELECT", "INSERT"),
    fence_identity_table: ("SELECT",),
    outbox_table: ("SELECT", "INSERT", "UPDATE", "DELETE"),
    outbox_turn_table: ("SELECT", "INSERT", "UPDATE", "DELETE"),
    inbox_table: ("SELECT", "INSERT", "UPDATE"),
}
"""Rights that the role of the application needs: for decorated calls, check-backs, the outbox and its relay, the
inbox."""
PURGING: Final[Mapping[Table, tuple[str, ...]]] = {
    fence_table: ("SELECT", "DELETE"),
    inbox_table: ("SELECT", "DELETE"),
}
"""Rights that `txmsg fence purge` and `purge_inbox` need."""

DIALECTS: Final[Mapping[str, Callable[[], Dialect]]] = {
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
    "sqlite": sqlite.dialect,
}
"""Dialects by the name of `--dialect`. mysql: of MariaDB as well."""

# Made by the database: a script that held an id would give the same one to each database in which it is run.
_NEW_ID: Final = {
    "postgresql": "gen_random_uuid()",
    "mysql": "REPLACE(UUID(), '-', '')",
    "mariadb": "REPLACE(UUID(), '-', '')",
    "sqlite": "lower(hex(randomblob(16)))",
}
_MYSQL: Final = ("mysql", "mariadb")


def table_sql(table: Table, dialect: Dialect, *, if_not_exists: bool = False) -> Iterator[str]:
    """Yield the statements that create one table, with its comments and indexes.

    if_not_exists: keep what is there, where the database can; MySQL has no such word for an index.
    """
    yield _text(CreateTable(table, if_not_exists=if_not_exists), dialect)
    for comment in comments_of(table, dialect):
        yield _text(comment, dialect)
    for index in indexes_of(table):
        yield _text(CreateIndex(index, if_not_exists=if_not_exists and dialect.name not in _MYSQL), dialect)


def identity_sql(dialect: Dialect) -> str:
    """Give the database its fence id, unless it has one.

    With the tables, so that it is older than the snapshot of any transaction that writes a fence row.
    """
    name = fence_identity_table.name
    return (
        f"INSERT INTO {name} (one, fence_id, revision) SELECT 1, {_NEW_ID[dialect.name]}, '{REVISION}' "
        f"WHERE NOT EXISTS (SELECT 1 FROM {name})"
    )


def all_tables_sql(dialect: Dialect) -> Iterator[str]:
    """Yield the statements that create the tables of `create_tables`."""
    for table in metadata.sorted_tables:
        yield from table_sql(table, dialect, if_not_exists=True)
    yield identity_sql(dialect)


def rights_sql(rights: Mapping[Table, tuple[str, ...]], role: str, dialect: Dialect) -> Iterator[str]:
    """Yield the statements that grant a role these rights. role: as SQL writes it, see `role_sql`."""
    for table, granted in rights.items():
        yield f"GRANT {', '.join(granted)} ON {table.name} TO {role}"
    if dialect.name == "postgresql" and "INSERT" in rights.get(outbox_table, ()):
        yield f"GRANT USAGE ON SEQUENCE {outbox_table.name}_{outbox_table.c.seq.name}_seq TO {role}"


def role_sql(name: str, dialect: Dialect) -> str:
    """Return the name of a role as SQL writes it. MySQL's accounts have a host: `shop@10.0.0.%`; by default any,
    `%`."""
    if dialect.name not in _MYSQL:
        return dialect.identifier_preparer.quote_identifier(name)
    account, _, host = name.partition("@")
    return "@".join("'" + part.replace("\\", "\\\\").replace("'", "''") + "'" for part in (account, host or "%"))


def _text(element: Any, dialect: Dialect) -> str:
    return str(element.compile(dialect=dialect)).strip()
