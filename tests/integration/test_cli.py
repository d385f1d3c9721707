"""The `txmsg` command as users run it: real processes, a real broker, a real database."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.cli_harness import TIMEOUT_S, json_of, listed, store_half, txmsg
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.ops.cli.main import main

# ---- help and errors


def test_help_loads_neither_the_protocol_nor_a_database_driver() -> None:
    program = (
        "import sys; from txmsg.ops.cli.main import main; main(['--help'], standalone_mode=False); "
        "print(sorted({'asyncio', 'google.protobuf', 'sqlalchemy', 'psycopg', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_broker_loads_neither_sqlalchemy_nor_http2() -> None:
    """SQLAlchemy would double start time and memory; the others are needed by gateways only."""
    program = (
        "import sys, txmsg.ops.cli.broker, txmsg.broker.server; "
        "print(sorted({'sqlalchemy', 'grpc', 'h2', 'txmsg.rocketmq'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("group", ["", "db", "dead-letter", "demo", "fence", "group", "half", "message", "topic"])
def test_help_shows_the_whole_summary_of_each_command(group: str) -> None:
    result = CliRunner().invoke(main, [*group.split(), "--help"])
    assert result.exit_code == 0
    commands = result.output.partition("Commands:\n")[2]
    assert len(commands.splitlines()) >= 2
    assert "..." not in commands


@pytest.mark.parametrize(
    ("command", "variable"),
    [
        ("broker", "TXMSG_STORAGE"),
        ("db check", "TXMSG_STORAGE"),
        ("fence id", "TXMSG_FENCE_DATABASE"),
        ("half list", "TXMSG_BROKERS"),
        ("topic list", "TXMSG_BROKERS"),
    ],
)
def test_help_names_the_variable_of_an_option(command: str, variable: str) -> None:
    assert f"env var: {variable}" in " ".join(CliRunner().invoke(main, [*command.split(), "--help"]).output.split())


def test_an_unknown_command_lists_the_known_ones() -> None:
    assert "no command 'brokr': choose one of acl, agent, alert, audit, broker, cert, cluster, " in txmsg(
        "brokr", status=2
    )


def test_the_version_is_printed() -> None:
    assert txmsg("--version").startswith("txmsg ")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["db", "check", "--storage", "postgresql://localhost:1/x"], "localhost:1/x cannot be used"),
        (["db", "check", "--storage", "nonsense"], "'nonsense' is not a database URL"),
        (["half", "list", "--broker", "localhost:1"], "no answer from a broker at localhost:1"),
        (["broker", "--listen", "nowhere"], "not of the form HOST:PORT"),
    ],
)
def test_an_error_is_one_line_on_stderr_with_exit_status_1(args: list[str], text: str) -> None:
    [line] = txmsg(*args, status=1).splitlines()
    assert line.startswith("Error: ")
    assert text in line


# ---- db


@pytest.mark.usefixtures("fsync")
def test_db_upgrade_creates_a_database_that_db_check_accepts(database_url: str) -> None:
    revision = json.loads(txmsg("db", "upgrade", "--storage", database_url, "--json"))["revision"]
    assert json_of("db", "upgrade", "--storage", database_url)["revision"] == revision
    checked = json.loads(txmsg("db", "check", "--storage", database_url, "--json"))
    assert checked["ok"]
    assert {each["name"]: each["value"] for each in checked["findings"]}["revision"] == revision


def test_db_check_fails_with_the_remedy(database_url: str) -> None:
    command = [sys.executable, "-m", "txmsg.ops.cli.main", "db", "check", "--storage", database_url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert "txmsg db upgrade" in done.stdout


# ---- broker


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_a_broker_stops_cleanly_on_signal(how: signal.Signals, broker: BrokerProcess) -> None:
    assert broker.end(how) == 0
    assert "Traceback" not in broker.log.read_text()


def test_a_killed_broker_restarts_on_the_same_port(broker: BrokerProcess) -> None:
    address = broker.address
    half = store_half(broker)
    broker.restart(kill=True)
    assert broker.address == address
    assert listed(broker) == [half]


def test_a_broker_refuses_a_database_without_tables_with_the_remedy(database_url: str) -> None:
    [line] = txmsg("broker", "--storage", database_url, "--listen", "127.0.0.1:0", status=1).splitlines()
    assert "run `txmsg db upgrade --storage postgresql://" in line


@pytest.mark.usefixtures("fsync")
@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgresql+asyncpg", "postgres"])
def test_a_broker_accepts_common_forms_of_database_urls(
    scheme: str, start_broker: StartBroker, notify_url: str
) -> None:
    url = f"{scheme}://{notify_url.partition('://')[2]}"
    assert json_of("db", "check", "--storage", url)["ok"]
    broker = start_broker(storage=url)
    half = store_half(broker)
    assert listed(broker) == [half]


def test_a_broker_refuses_a_port_in_use(broker: BrokerProcess) -> None:
    assert broker.storage is not None
    error = txmsg("broker", "--storage", broker.storage, "--listen", broker.address, status=1)
    assert f"Error: cannot listen on {broker.address}" in error


def test_a_broker_without_storage_starts_and_stops_an_embedded_database(tmp_path: Path) -> None:
    with BrokerProcess(None, "--data-dir", str(tmp_path / "data"), log=tmp_path / "broker.log") as broker:
        half = store_half(broker)
        broker.restart(kill=True)  # the next one shares or recovers the database of the killed one
        assert listed(broker) == [half]
        assert broker.stop() == 0
    assert not EmbeddedPostgres(tmp_path / "data" / "pg").running
