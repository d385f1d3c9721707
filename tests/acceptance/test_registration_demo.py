"""The registration example runs small, with real processes, and succeeds; interrupted, it leaves no process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from txmsg.ops.cli.demo import registration
from txmsg.ops.demo.registration import GROUPS
from txmsg.ops.demo.registration.secure_stage import RIGHTS

COMMAND = [sys.executable, "-m", "txmsg.ops.cli.main", "demo", "registration"]


@pytest.mark.takes_long
@pytest.mark.timeout(400)
def test_every_committed_user_reaches_every_subscriber_once_although_processes_are_killed(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    arguments = ["--users", "60", "--crash", "6", "--console", "--keep", str(keep), "--json"]
    run = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-5000:]
    assert "the console is at http://127.0.0.1:" in run.stderr

    result = json.loads(run.stdout.splitlines()[-1])
    assert (result["missing"], result["duplicated"], result["phantom"], result["in_doubt"]) == (0, 0, 0, 0)
    assert result["users"] == 60
    assert result["committed"] + result["rolled_back"] == 60
    assert result["effects"] == dict.fromkeys(GROUPS, result["committed"])
    assert result["crashes"] == 6
    assert result["checked_back"] == sum(result["resolved_by_check"].values())
    assert result["resolved_by_check"].keys() == {"commit", "rollback"}
    assert result["checked_back"] > 0
    waits = result["latency_ms"]
    assert waits.keys() == {"message", "parallel", "serial"}
    assert all(0 < each["p50"] <= each["p99"] for each in waits.values())

    # --keep: the databases can be looked at afterwards.
    query = [sys.executable, "-m", "txmsg.ops.cli.main", "demo", "connect", str(keep), "users"]
    count = subprocess.run(
        query, input="\\t \\a \nselect count(*) from users;", capture_output=True, text=True, timeout=60, check=False
    )
    assert str(result["committed"]) in count.stdout.split(), count.stderr


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_secured_demo_is_correct_while_certificates_and_tokens_change(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    arguments = ["--secure", "--users", "40", "--crash", "3", "--slow-ms", "50", "--keep", str(keep), "--json"]
    run = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-5000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert (result["missing"], result["duplicated"], result["phantom"], result["in_doubt"]) == (0, 0, 0, 0)
    assert result["effects"] == dict.fromkeys(GROUPS, result["committed"])
    security = result["security"]
    assert (security["users"], security["refused"], security["let_in"]) == (len(RIGHTS), 10, 0)
    assert security["mirrored"] == result["committed"] - 2 * 5  # without users registered in the old ways

    assert (keep / "access").stat().st_mode & 0o777 == 0o700
    tokens = {file.read_text().strip() for file in (keep / "access").glob("*.token")}
    assert len(tokens) == len(RIGHTS) + 1
    logs = {log.name: log.read_text() for log in (keep / "logs").iterdir()}
    assert "is read again" in logs["broker.log"]
    assert "is read again" in logs["metaq.log"]
    assert not [(name, token) for name, text in logs.items() for token in tokens if token in text]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_all_its_processes(tmp_path: Path, signum: signal.Signals) -> None:
    keep = tmp_path / "kept"
    with subprocess.Popen(
        [*COMMAND, "--users", "60", "--keep", str(keep)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as demo:
        broker_log = keep / "logs" / "broker.log"
        children: list[psutil.Process] = []
        while len(children) < 2 or not broker_log.exists() or b" listens on " not in broker_log.read_bytes():
            assert demo.poll() is None, demo.stdout and demo.stdout.read().decode()
            psutil.wait_procs([psutil.Process(demo.pid)], timeout=0.05)
            children = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(signum)
        demo.communicate(timeout=60)
        assert demo.returncode != 0
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


def test_too_few_users_for_the_crashes_are_refused_before_anything_starts() -> None:
    run = subprocess.run(
        [*COMMAND, "--users", "30", "--crash", "29"], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 2
    assert "at most 7" in run.stderr


def test_the_number_of_crashes_is_reduced_for_few_users(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Mock()
    monkeypatch.setattr("txmsg.ops.cli.demo.play", played)
    registration.main(["--users", "30"], standalone_mode=False)
    run = played.call_args.args[0]
    assert run.args[0].crashes == 7
