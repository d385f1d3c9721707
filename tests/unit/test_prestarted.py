"""Prestarted processes behave like other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.prestarted import Prestarted, start

_TELLER = """
import json, os, sys, threading
print(json.dumps({
    "name": __name__, "arguments": sys.argv[1:], "directory": os.getcwd(), "environment": os.environ["SAID"],
    "pid": os.getpid(), "group": os.getpgid(0), "threads": threading.active_count(),
    "has_broker": "txmsg.broker.server" in sys.modules, "has_tests": "pytest" in sys.modules,
}), flush=True)
print("logged", file=sys.stderr)
sys.exit(int(sys.stdin.readline()))
"""

StartTeller = Callable[..., Prestarted]


@pytest.fixture
def start_teller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartTeller]:
    """A function that starts a module of the working directory that prints its identity and exits with the given
    status.
    """
    (tmp_path / "teller.py").write_text(_TELLER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAID", "by the test")

    started: list[Prestarted] = []

    def begin(*arguments: str, new_session: bool = False) -> Prestarted:
        with (tmp_path / "log").open("ab") as log:
            started.append(start("teller", *arguments, stderr=log, has_stdin=True, new_session=new_session))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def end(process: Prestarted, status: int) -> None:
    assert process.stdin is not None
    process.stdin.write(b"%d\n" % status)
    process.stdin.close()
    assert process.wait(30) == status


def test_a_prestarted_process_runs_a_module_and_reports_its_exit_status(
    start_teller: StartTeller, tmp_path: Path
) -> None:
    process = start_teller("a", "b c")
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    assert told == {
        "name": "__main__",
        "arguments": ["a", "b c"],
        "directory": str(tmp_path),
        "environment": "by the test",
        "pid": process.pid,
        "group": os.getpgid(0),
        "threads": 1,
        "has_broker": True,
        "has_tests": False,
    }
    assert process.poll() is None
    end(process, 7)
    assert (process.poll(), process.returncode) == (7, 7)
    assert (tmp_path / "log").read_text() == "logged\n"
    assert not psutil.pid_exists(process.pid), "it was not waited for"


def test_a_signal_ends_the_process_and_a_wait_can_time_out(start_teller: StartTeller) -> None:
    first, second = start_teller(), start_teller(new_session=True)
    assert second.stdout is not None
    assert json.loads(second.stdout.readline())["group"] == second.pid
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.01)
    first.kill()
    assert first.wait(30) == -signal.SIGKILL
    first.kill()  # nothing: it has ended
    end(second, 0)


def test_all_threads_waiting_for_one_process_are_notified(start_teller: StartTeller) -> None:
    process = start_teller()
    with ThreadPoolExecutor(16) as threads:
        told = [threads.submit(process.wait, 30) for _ in range(16)]
        process.kill()
        assert [each.result() for each in told] == [-signal.SIGKILL] * 16


def test_the_process_sees_end_of_input_although_others_started_later(start_teller: StartTeller) -> None:
    first, second = start_teller(), start_teller()
    assert first.stdin is not None
    first.stdin.close()
    assert first.wait(30) == 1  # of int("")
    end(second, 0)
