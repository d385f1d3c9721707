"""Wrong input of operators: each command ends with one line that names the remedy, and exit status 1 or 2."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql
from sqlalchemy.engine import make_url

from tests.conftest import PostgresServer
from tests.errors_page import is_documented
from txmsg.broker import migrate
from txmsg.broker.config import BrokerConfig
from txmsg.checks import database
from txmsg.errors import MisuseError, StorageError
from txmsg.ops.cli.main import main

SECRET = "geheim"
SECONDS = "; give a number of seconds, or 30s, 12h, 7d"
BYTES = "; give bytes, or 512KiB, 64MiB, 100GiB"


def failing(*args: str, status: int = 1) -> str:
    """Return the error line of `txmsg` with this exit status; checks that it contains no secret."""
    result = CliRunner().invoke(main, args)
    assert result.exit_code == status, result.output
    assert not isinstance(result.exception, Exception), result.exception
    lines: list[str] = result.stderr.splitlines()
    assert len(lines) == 1 or status == 2
    assert SECRET not in result.output
    return lines[-1].removeprefix("Error: ")


@pytest.fixture
def poor_role(postgres: PostgresServer, database_url: str) -> Iterator[str]:
    """The URL of `database_url` for a role that may only connect."""
    name = f"poor_{os.getpid()}"
    role = sql.Identifier(name)
    with psycopg.connect(database_url, autocommit=True, connect_timeout=10) as connection:
        connection.execute(sql.SQL("drop role if exists {}").format(role))
        connection.execute(sql.SQL("create role {} login password {}").format(role, SECRET))
        yield make_url(database_url).set(username=name, password=SECRET).render_as_string(hide_password=False)
        connection.execute(sql.SQL("drop owned by {}").format(role))
        connection.execute(sql.SQL("drop role {}").format(role))


# ---- options of a broker


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "nonsense"], "listen 'nonsense' is not of the form HOST:PORT, such as localhost:7700"),
        (["--listen", "http://0.0.0.0:7700"], "leave out the part before ://"),
        (["--listen", "0.0.0.0:77000"], "listen '0.0.0.0:77000' has port 77000: ports end at 65535"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_impossible_option_is_refused_before_anything_starts(options: list[str], words: str) -> None:
    assert words in failing("broker", *options)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--storage-wait-s", "nan", f"the value 'nan' is not a duration of at least 0s{SECONDS}"),
        ("--first-check-s", "inf", f"the value 'inf' is not a duration from 0s to 18250d{SECONDS}"),
        ("--first-check-s", "-1", f"the value '-1' is not a duration from 0s to 18250d{SECONDS}"),
        ("--check-interval-s", "inf", f"the value 'inf' is not a duration above 0s and below 18250d{SECONDS}"),
        ("--check-interval-s", "0", f"the value '0' is not a duration above 0s and below 18250d{SECONDS}"),
        ("--topic-queues", "0", "the value '0' is not a whole number from 1 to 1024"),
        ("--topic-queues", "1025", "the value '1025' is not a whole number from 1 to 1024"),
        ("--body-size-max", "0", f"the value '0' is not a size from 1 to 32MiB{BYTES}"),
        ("--body-size-max", "33554433", f"the value '33554433' is not a size from 1 to 32MiB{BYTES}"),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_option(option: str, value: str, words: str) -> None:
    assert failing("broker", option, value, status=2) == f"Invalid value for '{option}': {words}."


@pytest.mark.parametrize(
    "settings",
    [
        {"segment_age_s": 60.0},
        {"segment_age_s": float("nan")},
        {"checks_max": 0},
        {"topic_queues": 0},
        {"topic_queues": 1025},
        {"body_size_bytes_max": 0},
        {"body_size_bytes_max": 33_554_433},
        {"first_check_s": float("nan")},
        {"check_interval_s": float("inf")},
        {"check_interval_s": 0.0},
        {"check_timeout_s": 0.0},
        {"stop_timeout_s": -1.0},
        {"batch_items_max": 0},
    ],
    ids=str,
)
def test_contradicting_settings_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(MisuseError) as caught:
        BrokerConfig(storage="", **settings)  # type: ignore[arg-type]
    assert next(iter(settings)) in str(caught.value)
    assert is_documented(caught.value), str(caught.value)


def test_a_check_interval_longer_than_the_no_client_timeout_is_refused() -> None:
    with pytest.raises(MisuseError, match="make no_client_park_s the longer one") as caught:
        BrokerConfig(storage="", check_interval_s=86_400.0)
    assert is_documented(caught.value), str(caught.value)


def test_an_option_of_the_wrong_type_prints_the_usage() -> None:
    assert "the value 'few' is not a whole number from 1 to 1024" in failing(
        "broker", "--topic-queues", "few", status=2
    )
    assert "leave it out with --storage" in failing("broker", "--storage", "x", "--data-dir", "y", status=2)
    assert "-5 is not in the range x>=0" in failing("demo", "registration", "--slow-ms", "-5", status=2)
    assert "'7' is not the id of a transaction or message" in failing("half", "show", "7", status=2)
    assert "is not in the range 1<=x<=1024" in failing("topic", "create", "t", "--queues", "0", status=2)


def test_an_invalid_broker_address_is_refused_by_every_command() -> None:
    for command in (["half", "list"], ["topic", "list"], ["topic", "create", "t"]):
        assert failing(*command, "--broker", "nowhere") == (
            "broker address 'nowhere' is not of the form HOST:PORT, such as localhost:7700"
        )
        assert "no answer from a broker at localhost:1" in failing(*command, "--broker", "localhost:1")


# ---- the database


@pytest.mark.parametrize("command", [["broker"], ["db", "upgrade"], ["db", "check"]], ids=" ".join)
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "'nonsense' is not a database URL: write postgresql://user@host:5432/database"),
        (f"postgres//u:{SECRET}@h/d", "'postgres//u:***@h/d' is not a database URL"),
        ("mysql://u@h/d", "the Notify database mysql://u@h/d is not PostgreSQL"),
    ],
    ids=["nonsense", "secret in nonsense", "mysql"],
)
def test_an_invalid_database_url_is_refused_at_once(command: list[str], url: str, words: str) -> None:
    said = failing(*command, "--storage", url)
    assert words in said
    assert is_documented(StorageError(said)), said


@pytest.mark.parametrize("command", ["upgrade", "check"])  # a broker waits for its database
@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1:1"])
def test_an_unreachable_database_is_named_without_its_password(command: str, host: str) -> None:
    said = failing("db", command, "--storage", f"postgresql://u:{SECRET}@{host}/d")
    assert f"postgresql://u:***@{host}/d cannot be used: " in said
    assert is_documented(StorageError(said)), said


def test_a_database_that_does_not_exist_is_named(database_url: str) -> None:
    url = make_url(database_url).set(database="no_such_database").render_as_string(hide_password=False)
    said = failing("db", "check", "--storage", url)
    assert 'database "no_such_database" does not exist' in said
    assert is_documented(StorageError(said)), said


def test_a_role_without_rights_is_refused_with_the_missing_rights(poor_role: str) -> None:
    said = failing("db", "upgrade", "--storage", poor_role)
    assert "permission denied for database" in said
    assert "`grant create on database ... to ...` lets the role make the schema txmsg" in said
    assert is_documented(StorageError(said)), said


@pytest.mark.usefixtures("fsync")
def test_a_role_with_create_is_enough_and_replication_is_only_a_note(database_url: str, poor_role: str) -> None:
    name, database = make_url(poor_role).username or "", make_url(database_url).database or ""
    with psycopg.connect(database_url, autocommit=True, connect_timeout=10) as connection:
        grant = sql.SQL("grant create on database {} to {}")
        connection.execute(grant.format(sql.Identifier(database), sql.Identifier(name)))
    migrate.upgrade(poor_role)
    result = CliRunner().invoke(main, ["db", "check", "--storage", poor_role, "--json"])
    assert result.exit_code == 0, result.output
    checked = json.loads(result.output)
    assert checked["ok"]
    [right] = [each for each in checked["findings"] if each["name"] == "replication right"]
    assert (right["value"], right["fix"]) == ("false", "")
    assert "only `txmsg tailer` wants alter role ... replication" in right["note"]
    assert "txmsg tailer" in CliRunner().invoke(main, ["db", "check", "--storage", poor_role]).output


def test_a_role_without_table_privileges_is_refused_with_the_reason(database_url: str, poor_role: str) -> None:
    migrate.upgrade(database_url)
    said = failing("broker", "--storage", poor_role, "--listen", "127.0.0.1:0")
    assert "permission denied for schema txmsg" in said
    assert "run the broker as the role that ran `txmsg db upgrade`" in said
    assert "LINE" not in said
    assert "revision" not in said  # the failed statement is not shown
    assert is_documented(StorageError(said)), said
    name = make_url(poor_role).username or ""
    with psycopg.connect(database_url, autocommit=True, connect_timeout=10) as connection:
        role = sql.Identifier(name)
        connection.execute(sql.SQL("grant usage on schema txmsg to {}").format(role))
        connection.execute(sql.SQL("grant select on txmsg.revision to {}").format(role))
    said = failing("broker", "--storage", poor_role, "--listen", "127.0.0.1:0")
    assert "permission denied for table notify_db" in said
    assert "run the broker as the role that ran `txmsg db upgrade`" in said
    assert is_documented(StorageError(said)), said


def test_a_server_that_is_too_old_is_refused_but_can_be_checked(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "VERSION_MIN", 990_000)  # no server has that version
    for command in (["broker"], ["db", "upgrade"]):
        said = failing(*command, "--storage", database_url)
        assert ": use 99 or newer" in said
        assert is_documented(StorageError(said)), said
    result = CliRunner().invoke(main, ["db", "check", "--storage", database_url])
    assert (result.exit_code, "use PostgreSQL 15+" in result.output) == (1, True)


# ---- the business database


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("foo", "--database 'foo' is not a database URL: write it as SQLAlchemy does, such as postgresql+psycopg://"),
        (f"foo://u:{SECRET}/@h/d", "--database 'foo://u:***@h/d' is not a database URL"),
        (f"sqlite+psycopg://u:{SECRET}@h:x/d", "--database 'sqlite+psycopg://u:***@h:x/d' is not a database URL"),
        ("oracle+oracledb://u@h/d", "is not installed (No module named 'oracledb'): run `pip install oracledb`, or"),
    ],
)
def test_an_invalid_database_url_is_distinguished_from_a_missing_driver(url: str, words: str) -> None:
    said = failing("fence", "id", "--database", url)
    assert words in said
    assert is_documented(StorageError(said)), said


def test_a_misspelt_sqlite_file_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "nothere.db"
    said = failing("fence", "id", "--database", f"sqlite:///{path}")
    assert f"there is no SQLite database {path}: check the path" in said
    assert is_documented(StorageError(said)), said
    assert not path.exists()


def test_an_invalid_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in failing("broker", "--data-dir", str(tmp_path / "file"), status=2)
    assert "cannot" in failing("broker", "--data-dir", str(tmp_path / "file" / "below"))
