"""Each check of the database finds its planted cause in a real one, and nothing in a healthy one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy.engine import make_url

from tests.conftest import PostgresServer
from tests.ports import own_port
from tests.waiting import until
from txmsg.checks.check import CRITICAL, WARNING, Finding
from txmsg.checks.database import LOOKED_INTO
from txmsg.ops.doctor import database, machine
from txmsg.ops.doctor.probe import Probe, examine


def found_by(check: Probe[database.ProbedDatabase], url: str) -> list[Finding]:
    return list(examine((check,), lambda: database._session(url)))


@pytest.fixture
def session(notify_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:
        yield connection


Session = psycopg.Connection[tuple[object, ...]]


@pytest.mark.usefixtures("fsync")
def test_healthy_database_has_the_only_finding_that_no_broker_runs(notify_url: str) -> None:
    # Not those of the server or the machine, which other tests use meanwhile.
    others = {"connections", "disk-nearly-full", "data-permissions", "failover-slots", "data-checksums"}
    found = {each.check.name: each for each in database.probe_database(notify_url)}
    assert {name for name in found if not name.startswith("slot-")} - others == {"nobody-delivers"}
    assert found["nobody-delivers"].severity is CRITICAL


def test_refused_login_and_unreachable_server_have_different_fixes(notify_url: str) -> None:
    away = make_url(notify_url).difference_update_query(["host"]).set(host="127.0.0.1", port=own_port())
    [found] = database.probe_database(away.render_as_string(hide_password=False))
    assert found.fix.startswith("start PostgreSQL")
    unknown = make_url(notify_url).set(username="nobody_has_this_name")
    [found] = database.probe_database(unknown.render_as_string(hide_password=False))
    assert found.fix.startswith("PostgreSQL runs and refuses this: correct user, password and database")
    assert "start PostgreSQL" not in found.fix + found.what


def test_a_database_without_tables_is_the_only_finding(database_url: str) -> None:
    [found] = database.probe_database(database_url)
    assert (found.check.name, found.severity) == ("no-tables", CRITICAL)
    assert "txmsg db upgrade" in found.fix


def test_missing_database_is_the_only_finding() -> None:
    [found] = database.probe_database("postgresql://nobody@127.0.0.1:1/none")
    assert (found.check.name, found.severity) == ("database-reachable", CRITICAL)
    assert "127.0.0.1" in found.what


def test_live_broker_is_found(notify_url: str, session: Session) -> None:
    assert database.address_of_a_broker(notify_url) is None
    session.execute(
        "insert into txmsg.broker (id, address, state, release, schema_revision, expires_at) "
        "values ('b', 'host:7700', 'active', '1', '0001', now() + interval '1 hour')"
    )
    assert found_by(database.live_broker, notify_url) == []
    assert database.address_of_a_broker(notify_url) == "host:7700"
    session.execute("update txmsg.broker set state = 'draining'")
    assert [each.check.name for each in found_by(database.live_broker, notify_url)] == ["nobody-delivers"]


def test_a_missing_index_is_found(notify_url: str, session: Session) -> None:
    session.execute("drop index txmsg.retry_due")
    found = [each.what for each in found_by(database.database_settings, notify_url) if "schema" in each.what]
    assert len(found) == 1
    assert "retry_due" in found[0]


def test_an_invalid_index_is_found(notify_url: str, session: Session) -> None:
    assert found_by(database.invalid_indexes, notify_url) == []
    session.execute("update pg_index set indisvalid = false where indexrelid = 'txmsg.retry_due'::regclass")
    [found] = found_by(database.invalid_indexes, notify_url)
    assert found.what == "index retry_due is invalid"
    assert "reindex index concurrently txmsg.retry_due" in found.fix


@contextmanager
def server_setting(session: Session, name: str, value: str) -> Iterator[None]:
    """Change a setting of this worker's server within the block."""

    def becomes(expected: str) -> None:
        session.execute("select pg_reload_conf()")
        until(lambda: session.execute("select current_setting(%s)", [name]).fetchone() == (expected,))

    [before] = session.execute("select current_setting(%s)", [name]).fetchone() or ("",)
    session.execute(f"alter system set {name} = {value}".encode())
    try:
        becomes(value)
        yield
    finally:
        session.execute(f"alter system reset {name}".encode())
        becomes(str(before))


@pytest.mark.parametrize(
    ("setting", "check"), [("full_page_writes", database.durability), ("autovacuum", database.autovacuum)]
)
def test_a_dangerous_setting_of_the_server_is_found(
    setting: str, check: Probe[database.ProbedDatabase], notify_url: str, session: Session
) -> None:
    expected = f"{setting} is off"
    assert expected not in {each.what for each in found_by(check, notify_url)}
    with server_setting(session, setting, "off"):
        found = {each.what: each.severity for each in found_by(check, notify_url)}
    assert found[expected] is CRITICAL


