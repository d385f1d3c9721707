"""The operation of migrations that makes txmsg's tables: those of txmsg.tables, of which SQLAlchemy writes the SQL."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.db.migrations.operations.base import Operation
from sqlalchemy import Dialect
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from txmsg.errors import MisuseError
from txmsg.tables import comments_of, fence_identity_table, metadata


class CreateTables(Operation):
    """Creates them. Those that are there already, made by `txmsg.create_tables`, are left as they are."""

    reversible = True
    reduces_to_sql = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Models of these tables are unmanaged: Django has nothing to remember."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        dialect = _dialect_of(connection)
        for table in metadata.sorted_tables:
            if schema_editor.collect_sql or table.name not in connection.introspection.table_names():
                schema_editor.execute(_text(CreateTable(table), dialect), params=None)
                for comment in comments_of(table, dialect):
                    schema_editor.execute(_text(comment, dialect), params=None)
                for index in table.indexes:
                    schema_editor.execute(_text(CreateIndex(index), dialect), params=None)
        self._give_identity(schema_editor)

    def _give_identity(self, schema_editor: Any) -> None:
        """Made with the tables, so that it is older than the snapshot of any transaction that writes a fence row."""
        name = fence_identity_table.name
        fence_id = uuid4()
        value = str(fence_id) if schema_editor.connection.vendor == "postgresql" else fence_id.hex
        schema_editor.execute(
            f"INSERT INTO {name} (one, fence_id) SELECT 1, '{value}' WHERE NOT EXISTS (SELECT 1 FROM {name})",
            params=None,
        )

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        for table in reversed(metadata.sorted_tables):
            schema_editor.execute(f"DROP TABLE {table.name}", params=None)

    def describe(self) -> str:
        return "Creates the fence and the inbox of txmsg"

    @property
    def migration_name_fragment(self) -> str:
        return "txmsg_tables"


def _text(element: ExecutableDDLElement, dialect: Dialect) -> str:
    return str(element.compile(dialect=dialect)).strip()


def _dialect_of(connection: Any) -> Dialect:
    match connection.vendor:
        case "postgresql":
            return postgresql.dialect()  # type: ignore[no-untyped-call]
        case "mysql":
            return mysql.dialect(is_mariadb=connection.mysql_is_mariadb)
        case "sqlite":
            return sqlite.dialect()
        case vendor:
            raise MisuseError(
                f"txmsg has no tables for {vendor}: use PostgreSQL, MySQL, MariaDB or SQLite, or keep them out of it "
                "by a database router"
            )
