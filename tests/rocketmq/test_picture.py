"""The example: services with RocketMQ clients and txmsg on one topic, all killed in the middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rocketmq.programs import GO, JAVA, NODE, built_go, java_jars, node_packages

_ROOT = Path(__file__).parents[2]
_MISSING = [language.how_to_install for language in (JAVA, GO, NODE) if not language.is_installed()]


@pytest.mark.long
@pytest.mark.timeout(3600)  # what it needs is fetched and compiled, once
@pytest.mark.skipif(bool(_MISSING), reason="; ".join(_MISSING))
def test_totals_are_equal_although_all_processes_were_killed(tmp_path: Path) -> None:
    built = {
        "jars": java_jars(),
        "go": built_go(_ROOT / "examples" / "rocketmq" / "totals.go"),
        "node": node_packages(),
    }
    options = [f"--{name}={path}" for name, path in built.items()]
    command = [sys.executable, "-m", "examples.rocketmq.run", *options, "--orders=60"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-5000:]}"
    assert done.stdout.splitlines()[-1] == "equal"
