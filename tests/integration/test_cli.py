"""The `txmsg` command as a person uses it: real processes, real broker, real database."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from txmsg.embedded import EmbeddedPostgres
from txmsg.message import new_transaction_id
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1 import txmsg_pb2_grpc as rpc

TIMEOUT_S = 60


def txmsg(*args: str, status: int = 0, answer: str | None = None) -> str:
    """Runs the command; returns stdout if `status` is 0, else stderr."""
    command = [sys.executable, "-m", "txmsg.cli.main", *args]
    done = subprocess.run(command, input=answer, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


def store_half(broker: BrokerProcess, *, group: str = "shop", body: bytes = b'{"n":1}') -> str:
    """Stores a half message as a client would, and returns its transaction id."""
    transaction_id = new_transaction_id()
    batch = pb.MessageColumns(
        topic="order.placed",
        transaction_ids=transaction_id.bytes,
        body=[body],
        key=["k1"],
        tag=["t1"],
        headers=[pb.Headers(values={"h": "1"}).SerializeToString()],
        born_at_us=[1_700_000_000_000_000],
    )
    with grpc.insecure_channel(broker.address) as channel:
        notify = rpc.NotifyStub(channel)
        reply = notify.Send(pb.SendRequest(group=group, half=True, batches=[batch]), timeout=10)
    assert not reply.errors
    return str(transaction_id)


def listed(broker: BrokerProcess, *options: str) -> list[str]:
    halves = json.loads(txmsg("half", "list", "--broker", broker.address, "--json", *options))["halves"]
    return [half["transaction_id"] for half in halves]


# ---- help and errors


def test_help_loads_neither_grpc_nor_a_database_driver() -> None:
    program = (
        "import sys; from txmsg.cli.main import main; main(['--help'], standalone_mode=False); "
        "print(sorted({'grpc', 'sqlalchemy', 'psycopg', 'alembic', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "command",
    [
        "",
        "broker",
        "db upgrade",
        "db current",
        "db check",
        "half list",
        "half show",
        "half commit",
        "half rollback",
        "topic create",
        "topic list",
        "topic raise",
    ],
)
def test_help_has_an_example(command: str) -> None:
    lines = txmsg(*command.split(), "--help").splitlines()
    example = lines[lines.index("  Example:") + 1]
    assert example.startswith(f"    txmsg {command}".rstrip())


def test_unknown_command_is_answered_with_the_known_ones() -> None:
    assert "no command 'brokr': choose one of broker, db, demo, fence, half, topic" in txmsg("brokr", status=2)


def test_version_is_printed() -> None:
    assert txmsg("--version").startswith("txmsg ")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["db", "current", "--storage", "postgresql://localhost:1/x"], "localhost:1/x cannot be used"),
        (["db", "current", "--storage", "nonsense"], "'nonsense' is not a database URL"),
        (["half", "list", "--broker", "localhost:1"], "no answer from a broker at localhost:1"),
        (["broker", "--listen", "nowhere"], "not of the form HOST:PORT"),
    ],
)
def test_error_is_one_line_on_stderr_and_exit_status_1(args: list[str], text: str) -> None:
    [line] = txmsg(*args, status=1).splitlines()
    assert line.startswith("Error: ")
    assert text in line


# ---- db


def test_db_upgrade_makes_a_database_that_current_and_check_approve(database_url: str) -> None:
    assert json.loads(txmsg("db", "current", "--storage", database_url, "--json"))["revision"] is None
    revision = json.loads(txmsg("db", "upgrade", "--storage", database_url, "--json"))["revision"]
    assert json.loads(txmsg("db", "upgrade", "--storage", database_url, "--json"))["revision"] == revision
    assert json.loads(txmsg("db", "current", "--storage", database_url, "--json"))["revision"] == revision
    assert txmsg("db", "current", "--storage", database_url).startswith(revision)
    assert json.loads(txmsg("db", "check", "--storage", database_url, "--json"))["ok"]


def test_db_check_says_what_to_do_and_fails(database_url: str) -> None:
    command = [sys.executable, "-m", "txmsg.cli.main", "db", "check", "--storage", database_url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert "txmsg db upgrade" in done.stdout


# ---- broker


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_broker_ends_in_order_by(how: signal.Signals, broker: BrokerProcess) -> None:
    assert broker.end(how) == 0
    assert "Traceback" not in broker.log.read_text()


def test_broker_that_was_killed_starts_again_on_the_same_port(broker: BrokerProcess) -> None:
    address = broker.address
    half = store_half(broker)
    broker.restart(kill=True)
    assert broker.address == address
    assert listed(broker) == [half]


def test_broker_refuses_a_database_without_tables_and_names_the_remedy(database_url: str) -> None:
    [line] = txmsg("broker", "--storage", database_url, "--listen", "127.0.0.1:0", status=1).splitlines()
    assert "run `txmsg db upgrade --storage postgresql://" in line


def test_broker_refuses_a_port_in_use(broker: BrokerProcess) -> None:
    assert broker.storage is not None
    error = txmsg("broker", "--storage", broker.storage, "--listen", broker.address, status=1)
    assert f"Error: cannot listen on {broker.address}" in error


def test_broker_without_storage_brings_its_own_database_and_ends_it(tmp_path: Path) -> None:
    broker = BrokerProcess(None, "--data-dir", str(tmp_path / "data"), log=tmp_path / "broker.log")
    try:
        broker.start()
        half = store_half(broker)
        broker.restart(kill=True)  # the next one shares or recovers the database of the killed one
        assert listed(broker) == [half]
        assert broker.stop() == 0
    finally:
        broker.kill()
    assert not EmbeddedPostgres(tmp_path / "data" / "pg").running


# ---- half


def test_half_list_shows_what_waits_and_filters_by_group(broker: BrokerProcess) -> None:
    assert "no half message waits" in txmsg("half", "list", "--broker", broker.address)
    first, second = store_half(broker), store_half(broker, group="other")
    assert listed(broker) == [first, second]
    assert listed(broker, "--group", "other") == [second]
    assert listed(broker, "--limit", "1") == [first]
    assert listed(broker, "--parked") == []
    table = txmsg("half", "list", "--broker", broker.address)
    assert first in table
    assert "order.placed" in table


def test_half_show_has_headers_and_body(broker: BrokerProcess) -> None:
    transaction_id = store_half(broker, body=b"caf\xc3\xa9 \xff [red]")
    [half] = json.loads(txmsg("half", "show", transaction_id, "--broker", broker.address, "--json"))["halves"]
    assert half["transaction_id"] == transaction_id
    assert half["headers"] == {"h": "1"}
    assert half["body"] == "café \\xff [red]"
    assert (half["group"], half["topic"], half["key"], half["tag"]) == ("shop", "order.placed", "k1", "t1")
    assert half["born_at"] == "2023-11-14T22:13:20+00:00"
    assert "café \\xff [red]" in txmsg("half", "show", transaction_id, "--broker", broker.address)


def test_half_show_of_an_unknown_transaction_fails(broker: BrokerProcess) -> None:
    error = txmsg("half", "show", str(new_transaction_id()), "--broker", broker.address, status=1)
    assert "there is no half message of transaction" in error


def test_decision_of_a_person_is_final(broker: BrokerProcess) -> None:
    committed, dropped = store_half(broker), store_half(broker)
    where = ("--broker", broker.address)
    assert f"{committed} committed" in txmsg("half", "commit", committed, *where, "--yes")
    assert f"{dropped} rolled back" in txmsg("half", "rollback", dropped, *where, "--yes")
    assert listed(broker) == []
    txmsg("half", "rollback", committed, *where, "--yes", status=1)
    txmsg("half", "commit", dropped, *where, "--yes", status=1)


def test_decision_is_asked_for_and_can_be_declined(start_broker: StartBroker) -> None:
    broker = start_broker("--first-check-s", "600")
    half = store_half(broker)
    txmsg("half", "commit", half, "--broker", broker.address, answer="n\n", status=1)
    assert listed(broker) == [half]
    assert "committed" in txmsg("half", "commit", half, "--broker", broker.address, answer="y\n")
