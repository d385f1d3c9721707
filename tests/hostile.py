"""Unusual settings of a database, a role or an environment, none of which txmsg may depend on."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

SETTINGS: Final = {
    "client_encoding": "LATIN1",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "quote_all_identifiers": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "client_min_messages": "error",
    "search_path": "evil, pg_catalog",
    "statement_timeout": "5s",
    "lock_timeout": "1ms",
    "idle_session_timeout": "5s",
    "idle_in_transaction_session_timeout": "5s",
    "transaction_timeout": "5s",
}

ENVIRONMENT: Final = {
    "PGCLIENTENCODING": "LATIN1",
    "PGDATESTYLE": "SQL, DMY",
    "PGTZ": "Pacific/Chatham",
    "PGOPTIONS": "-c bytea_output=escape -c default_transaction_isolation=serializable",
}
"""Settings of a process, which override those of a database."""

_EVIL = """
create schema evil;
create table evil.topic (id int);
create function evil.now() returns timestamptz language sql as $$ select '1999-01-01'::timestamptz $$;
create function evil.set_config(text, text, boolean) returns text language sql as $$ select 'evil' $$;
create function evil.cardinality(anyarray) returns int language sql as $$ select 0 $$;
"""
"""A schema searched before PostgreSQL's own."""


def settings_of(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> dict[str, str]:
    """Return the settings that the server knows."""
    unknown = {"transaction_timeout"} if connection.info.server_version < 170000 else set()
    return {name: value for name, value in SETTINGS.items() if name not in unknown}


def make_hostile(url: str) -> None:
    """Apply these settings to the database, for new sessions."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_EVIL)
        for name, value in settings_of(connection).items():
            connection.execute(
                sql.SQL("alter database {} set {} = {}").format(
                    sql.Identifier(connection.info.dbname),
                    sql.Identifier(name),
                    sql.SQL("evil, pg_catalog") if name == "search_path" else sql.Literal(value),
                )
            )
