"""Programs that fork, run by tests in their own processes with an interpreter that exits cleanly.

What a finalizer says, such as that of a connection that was not closed, is an error: it stands in stderr.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

RUN_S_MAX = 240.0
_STILL_TOLD = re.compile(r"^transaction \S+: \w+ could not be reported \(OutcomeUnknown: no answer within .*\n", re.M)
"""A warning on a busy machine, and harmless: the outcome is told soon."""
_ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import ctypes, os, sys, threading, time, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
import psutil
from tests.waiting import until
from txmsg import *

def in_child(do, leave=sys.exit):
    \"\"\"Forks; in the child, does it and leaves. Returns the child's pid.\"\"\"
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        do()
        sys.stdout.flush()
        leave(0)
    return pid

def wait(pid):
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"the child ended with {status}"

def connections():
    \"\"\"Where this process's connections to servers begin: one that is made again begins elsewhere.\"\"\"
    return {each.laddr for each in psutil.Process().net_connections("tcp") if each.status == "ESTABLISHED"}
"""
WITHOUT_UVLOOP = "import sys; sys.modules['uvloop'] = None"


def run(text: str, *arguments: str, before: str = "") -> list[str]:
    """Return the output of a program, which must print nothing else, exit with 0, and leave no process."""
    program = "\n".join([before, HEAD, textwrap.dedent(text)])
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", program, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=_ROOT
    ) as process:
        try:
            printed, said = process.communicate(timeout=RUN_S_MAX)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    said = _STILL_TOLD.sub("", said)
    assert (process.returncode, said) == (0, ""), f"{said}\n{printed}"
    return printed.splitlines()


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file; empty if it does not exist yet."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
