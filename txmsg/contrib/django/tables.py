"""The operation of migrations that creates txmsg's tables: those of txmsg.checker.tables, by SQLAlchemy's SQL."""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations.base import Operation
from sqlalchemy import Dialect
from sqlalchemy.dialects import mysql, postgresql, sqlite

from txmsg.checker.tables import metadata
from txmsg.client.business_sql import identity_sql, table_sql
from txmsg.errors import MisuseError


class CreateTables(Operation):
    """Creates the missing tables. Existing ones, made by `txmsg.create_tables`, are left unchanged."""

    reversible = True
    reduces_to_sql = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Models of these tables are unmanaged: Django has nothing to remember."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        dialect = _dialect_of(connection)
        for table in metadata.sorted_tables:
            # `sqlmigrate` prints the SQL of all tables, whatever this database has.
            if schema_editor.collect_sql or table.name not in connection.introspection.table_names():
                for statement in table_sql(table, dialect):
                    schema_editor.execute(statement, params=None)
        schema_editor.execute(identity_sql(dialect), params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        for table in reversed(metadata.sorted_tables):
            schema_editor.execute(f"DROP TABLE {table.name}", params=None)

    def describe(self) -> str:
        return "Creates the fence and the inbox of txmsg"

    @property
    def migration_name_fragment(self) -> str:
        return "txmsg_tables"


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
