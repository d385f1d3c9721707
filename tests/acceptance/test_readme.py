"""The code in README.md runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.broker_process import BrokerProcess

README = Path(__file__).parents[2] / "README.md"


def test_the_first_program_prints_what_the_readme_says(broker: BrokerProcess, tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    program = re.search(r"<!-- first-program -->\n```python\n(.*?)```", text, re.DOTALL)
    promised = re.search(r"It prints `([^`]+)`", text)
    assert program is not None
    assert promised is not None
    script = tmp_path / "first.py"
    script.write_text(program[1].replace("localhost:7700", broker.address), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == f"{promised[1]}\n", done.stderr
    assert done.returncode == 0