def test_few_free_connections_are_found(notify_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_CONNECTIONS_SHARE", 0.001)
    [found] = found_by(database.connections, notify_url)
    assert "connections are used" in found.what


def test_fewer_connections_than_brokers_may_need_are_found(
    notify_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_CONNECTIONS_SHARE", 2.0)
    assert found_by(database.connections, notify_url) == []
    session.execute(
        "insert into txmsg.broker (id, address, release, schema_revision, expires_at) "
        "select 'b' || n, 'h:' || n, '1', '1', now() + interval '1 hour' from generate_series(1, 200) n"
    )
    [found] = found_by(database.connections, notify_url)
    assert found.what.startswith("200 brokers may have 3400 connections, others have ")


@contextmanager
def slot(session: Session, name: str) -> Iterator[None]:
    session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    yield
    session.execute("select pg_drop_replication_slot(%s)", [name])


def test_unread_slot_of_a_mirror_is_found(notify_url: str, session: Session) -> None:
    name = f"txmsg_doctor_{time.monotonic_ns()}"
    with slot(session, name):
        found = [each for each in found_by(database.replication_slots, notify_url) if name in each.what]
    assert any(each.what.startswith(f"nothing reads slot {name}, which keeps") for each in found)
    assert [each for each in found_by(database.replication_slots, notify_url) if name in each.what] == []


def test_foreign_slot_that_retains_much_wal_is_found(
    notify_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"other_{time.monotonic_ns()}"
    with slot(session, name):
        assert [each for each in found_by(database.replication_slots, notify_url) if name in each.what] == []
        monkeypatch.setattr(database, "_UNREAD_BYTES_MAX", -1)
        [found] = [each for each in found_by(database.replication_slots, notify_url) if name in each.what]
    assert f"select pg_drop_replication_slot('{name}')" in found.fix


def test_active_slot_that_retains_much_wal_is_found(
    notify_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"other_{time.monotonic_ns()}"
    monkeypatch.setattr(database, "DEFAULTS", SimpleNamespace(slot_kept_size_bytes=-1, slot_safe_size_bytes=0))
    slots = database._SLOTS.replace("s.active", "true as active")
    monkeypatch.setattr(database, "_SLOTS", slots)
    with slot(session, name):
        [found] = [each for each in found_by(database.replication_slots, notify_url) if name in each.what]
    assert "of write-ahead log: its reader is behind" in found.what


def test_an_old_transaction_is_found(notify_url: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_OPEN_S_MAX", 0)
    with session.transaction():
        session.execute("select 1")
        [found] = found_by(database.long_transactions, notify_url)
        assert found.what.startswith(f"process {session.info.backend_pid} (user")
        assert "idle in transaction" in found.what
        assert f"pg_terminate_backend({session.info.backend_pid})" in found.fix
    assert found_by(database.long_transactions, notify_url) == []


def test_old_transactions_beyond_the_named_ones_are_counted(notify_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_OPEN_S_MAX", 0)
    with ExitStack() as sessions:
        for _ in range(7):
            sessions.enter_context(psycopg.connect(notify_url, connect_timeout=10)).execute("select 1")
        *_, found = found_by(database.long_transactions, notify_url)
    assert found.what.startswith("2 more transactions have been open")


def test_dead_rows_are_found(notify_url: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_DEAD_ROWS_MAX", 50)
    assert found_by(database.dead_rows, notify_url) == []
    session.execute("create table txmsg.much as select generate_series(1, 100) as n")
    session.execute("delete from txmsg.much")
    session.execute("select pg_stat_force_next_flush()")
    [found] = found_by(database.dead_rows, notify_url)
    assert found.what == "table much has 100 dead rows, and 0 live ones"


def test_old_transaction_ids_are_found(notify_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_by(database.transaction_ids, notify_url) == []
    monkeypatch.setattr(database, "_AGE_MAX", 1)
    [found] = found_by(database.transaction_ids, notify_url)
    assert found.severity is CRITICAL


def test_wrong_clock_is_found(notify_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_by(database.database_clock, notify_url) == []
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 60)
    [found] = found_by(database.database_clock, notify_url)
    assert found.what == "the clock of the database is 60.0 s ahead of that of this machine"


def test_slow_answer_is_not_mistaken_for_a_wrong_clock() -> None:
    assert list(machine.different_clock("b", now=104.5, begun=100, ended=105)) == []


def test_disk_of_a_local_server_is_checked(
    notify_url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []

    def free_space(directory: object, what: str) -> Iterator[Finding]:
        looked_at.append(what)
        yield from ()

    monkeypatch.setattr(database, "free_space", free_space)
    found_by(database.data_directory, notify_url)
    assert looked_at == (["the database"] if type(postgres).__name__ == "EmbeddedPostgres" else looked_at)


def test_data_directory_readable_by_other_users_is_a_warning(
    notify_url: str, session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [(directory,)] = session.execute("show data_directory").fetchall()
    if directory == "/proc/self/cwd":  # the embedded server
        assert LOOKED_INTO not in {each.check for each in found_by(database.data_directory, notify_url)}
    monkeypatch.setattr(database, "_directory", lambda _: iter([tmp_path]))
    tmp_path.chmod(0o750)
    [found] = [each for each in found_by(database.data_directory, notify_url) if each.check is LOOKED_INTO]
    assert (found.severity, found.fix) == (WARNING, f"chmod 700 {tmp_path}")


def test_a_mirror_without_a_slot_and_a_stopped_queue_are_found(notify_url: str, session: Session) -> None:
    assert found_by(database.mirrors, notify_url) == []
    session.execute("insert into txmsg.mirror (name, include, exclude) values ('m', '{*}', '{}')")
    session.execute("insert into txmsg.topic (name, queue_count, ordered_queues) values ('t', 1, 1)")
    session.execute("insert into txmsg.queue (topic_id, number) select id, 0 from txmsg.topic")
    session.execute(
        "insert into txmsg.mirror_queue (mirror, queue, next_offset, stopped) select 'm', id, 0, 'it differs' "
        "from txmsg.queue"
    )
    found = {each.what for each in found_by(database.mirrors, notify_url)}
    assert found == {
        "mirror m has no replication slot",
        "mirror m has stopped at topic t queue 0: it differs",
    }
