"""An upgrade of the Notify database meets a session that holds tables open: nobody waits behind the upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy
from alembic import command

from txmsg.broker import migrate
from txmsg.errors import StorageError

_WAIT_S = 60.0


@pytest.fixture
def old_url(database_url: str) -> str:
    """A Notify database at revision 0001."""
    engine = sqlalchemy.create_engine(database_url.replace("postgresql:", "postgresql+psycopg:", 1))
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("create schema txmsg"))
        config = migrate._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()
    assert migrate.current(database_url) == "0001"
    return database_url


@pytest.fixture
def reader(old_url: str) -> Iterator[psycopg.Connection]:
    """A session with a transaction that has read messages."""
    with psycopg.connect(old_url, application_name="report", connect_timeout=10) as connection:
        connection.execute("select from txmsg.message")
        yield connection


def test_senders_go_on_while_an_upgrade_waits_for_a_reader_and_it_ends_when_the_reader_does(
    old_url: str, reader: psycopg.Connection
) -> None:
    with ThreadPoolExecutor() as threads:
        upgrading = threads.submit(migrate.upgrade, old_url)
        with psycopg.connect(old_url, autocommit=True, connect_timeout=10) as sender:
            _wait_until_an_upgrade_waits_for_a_table(sender)
            sender.execute("set statement_timeout = '20s'")
            for _ in range(2):
                sender.execute("insert into txmsg.topic (name, queue_count) values (gen_random_uuid()::text, 1)")
                sender.execute("select from txmsg.message")  # behind the upgrade in the line, if it keeps its place
            assert migrate.current(old_url) == "0001"
        assert not upgrading.done()
        reader.commit()
        assert upgrading.result(_WAIT_S) == migrate.REVISIONS[-1]


def test_an_upgrade_that_gives_up_names_who_is_in_its_way_and_changes_nothing(
    old_url: str, reader: psycopg.Connection
) -> None:
    with pytest.raises(StorageError) as caught:
        migrate.upgrade(old_url, wait_s=0)
    assert f"by process {reader.info.backend_pid} (user " in str(caught.value)
    assert ", report, idle in transaction): end these sessions" in str(caught.value)
    assert migrate.current(old_url) == "0001"
    reader.commit()
    assert migrate.upgrade(old_url, wait_s=0) == migrate.REVISIONS[-1]


def _wait_until_an_upgrade_waits_for_a_table(connection: psycopg.Connection) -> None:
    statement = """
        do $$ begin
            for n in 1..1200 loop
                perform from pg_locks where not granted and locktype = 'relation' and mode = 'AccessExclusiveLock';
                if found then return; end if;
                perform pg_sleep(0.05);
                perform pg_stat_clear_snapshot();
            end loop;
            raise 'no upgrade waits for a table';
        end $$"""
    connection.execute(statement)
