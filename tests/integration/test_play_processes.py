"""The processes of a play end with what they have started, however they end."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from examples.play.processes import Child, ChildFailed
from tests.acceptance.waiting import until

FAMILY = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("listening on", grandchild.pid, flush=True)
time.sleep(600)
"""
ENDS_S_MAX = 60.0


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory from which children import."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    (tmp_path / "family.py").write_text(FAMILY)
    return tmp_path


def family(programs: Path, *arguments: str) -> tuple[Child, list[psutil.Process]]:
    child = Child("family", [*arguments, "family"], env={}, log=programs / "family.log")
    return child, [psutil.Process(child.pid), psutil.Process(int(child.wait_ready()))]


def require_ended(processes: list[psutil.Process]) -> None:
    until(lambda: not any(map(is_alive, processes)))


def is_alive(process: psutil.Process) -> bool:
    """Whether it does anything any more. One that nobody has waited for is there still."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("how", [Child.kill, Child.stop])
def test_a_child_takes_what_it_has_started_with_it(programs: Path, how: object) -> None:
    assert callable(how)
    child, processes = family(programs)
    how(child)
    child.stop()
    require_ended(processes)
    assert child.returncode is not None
    assert child.returncode < 0
    child.stop()


def test_a_child_that_was_killed_by_somebody_else_leaves_nothing_either(programs: Path) -> None:
    child, processes = family(programs)
    processes[0].kill()
    child.wait(ENDS_S_MAX)
    child.stop()
    require_ended(processes)


def test_a_program_that_knows_nothing_of_its_parent_ends_with_it(programs: Path) -> None:
    code = (
        "import os; from pathlib import Path; from examples.play.processes import Child\n"
        "child = Child('quiet', ['examples.play.processes', 'quiet'], env={}, log=Path('quiet.log'))\n"
        "child.wait_ready(); print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    (programs / "quiet.py").write_text("import time\nprint('listening on nothing', flush=True)\ntime.sleep(600)\n")
    parent = subprocess.run(
        [sys.executable, "-c", code], cwd=programs, capture_output=True, text=True, timeout=60, check=False
    )
    assert parent.returncode == -9, parent.stderr
    with suppress(psutil.NoSuchProcess):  # it has ended
        require_ended([psutil.Process(int(parent.stdout))])


def test_a_child_that_ends_before_it_is_ready_is_told_with_its_last_words(programs: Path) -> None:
    (programs / "broken.py").write_text("raise SystemExit('no more')\n")
    child = Child("broken", ["broken"], env={}, log=programs / "broken.log")
    with pytest.raises(ChildFailed, match="no more"):
        child.wait_ready()
    child.wait(ENDS_S_MAX)  # it has closed its output, and may be about to end still
    with pytest.raises(ChildFailed, match="broken ended unasked with 1"):
        child.require_running()
    child.stop()
