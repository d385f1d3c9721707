"""Processes of a demo, and messages while they start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from txmsg.ops.demo import stage
from txmsg.ops.demo.stage import DemoProcesses
from txmsg.runtime.child import ChildFailed

_SLOW = "import sys; sys.stdin.readline(); print('listening on here', flush=True); sys.stdin.read()"


def test_the_process_being_waited_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text(_SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    waited: list[str] = []
    with DemoProcesses(tmp_path) as processes:
        child = processes.start("broker", "slow", ready="listening on ")

        def on_wait(name: str) -> None:
            waited.append(name)
            child.write_line("go on")

        processes.on_wait = on_wait
        processes.await_ready()
        processes.await_ready("broker")
        assert waited == ["broker"]
        assert child.address == "here"


def test_a_program_that_times_out_is_a_failed_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text(_SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(stage, "_RUN_S_MAX", 0.01)
    with DemoProcesses(tmp_path) as processes:
        with pytest.raises(ChildFailed, match=r"tables did not end within 0.01 s") as found:
            processes.run("tables", "slow")
    assert isinstance(found.value.__cause__, subprocess.TimeoutExpired)
