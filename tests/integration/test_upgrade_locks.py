"""An upgrade of the Notify database meets a session that holds tables open: no sender waits behind the upgrade."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.releases import write_next_revision
from txmsg.broker import migrate, migrations
from txmsg.errors import StorageError

OLD, NEXT = migrate.REVISIONS[-1], "9999"
_WAIT_S = 60.0


@pytest.fixture
def old_url(notify_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Notify database that lacks the latest revision."""
    directory = tmp_path / "migrations"
    shutil.copytree(migrations.DIRECTORY, directory)
    write_next_revision(directory, revision=NEXT)
    monkeypatch.setattr(migrations, "DIRECTORY", directory)
    monkeypatch.setattr(migrate, "REVISIONS", (OLD, NEXT))
    assert migrate.current(notify_url) == OLD
    return notify_url


@pytest.fixture
def reader(old_url: str) -> Iterator[psycopg.Connection]:
    """A session with a transaction that has read messages."""
    with psycopg.connect(old_url, application_name="report", connect_timeout=10) as connection:
        connection.execute("select from txmsg.message")
        yield connection


def test_senders_continue_while_an_upgrade_waits_for_a_reader(old_url: str, reader: psycopg.Connection) -> None:
    with ThreadPoolExecutor() as threads:
        upgrading = threads.submit(migrate.upgrade, old_url)
        with psycopg.connect(old_url, autocommit=True, connect_timeout=10) as sender:
            _wait_until_an_upgrade_waits_for_a_table(sender)
            sender.execute("set statement_timeout = '20s'")
            for _ in range(2):
                sender.execute("update txmsg.half_message set checks = checks")
                sender.execute("select from txmsg.message")  # behind the upgrade in the lock queue, if that waits on
            assert migrate.current(old_url) == OLD
        assert not upgrading.done()
        reader.commit()
        assert upgrading.result(_WAIT_S) == NEXT


def test_a_blocked_upgrade_names_the_blocking_session_and_changes_nothing(
    old_url: str, reader: psycopg.Connection
) -> None:
    with pytest.raises(StorageError) as caught:
        migrate.upgrade(old_url, wait_s=0)
    assert f"by process {reader.info.backend_pid} (user " in str(caught.value)
    assert ", report, idle in transaction): end these sessions" in str(caught.value)
    assert migrate.current(old_url) == OLD
    reader.commit()
    assert migrate.upgrade(old_url, wait_s=0) == NEXT


def test_a_damaged_schema_is_not_upgraded_with_the_damage_named(old_url: str) -> None:
    with psycopg.connect(old_url, connect_timeout=10) as connection:
        connection.execute("drop index txmsg.retry_due")
    with pytest.raises(StorageError, match="missing or changed: index retry_due: recreate it"):
        migrate.upgrade(old_url)
    assert migrate.current(old_url) == OLD


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
