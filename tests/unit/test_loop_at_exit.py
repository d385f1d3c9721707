"""The background loop ends with its process, however the process was started."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing
import sys

from txmsg.runtime.process import shared_loop

def work():
    shared_loop()

if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("how", multiprocessing.get_all_start_methods())
def test_multiprocessing_child_that_used_the_loop_ends_without_a_traceback(how: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = subprocess.run([sys.executable, program, how], capture_output=True, text=True, check=False, timeout=120)

    assert (done.returncode, done.stderr) == (0, "")
