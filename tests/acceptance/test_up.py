"""`txmsg up` as a developer runs it: a message sent to the broker arrives in MetaQ, and nothing is left at the end."""

from __future__ import annotations

import json
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from click.testing import CliRunner

from tests import namespaces
from tests.metrics.scraping import got
from tests.ports import own_port
from tests.small_disk import but_for_the_disk
from tests.waiting import until
from txmsg.binlog.verifier.compare import verify
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.client import Producer
from txmsg.message import Message
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.location import open_log
from txmsg.ops.cli.main import main

_START_S_MAX = 200.0
_STOP_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Up:
    """A running `txmsg up` and its ready line."""

    process: subprocess.Popen[bytes]
    root: Path
    broker: str
    metaq: str
    storage: str
    ready: dict[str, str]

    def parts(self) -> dict[str, psutil.Process]:
        """Return its processes by command, without those of PostgreSQL."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return {
            command[command.index("txmsg.ops.cli.main") + 1]: each for each in children if (command := each.cmdline())
        }

    def require_nothing_left(self, parts: dict[str, psutil.Process]) -> None:
        """Check that no process, port or database is left."""
        until(lambda: not any(process.is_running() for process in parts.values()))
        for address in (self.broker, self.metaq):
            host, _, port = address.rpartition(":")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)), timeout=60).close()
        until(lambda: not EmbeddedPostgres(self.root / "pg").running)


@contextmanager
def up_in(root: Path, *others: str) -> Iterator[Up]:
    """Run until it is ready; kill it at the end if it still runs."""
    # No other test gets these ports when they are free again. The last comes last: it is the first of three.
    broker, metaq, http = (f"127.0.0.1:{own_port()}" for _ in range(3))
    listening = ["--listen", broker, "--metaq-listen", metaq, "--http-listen", http]
    options = ["--data-dir", str(root), *listening, "--json", *others]
    process = subprocess.Popen(
        [sys.executable, "-m", "txmsg.ops.cli.main", "up", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(_START_S_MAX), "it is not ready in time"
        ready = json.loads(process.stdout.readline())
        yield Up(process, root, ready["broker"], ready["metaq"], ready["storage"], ready)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _send(up: Up, count: int) -> None:
    with Producer(up.broker, group="shop") as producer:
        for number in range(count):
            producer.send(Message("orders", str(number).encode(), key=f"k{number}"))


def _received(up: Up, count: int) -> list[bytes]:
    """Return the messages that a reader of MetaQ gets, up to a count."""
    found: list[bytes] = []
    deadline = time.monotonic() + _START_S_MAX
    with open_log(up.metaq) as log:
        wanted = {LogQueue("orders", number): 0 for number in range(4)}
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages came to MetaQ"
            for each in log.fetch(wanted, wait_s=1.0):
                for batch in each.batches:
                    found += batch.to_arrow()["body"].to_pylist()
                    wanted[each.queue] = batch.end_offset
    return found


def _open_to_others(directory: Path) -> Iterator[Path]:
    """Return paths that other users can read, outside of private directories."""
    for path in directory.iterdir():
        if path.lstat().st_mode & 0o077:
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from _open_to_others(path)


def test_a_message_is_delivered_and_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    alerts = tmp_path / "alerts.toml"
    alerts.write_text('[receivers.nobody]\ncommand = ["/bin/true"]\n')
    with up_in(tmp_path, "--alerts", str(alerts), "--console", "--console-listen", "127.0.0.1:0") as up:
        parts = up.parts()
        assert sorted(parts) == ["broker", "console", "metaq", "tailer"]
        for name in ("broker", "metaq", "tailer"):
            address = up.ready[f"{name}_http"]
            assert got(address, "/livez") == (HTTPStatus.OK, "ok\n")
            assert f'process="{name}"' in got(address, "/metrics")[1]
        with urlopen(f"{up.ready['console']}/notify/brokers", timeout=_START_S_MAX) as page:
            assert up.broker in page.read().decode()
        listed = CliRunner().invoke(main, ["alert", "list", "--broker", up.broker, "--json"])
        assert [each["name"] for each in json.loads(listed.output)["receivers"]] == ["nobody"]
        _send(up, 10)
        assert sorted(_received(up, 10)) == [str(number).encode() for number in range(10)]
        assert verify(up.storage, tmp_path / "metaq").is_equal
        assert list(_open_to_others(tmp_path)) == [alerts]
        log_files = [path for path in (tmp_path / "metaq").rglob("*") if path.is_file()]
        assert log_files
        assert [path for path in log_files if path.stat().st_mode & 0o077] == []
        up.process.send_signal(signal.SIGINT)
        _, said = up.process.communicate(timeout=_STOP_S_MAX)
        assert (up.process.returncode, but_for_the_disk(said)) == (0, b"")
        up.require_nothing_left(parts)


def test_a_killed_database_is_restarted_and_all_processes_continue(tmp_path: Path) -> None:
    with up_in(tmp_path) as up:
        pid_file = tmp_path / "pg" / "cluster" / "postmaster.pid"
        postmaster = psutil.Process(int(pid_file.read_text().split("\n", 1)[0]))
        postmaster.kill()
        psutil.wait_procs([postmaster])
        with Producer(up.broker, group="shop", timeout_s=60) as producer:
            producer.send(Message("orders", b"0"))
        assert _received(up, 1) == [b"0"]
        up.process.send_signal(signal.SIGINT)
        _, said = up.process.communicate(timeout=_STOP_S_MAX)
        assert up.process.returncode == 0
        assert b"has ended by itself, perhaps killed" in said
        assert b"runs again" in said


def test_a_process_that_dies_is_named_and_the_others_stop_cleanly(tmp_path: Path) -> None:
    with up_in(tmp_path) as up:
        parts = up.parts()
        parts["tailer"].kill()
        _, said = up.process.communicate(timeout=_STOP_S_MAX)
        assert up.process.returncode == 1
        assert b"tailer ended by itself, by SIGKILL" in said
        up.require_nothing_left(parts)
    with up_in(tmp_path) as up:  # and comes back; after SIGKILL it leaves nothing, either
        parts = up.parts()
        _send(up, 1)
        assert _received(up, 1) == [b"0"]
        up.process.kill()
        up.require_nothing_left(parts)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.0.0.1:65534", "0.0.0.0:9700"])
def test_an_address_that_some_processes_cannot_use_is_refused_at_once(address: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["up", "--data-dir", str(tmp_path / "data"), "--http-listen", address])
    assert (result.exit_code, f"--http-listen {address}" in result.output) == (1, True), result.output
    assert not (tmp_path / "data").exists()


@pytest.mark.takes_long
@pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())
def test_a_machine_with_only_ipv6_runs_all_processes_on_its_loopback(tmp_path: Path) -> None:
    command = ("-m", "txmsg.ops.cli.main", "up", "--console", "--data-dir", str(tmp_path), "--json")
    with subprocess.Popen(namespaces.only_ipv6(sys.executable, *command), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
        finally:
            process.terminate()
    assert ready["broker"] == "[::1]:7700"
    assert ready["metaq"] == "[::1]:7720"
    assert ready["console"] == "http://[::1]:7790"
