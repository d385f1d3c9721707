"""The migrations add up to schema.py, and a broker works only with the revisions it knows."""

from __future__ import annotations

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url

from txmsg.broker import migrate
from txmsg.broker.schema import metadata
from txmsg.errors import SchemaMismatch, StorageError

_PARTITION = ("message_", "rolled_back_")
_COLLATIONS = """
select c.relname, a.attname, o.collname from pg_class c join pg_attribute a on a.attrelid = c.oid
  join pg_collation o on o.oid = a.attcollation
 where c.relnamespace = 'txmsg'::regnamespace and c.relkind in ('r', 'p', 'i', 'I')
   and c.relname not in ('revision', 'revision_pkc') and not a.attisdropped
"""
"""Of columns, and of indexes, which could differ."""


def _differences(connection: Connection) -> list[object]:
    def ours(name: str | None, kind: str, parents: object) -> bool:
        if kind == "schema":
            return name == "txmsg"
        return not ((kind == "table" and name is not None and name.startswith(_PARTITION)) or name == "revision")

    context = MigrationContext.configure(
        connection, opts={"include_schemas": True, "include_name": ours, "version_table_schema": "txmsg"}
    )
    differences: list[object] = compare_metadata(context, metadata)
    return differences


def test_an_upgraded_database_equals_the_tables_in_schema_py(notify_url: str) -> None:
    engine = create_engine(make_url(notify_url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        assert _differences(connection) == []
        connection.execute(text("alter table txmsg.topic add column planted int"))
        assert _differences(connection), "the comparison finds nothing at all"
        connection.rollback()
    engine.dispose()


def test_text_is_compared_by_its_bytes_whatever_the_locale_of_the_database(notify_url: str) -> None:
    with psycopg.connect(notify_url) as connection:
        found = connection.execute(_COLLATIONS).fetchall()
    assert ("message", "key", "C") in found
    assert ("message_1", "key", "C") in found, "a segment that was made before"
    assert [each for each in found if each[2] != "C"] == []


def test_upgrading_twice_is_fine(database_url: str) -> None:
    assert migrate.current(database_url) is None
    assert migrate.upgrade(database_url) == migrate.upgrade(database_url) == migrate.current(database_url)


def test_a_database_without_tables_is_refused_with_the_command_that_mends_it(database_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="txmsg db upgrade --storage"):
        migrate.require(database_url)


def test_a_newer_database_is_neither_used_nor_upgraded(notify_url: str) -> None:
    with psycopg.connect(notify_url) as connection:
        connection.execute("update txmsg.revision set version_num = '9999'")
        connection.execute("update txmsg.notify_db set works_from = '0003'")
    with pytest.raises(SchemaMismatch, match="9999"):
        migrate.require(notify_url)
    with pytest.raises(SchemaMismatch, match="newer than this release"):
        migrate.upgrade(notify_url)


def test_a_newer_database_that_says_so_is_used_and_not_upgraded(notify_url: str) -> None:
    with psycopg.connect(notify_url) as connection:
        connection.execute("update txmsg.revision set version_num = '9999'")
        connection.execute("update txmsg.notify_db set works_from = %s", (migrate.REVISIONS[-1],))
    migrate.require(notify_url)
    found = {each.name: each for each in migrate.check(notify_url)}
    assert found["revision"].ok
    assert "newer than this release" in found["revision"].note
    with pytest.raises(SchemaMismatch, match="newer than this release"):
        migrate.upgrade(notify_url)


def test_a_database_that_is_away_is_named_without_its_password() -> None:
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:1/") as caught:
        migrate.current("postgresql://somebody:secret@127.0.0.1:1/nothing")
    assert "secret" not in str(caught.value)


def test_check_reports_what_is_right_and_wrong(database_url: str) -> None:
    found = {each.name: each for each in migrate.check(database_url)}
    assert found["wal_level"].ok
    assert found["transaction pooler"].ok
    assert not found["revision"].ok
    assert "db upgrade" in found["revision"].fix
