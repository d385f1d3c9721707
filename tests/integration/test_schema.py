"""Upgrades, the findings of `txmsg db check`, and the revisions with which a broker works."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.conftest import PostgresServer
from txmsg.broker import migrate
from txmsg.errors import SchemaMismatch, StorageError

_COLLATIONS = """
select c.relname, a.attname, o.collname from pg_class c join pg_attribute a on a.attrelid = c.oid
  join pg_collation o on o.oid = a.attcollation
 where c.relnamespace = 'txmsg'::regnamespace and c.relkind in ('r', 'p', 'i', 'I')
   and c.relname not in ('revision', 'revision_pkc') and not a.attisdropped
"""
"""Collations of columns and of indexes, which could differ."""

_DAMAGES = {
    "table txmsg.mirror_queue": ("drop table txmsg.mirror_queue", "table mirror_queue"),
    "a column": ("alter table txmsg.broker drop column release", "column broker.release"),
    "the type of a column": ("alter table txmsg.cursor alter epoch type int", "column cursor.epoch"),
    "a default": ("alter table txmsg.topic alter permission drop default", "column topic.permission"),
    "a collation": ('alter table txmsg.topic alter name type text collate "POSIX"', "column topic.name"),
    "an index": ("drop index txmsg.retry_due", "index retry_due"),
    "the condition of an index": (
        "drop index txmsg.half_message_parked; create index half_message_parked on txmsg.half_message (transaction_id)",
        "index half_message_parked",
    ),
    "an index of all segments": ("drop index txmsg.message_key", "index message_key"),
    "a constraint": (
        "alter table txmsg.half_message drop constraint half_message_ordered",
        "constraint half_message.half_message_ordered",
    ),
    "a trigger": ("drop trigger new_queue_in_memory on txmsg.queue", "trigger queue.new_queue_in_memory"),
    "a function": ("drop function txmsg.look_after_memory", "function look_after_memory()"),
    "the text of a function": (
        "create or replace function txmsg.look_after_memory() returns int language sql as 'select 0'",
        "function look_after_memory()",
    ),
    "a view": ("drop view txmsg.effective_cursor", "view effective_cursor"),
    "unlogged": ("alter table txmsg.incarnation set logged", "table incarnation"),
}
"""A change of the database, and the object that `db check` then names."""


@pytest.fixture
def other_url(postgres: PostgresServer, database_url: str) -> Iterator[str]:
    """A second database."""
    name = f"{database_url.rpartition('/')[2].partition('?')[0]}_other"
    yield postgres.create_database(name)
    postgres.drop_database(name)


def _catalogue(url: str) -> dict[tuple[str, str], str]:
    with psycopg.connect(url, connect_timeout=10) as connection:
        rows = connection.execute("select kind, name, definition from txmsg.catalogue").fetchall()
    return {(kind, name): definition for kind, name, definition in rows}


def _schema_finding(url: str) -> str:
    (found,) = (finding for finding in migrate.check(url) if finding.name == "schema")
    assert found.ok == (found.value == "as its revision made it")
    return found.value


def test_upgrades_of_two_databases_give_equal_schemas(notify_url: str, other_url: str) -> None:
    """The test database is copied from a template, and sessions of the other have unusual settings."""
    with psycopg.connect(other_url, autocommit=True, connect_timeout=10) as connection:
        for setting in ("search_path = elsewhere", "DateStyle = German", "default_toast_compression = pglz"):
            connection.execute(f"alter database {connection.info.dbname} set {setting}".encode())
    migrate.upgrade(other_url)
    catalogue = _catalogue(notify_url)
    assert _catalogue(other_url) == catalogue
    assert {"table", "column", "index", "constraint", "function", "view", "trigger", "sequence"} == {
        kind for kind, _ in catalogue
    }


def test_segments_do_not_change_the_compared_catalogue(notify_url: str) -> None:
    before = _catalogue(notify_url)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("select txmsg.rotate(1)")
        connection.execute("select txmsg.add_segment()")
        connection.execute("alter table txmsg.message detach partition txmsg.message_1")
    assert _catalogue(notify_url) == before
    assert _schema_finding(notify_url) == "as its revision made it"


@pytest.mark.parametrize("damage", _DAMAGES)
def test_check_names_missing_and_changed_objects(notify_url: str, damage: str) -> None:
    assert _schema_finding(notify_url) == "as its revision made it"
    statement, named = _DAMAGES[damage]
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute(statement.encode())
    assert named in _schema_finding(notify_url).removeprefix("missing or changed: ").split(", ")


def test_objects_added_by_an_operator_are_not_reported(notify_url: str) -> None:
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("create index by_tag on txmsg.message (tag)")
        connection.execute("create table txmsg.notes (note text)")
    assert _schema_finding(notify_url) == "as its revision made it"


def test_text_is_compared_by_bytes_in_any_locale(notify_url: str) -> None:
    with psycopg.connect(notify_url) as connection:
        found = connection.execute(_COLLATIONS).fetchall()
    assert ("message", "key", "C") in found
    assert ("message_1", "key", "C") in found, "a segment that was made before"
    assert [row for row in found if row[2] != "C"] == []


def test_upgrading_twice_is_allowed(database_url: str) -> None:
    assert migrate.current(database_url) is None
    assert migrate.upgrade(database_url) == migrate.upgrade(database_url) == migrate.current(database_url)


def test_a_database_without_tables_is_refused_with_the_command_to_create_them(database_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="txmsg db upgrade --storage"):
        migrate.require(database_url)


def test_an_incompatible_newer_database_is_neither_used_nor_upgraded(notify_url: str) -> None:
    with psycopg.connect(notify_url) as connection:
        connection.execute("update txmsg.revision set version_num = '9999'")
        connection.execute("update txmsg.notify_db set works_from = '0002'")
    with pytest.raises(SchemaMismatch, match="9999"):
        migrate.require(notify_url)
    with pytest.raises(SchemaMismatch, match="newer than this release"):
        migrate.upgrade(notify_url)


def test_a_compatible_newer_database_is_used_and_not_upgraded(notify_url: str) -> None:
    with psycopg.connect(notify_url) as connection:
        connection.execute("update txmsg.revision set version_num = '9999'")
        connection.execute("update txmsg.notify_db set works_from = %s", (migrate.REVISIONS[-1],))
    migrate.require(notify_url)
    found = {finding.name: finding for finding in migrate.check(notify_url)}
    assert found["revision"].ok
    assert "newer than this release" in found["revision"].note
    with pytest.raises(SchemaMismatch, match="newer than this release"):
        migrate.upgrade(notify_url)


def test_an_unavailable_database_is_named_without_its_password() -> None:
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:1/") as caught:
        migrate.current("postgresql://somebody:secret@127.0.0.1:1/nothing")
    assert "secret" not in str(caught.value)


def test_check_reports_good_and_bad_findings(database_url: str) -> None:
    found = {finding.name: finding for finding in migrate.check(database_url)}
    assert found["wal_level"].ok
    assert found["transaction pooler"].ok
    assert not found["revision"].ok
    assert "db upgrade" in found["revision"].fix
