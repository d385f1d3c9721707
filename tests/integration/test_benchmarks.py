"""Each benchmark runs at its smallest size, checks its messages, and prints its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures import figures_of
from benchmarks.run_all import BENCHMARKS

SMALLEST = {
    "agent": ["--lines", "20000", "--rate", "2000", "--seconds", "5", "--away", "1", "--kills", "1"],
    "backlog": ["--levels", "2000", "--turns", "1"],
    "backend_down": ["--seconds", "1.5", "--count", "1000"],
    "idle_groups": ["--groups", "200"],
    "idle_consumers": ["--consumers", "150", "--seconds", "1"],
    "tailer": ["--rows", "1000", "--turns", "1", "--seconds", "0.3"],
    "capacity": ["--seconds", "0.5", "--clients", "10"],
    "transactional_send": ["--seconds", "1"],
    "decorated": ["--seconds", "0.5", "--callers", "processes of 1 "],
    "slow_disk": ["--seconds", "1", "--delays-ms", "0,3", "--callers", "1,16"],
    "observability": ["--turns", "1", "--seconds", "0.5"],
    "console": ["--quick", "--groups", "600"],
    "kafka": ["--quick"],
    "peers": ["--waiting", "500", "--seconds", "1"],
}
"""Benchmarks whose parts others cover; each would take longer than it is worth."""


@pytest.mark.long
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs_and_prints_its_figures(name: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    more = ["--curve", str(tmp_path / "curve.png")] if name == "backlog" else []
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *SMALLEST[name], *more]

    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=280)

    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures_of(figures)
    assert not isinstance(figures, dict) or figures.get("wrong", 0) == 0
    assert all(path.stat().st_size > 10_000 for path in tmp_path.glob("*.png"))


def test_make_bench_runs_every_script_of_the_folder() -> None:
    scripts = {
        path.stem
        for path in Path(__file__).parents[2].joinpath("benchmarks").glob("*.py")
        if "__main__" in path.read_text()
    }

    assert sorted(BENCHMARKS) == sorted(scripts - {"compare", "run_all"})
