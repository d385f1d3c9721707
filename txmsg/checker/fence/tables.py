"""The two tables of the fence, and the database's clock, in each dialect. Knows no transaction."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    DateTime,
    MetaData,
    SmallInteger,
    String,
    Table,
    Uuid,
    literal,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

__all__ = ["DIALECTS", "ID", "Ago", "fence_identity_table", "fence_metadata", "fence_table"]

DIALECTS: Final = ("postgresql", "mysql", "mariadb", "sqlite")

ID: Final = Uuid().with_variant(Uuid(native_uuid=False), "mysql", "mariadb")
"""CHAR(32) on every MySQL and MariaDB. Uuid alone would be UUID from MariaDB 10.7 on: after an upgrade of the server
its values would not fit the column that was made before."""


class Ago(FunctionElement[Any]):
    """The database's clock, in UTC, some seconds ago. Never a client's clock: those disagree."""

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
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || {compiler.process(element.clauses, **kw)} || ' seconds'))"


_UTC = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")

fence_metadata = MetaData()
"""Both tables, for an application that creates its tables by its own migrations."""

fence_table = Table(
    "txmsg_fence",
    fence_metadata,
    Column("transaction_id", ID, primary_key=True),
    Column("outcome", String(8), CheckConstraint("outcome IN ('commit', 'rollback')"), nullable=False),
    Column("created_at", _UTC, server_default=Ago(literal(0, literal_execute=True)), nullable=False),
    comment="One row per business transaction that sends txmsg messages: the proof of its outcome.",
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

fence_identity_table = Table(
    "txmsg_fence_identity",
    fence_metadata,
    Column("one", SmallInteger, CheckConstraint("one = 1"), primary_key=True, autoincrement=False),
    Column("fence_id", ID, nullable=False),
    comment="Which fence this is: a check is never answered from another database.",
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)
