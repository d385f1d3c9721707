"""Brokers started with errors, too early, twice, or on a database of another release."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.neighbour import neighbour
from tests.acceptance.served import served
from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.errors_page import rows_of_code
from tests.postgres_proxy import CUT_BEFORE, FORWARD, PostgresProxy, Request, Verdict
from tests.waiting import until
from txmsg.broker.config import BrokerConfig
from txmsg.client import Producer
from txmsg.message import Message

TIMEOUT_S = 60
NOWHERE = "postgresql://notify@127.0.0.1:1/notify"


def is_promised(kind: str, text: str) -> bool:
    """Return True if the code has this text for this class."""
    return any(row.kind == kind and row.pattern.fullmatch(text) for row in rows_of_code())


def error_of(*args: str) -> str:
    """Run the command, which must fail, and return the error that it prints."""
    command = [sys.executable, "-m", "txmsg.ops.cli.main", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1].removeprefix("Error: ")


@contextmanager
def started(log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a broker process that need not become ready."""
    command = [sys.executable, "-m", "txmsg.ops.cli.main", "broker", "--listen", "127.0.0.1:0", *options]
    with log.open("wb") as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process:
        try:
            yield process
        finally:
            process.kill()


# ---- the database at the start


def test_a_database_that_stays_unavailable_is_an_error_after_the_wait(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(log, "--storage", NOWHERE, "--storage-wait-s", "1.5") as process:
        assert process.wait(TIMEOUT_S) == 1
    lines = log.read_text().splitlines()
    assert "trying for" in lines[0]
    error = lines[-1].removeprefix("Error: ")
    assert "127.0.0.1:1/notify cannot be used" in error
    assert is_promised("StorageError", error), error


def test_a_database_that_refuses_is_an_error_at_once(postgres: PostgresServer) -> None:
    error = error_of("broker", "--storage", postgres.url("nobody_made_this"), "--storage-wait-s", "600")
    assert 'database "nobody_made_this" does not exist' in error
    assert is_promised("StorageError", error), error


def test_a_broker_started_before_its_database_waits_for_it(notify_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with PostgresProxy(notify_url) as proxy:
        proxy.refuse()
        with started(log, "--storage", proxy.url, "--storage-wait-s", "60") as process:
            until(lambda: "trying for" in log.read_text())
            proxy.accept()
            assert process.stdout is not None
            address = process.stdout.readline().decode().removeprefix("listening on ").strip()
            with Producer(address, group="shop") as producer:
                producer.send(Message("orders", b"1"))
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0


def test_a_broker_whose_database_fails_during_start_waits_for_it(notify_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with PostgresProxy(notify_url) as proxy:
        cuts = iter(("txmsg.revision", "begin_incarnation", "from txmsg.segment"))
        to_cut = [next(cuts)]

        def judge(request: Request) -> Verdict:
            """Cut each kind of request of a starting broker once."""
            if to_cut and to_cut[0] in request.sql:
                to_cut[:] = [each for each in (next(cuts, None),) if each]
                return CUT_BEFORE
            return FORWARD

        proxy.on_request = judge
        proxy.refuse(1)
        with started(log, "--storage", proxy.url, "--storage-wait-s", "60") as process:
            assert process.stdout is not None
            assert process.stdout.readline().decode().startswith("listening on "), log.read_text()
            assert not to_cut, "it was cut off at each of them"
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0


def test_a_broker_waiting_for_its_database_can_be_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(log, "--storage", NOWHERE, "--storage-wait-s", "600") as process:
        until(lambda: "trying for" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


# ---- another release


@pytest.fixture
def newer_url(notify_url: str) -> str:
    """A Notify database upgraded by a later release."""
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("update txmsg.revision set version_num = '9999'")
        connection.execute("update txmsg.notify_db set works_from = '9999'")
    return notify_url


@pytest.mark.parametrize("command", ["broker --listen 127.0.0.1:0", "db upgrade"])
def test_a_downgraded_package_refuses_a_newer_database_and_changes_nothing(newer_url: str, command: str) -> None:
    error = error_of(*command.split(), "--storage", newer_url)
    assert "revision 9999, newer than this release of txmsg knows (up to " in error
    assert is_promised("SchemaMismatch", error), error
    with psycopg.connect(newer_url, connect_timeout=10) as connection:
        assert connection.execute("select version_num from txmsg.revision").fetchall() == [("9999",)]


def test_db_check_of_a_downgraded_package_names_the_remedy(newer_url: str) -> None:
    command = [sys.executable, "-m", "txmsg.ops.cli.main", "db", "check", "--storage", newer_url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert "newer than this release of txmsg knows" in done.stdout


# ---- two brokers


def test_a_second_broker_on_a_port_is_refused_with_the_likely_owner(broker: BrokerProcess, notify_url: str) -> None:
    error = error_of("broker", "--storage", notify_url, "--listen", broker.address)
    assert f"cannot listen on {broker.address}: another program, perhaps another server" in error
    assert is_promised("MisuseError", error), error
    with Producer(broker.address, group="shop") as producer:
        producer.send(Message("orders", b"1"))


def test_two_brokers_with_one_id_lose_nothing(notify_url: str) -> None:
    """The second broker delivers nothing while the first runs."""
    config = BrokerConfig(storage=notify_url, listen="127.0.0.1:0", broker_id="twin")
    with served(config) as first, served(config) as second:
        with neighbour(f"{first},{second}") as good:
            for _ in range(3):
                good.goes_on()
    assert good.errors == []
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        gaps = connection.execute(
            "select queue from txmsg.message group by queue having max(queue_offset) <> count(*) - 1"
        ).fetchall()
    assert gaps == []
