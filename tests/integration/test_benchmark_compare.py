"""Two commits of a small repository are compared like those of this one: by processes, each with its own txmsg."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.figures import WITHIN_NOISE
from tests.waiting import until
from txmsg.runtime.child import Child

ROOT = Path(__file__).parents[2]
EXACT = """
import json, txmsg
print("a line for the reader")
print(json.dumps({"callers": {"4": {"p50_ms": txmsg.TOOK_MS, "rate_per_s": 1000, "calls": txmsg.TOOK_MS}}}))
"""
STUCK = """
import os, pathlib, subprocess, sys, tempfile, time
directory = tempfile.gettempdir()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
place = pathlib.Path(os.environ["TOLD"])
place.with_suffix(".new").write_text(f"{os.getpid()} {child.pid} {directory}")
place.with_suffix(".new").rename(place)
time.sleep(600)
"""
FAILING = "raise SystemExit('rows in the tables: 3, claimed: 4')"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, named `before` and `after`; txmsg takes 20 % longer in the second one."""
    place = tmp_path / "repository"
    (place / "benchmarks").mkdir(parents=True)
    (place / "txmsg").mkdir()
    git(place, "init", "--quiet")
    (place / "benchmarks/__init__.py").touch()
    (place / "benchmarks/exact.py").write_text(EXACT)
    (place / "benchmarks/stuck.py").write_text(STUCK)
    (place / "benchmarks/failing.py").write_text(FAILING)
    for name, took_ms in (("before", 10), ("after", 12)):
        (place / "txmsg/__init__.py").write_text(f"TOOK_MS = {took_ms}")
        git(place, "add", ".")
        git(place, "-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--message", name)
        git(place, "tag", name)
    return place


def git(place: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(place), *arguments], check=True)


def compare(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.compare", *arguments, "--repository", str(repository)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)


def test_slower_commit_is_named_and_each_is_run_with_its_own_txmsg(repository: Path) -> None:
    done = compare(repository, "before", "after", "exact", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    found = {each["name"]: each for each in json.loads(done.stdout.splitlines()[-1])["figures"]["exact"]}
    assert {name: each["verdict"] for name, each in found.items()} == {
        "callers 4 p50_ms": "slower",
        "callers 4 rate_per_s": WITHIN_NOISE,
    }
    assert (found["callers 4 p50_ms"]["old_runs"], found["callers 4 p50_ms"]["new_runs"]) == ([10] * 5, [12] * 5)
    row = next(line for line in done.stdout.splitlines() if "exact: callers 4 p50_ms" in line)
    assert [word for word in row.split() if word.isascii()] == [
        *("exact:", "callers", "4", "p50_ms", "10", "12", "1.200", "0%", "slower")
    ]


def test_commit_does_not_differ_from_itself(repository: Path) -> None:
    done = compare(repository, "after", "HEAD", "exact", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["figures"]["exact"]
    assert [each["verdict"] for each in found] == [WITHIN_NOISE, WITHIN_NOISE]


def test_failing_script_is_left_out_with_the_reason(repository: Path) -> None:
    done = compare(repository, "before", "after", "failing", "missing", "exact")

    assert done.returncode == 1
    assert "claimed: 4" in done.stderr
    assert "has no benchmarks/missing.py" in done.stderr
    assert "exact: callers 4 p50_ms" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("before", "nowhere"), "'nowhere' is not a commit of"),
        (("before", "after", "--rounds", "4"), "at least 5"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(repository: Path, arguments: tuple[str, ...], why: str) -> None:
    done = compare(repository, *arguments)

    assert done.returncode == 2
    assert why in done.stderr


def test_run_beyond_its_limit_is_ended_and_left_out(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))

    done = compare(repository, "before", "after", "stuck", "--limit", "1", "--end", "1")

    assert done.returncode == 1
    assert "did not end within 1 s: see --limit" in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_comparison_leaves_no_processes_and_files(
    repository: Path, tmp_path: Path, signum: signal.Signals
) -> None:
    told = tmp_path / "told"
    command = ["benchmarks.compare", "before", "after", "stuck", "--end", "1", "--repository", str(repository)]
    child = Child("compare", command, log=tmp_path / "log", env={"TOLD": str(told), "PYTHONPATH": str(ROOT)})
    try:
        until(told.exists)
        child.send_signal(signum)

        assert child.wait(120) == 1
    finally:
        child.kill()
        child.stop()
    assert "interrupted" in child.log_tail()
    is_gone(told)


def is_gone(told: Path) -> None:
    """Check that processes and directory named by the stuck script are gone; one process has its own session."""
    *pids, directory = told.read_text().split()
    assert len(pids) == 2
    assert [pid for pid in pids if psutil.pid_exists(int(pid)) and not is_zombie(int(pid))] == []
    assert not Path(directory).exists()


def is_zombie(pid: int) -> bool:
    """Return True if the process has ended and its parent, in a container the init process, has not reaped it."""
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
