"""The first program of README.md runs as printed, and the quickstart's account of a dying process is true."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import listed
from tests.waiting import until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
_END_S_MAX = 120


def code(pattern: str, page: str) -> str:
    """Return the part of a page that the pattern's group matches."""
    found = re.search(pattern, page, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def program(broker: BrokerProcess, tmp_path: Path) -> Path:
    """The first program with the address of the test's broker."""
    script = tmp_path / "first.py"
    text = code(r"<!-- first-program -->\n```python\n(.*?)```", README)
    script.write_text(text.replace("localhost:7700", broker.address), encoding="utf-8")
    return script


@contextmanager
def running(program: Path) -> Iterator[str]:
    """Run the program, with warnings as errors, until Ctrl-C; yields its first line."""
    with subprocess.Popen(
        # The program's engine lives as long as the program: Python 3.13 warns of its unclosed connection.
        [sys.executable, "-u", "-W", "error", "-W", "ignore:unclosed database:ResourceWarning", program],
        cwd=program.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as made:
        try:
            assert made.stdout is not None
            yield made.stdout.readline()
            made.send_signal(signal.SIGINT)
            # Python warns on stderr of objects collected at the end.
            assert made.communicate(timeout=_END_S_MAX) == ("", "")
            assert made.returncode == 0
        finally:
            made.kill()


def test_the_first_program_prints_the_output_of_the_readme(program: Path) -> None:
    with running(program) as line:
        assert line == code(r"It prints `([^`]+)`", README) + "\n"


@pytest.mark.long
def test_the_next_run_of_the_first_program_resolves_the_pending_transaction(
    broker: BrokerProcess, program: Path
) -> None:
    text = program.read_text(encoding="utf-8")
    dying = program.with_name("dying.py")
    shown = code(r"```python\n(@app.transactional_message.*?)```", QUICKSTART)
    dying.write_text(
        "import os\n" + re.sub(r"@app.transactional_message.*?\n\n\n", lambda _: shown + "\n\n", text, flags=re.DOTALL)
    )
    assert subprocess.run([sys.executable, dying], cwd=dying.parent, check=False).returncode == 1
    assert len(listed(broker)) == 1
    with running(program):
        until(lambda: not listed(broker), why="the half message of the dead process is still undecided")
