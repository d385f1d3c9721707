"""Child processes end with their descendants, however they end, and report how."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.waiting import until
from txmsg.runtime.child import Child, ChildFailed, spawn_application

FAMILY = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("listening on", grandchild.pid, flush=True)
time.sleep(600)
"""
ENDS_S_MAX = 60.0


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of modules for children."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    (tmp_path / "family.py").write_text(FAMILY)
    return tmp_path


def family(programs: Path, *arguments: str) -> tuple[Child, list[psutil.Process]]:
    child = Child("family", [*arguments, "family"], log=programs / "family.log")
    return child, [psutil.Process(child.pid), psutil.Process(int(child.wait_ready()))]


def require_ended(processes: list[psutil.Process]) -> None:
    until(lambda: not any(map(is_alive, processes)))


def is_alive(process: psutil.Process) -> bool:
    """Return True if the process is running, not a zombie."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_only_an_application_finds_modules_in_the_working_directory(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "planted.py").write_text("print('listening on', __file__, flush=True)\n")
    monkeypatch.chdir(here)
    for words in (["planted"], ["txmsg.runtime.child", "planted"]):
        child = Child("part", words, log=programs / "part.log")
        with pytest.raises(ChildFailed, match=r"No module named '?planted"):
            child.wait_ready(ENDS_S_MAX)
        child.stop()
    application = Child("application", ["planted"], log=programs / "application.log", start=spawn_application)
    try:
        assert application.wait_ready(ENDS_S_MAX) == str(here / "planted.py")
    finally:
        application.stop()


@pytest.mark.parametrize("how", [Child.kill, Child.stop])
def test_a_child_ends_with_all_its_descendants(programs: Path, how: object) -> None:
    assert callable(how)
    child, processes = family(programs)
    how(child)
    child.stop()
    require_ended(processes)
    assert child.returncode is not None
    assert child.returncode < 0
    child.stop()


def test_a_child_killed_from_outside_leaves_no_descendants(programs: Path) -> None:
    child, processes = family(programs)
    processes[0].kill()
    child.wait(ENDS_S_MAX)
    child.stop()
    require_ended(processes)


def test_an_arbitrary_program_ends_with_its_parent(programs: Path) -> None:
    code = (
        "import os; from pathlib import Path; from txmsg.runtime.child import Child\n"
        "child = Child('quiet', ['txmsg.runtime.child', 'quiet'], log=Path('quiet.log'))\n"
        "child.wait_ready(); print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    (programs / "quiet.py").write_text("import time\nprint('listening on nothing', flush=True)\ntime.sleep(600)\n")
    parent = subprocess.run(
        [sys.executable, "-c", code], cwd=programs, capture_output=True, text=True, timeout=60, check=False
    )
    assert parent.returncode == -9, parent.stderr
    with suppress(psutil.NoSuchProcess):  # it has ended
        require_ended([psutil.Process(int(parent.stdout))])


def test_descendants_of_a_child_do_not_read_its_parent_pipe(programs: Path) -> None:
    (programs / "reader.py").write_text(
        "import subprocess\n"
        "said = subprocess.run(['cat'], stdout=subprocess.PIPE).stdout\n"
        "print('listening on', len(said), flush=True)\n"
    )
    child = Child("reader", ["txmsg.runtime.child", "reader"], log=programs / "reader.log")
    try:
        assert child.wait_ready(ENDS_S_MAX) == "0"
    finally:
        child.stop()


def test_a_child_that_ends_before_it_is_ready_is_reported_with_its_last_log_lines(programs: Path) -> None:
    (programs / "broken.py").write_text("raise SystemExit('no more')\n")
    child = Child("broken", ["broken"], log=programs / "broken.log")
    with pytest.raises(ChildFailed, match=r"broken ended with exit status 1 while it started.*\n.*no more"):
        child.wait_ready()
    with pytest.raises(ChildFailed, match="broken ended by itself, with exit status 1"):
        child.require_running()
    child.stop()


def test_a_child_that_is_never_ready_is_reported_after_the_time_limit(programs: Path) -> None:
    child, _ = family(programs)
    silent = Child("silent", ["family"], log=programs / "silent.log", ready="never")
    with pytest.raises(ChildFailed, match="silent was not ready after"):
        silent.wait_ready(0.1)
    silent.stop()
    child.stop()


def test_a_child_that_does_not_end_in_time_is_killed_and_reported_by_stop(programs: Path) -> None:
    (programs / "stubborn.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('listening on nothing', flush=True)\ntime.sleep(600)\n"
    )
    child = Child("stubborn", ["stubborn"], log=programs / "stubborn.log")
    child.wait_ready()
    assert not child.stop(0.1)
    assert child.ending == "by SIGKILL"


def test_lines_are_passed_to_functions_in_order_and_completely_before_stop_returns(programs: Path) -> None:
    (programs / "talks.py").write_text(
        "import sys\nfor number in range(100): print(number); print(-number, file=sys.stderr)\n"
        "print('told:', sys.stdin.readline().strip())\n"
    )
    printed: list[str] = []
    logged: list[str] = []
    child = Child(
        "talks", ["talks"], log=logged.append, ready="0", on_line=printed.append, on_end=lambda: printed.append("end")
    )
    child.wait_ready()
    child.write_line("that is all")
    assert child.wait(ENDS_S_MAX) == 0
    assert child.stop()
    assert printed == [*map(str, range(100)), "told: that is all", "end"]
    assert logged == [str(-number) for number in range(100)]
    assert child.last_line == "told: that is all"
