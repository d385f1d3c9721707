"""Two data centres keep writing while the network between them is cut, and converge."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "txmsg.ops.cli.main", "demo", "data-centres"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_data_centres_keep_writing_during_a_network_cut_and_converge() -> None:
    options = ("--orders", "2000", "--seconds", "5", "--cuts", "2", "--json")
    run = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr[-5000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert (result["orders"], result["missing"], result["logs_equal"]) == (4000, 0, True)
    assert result["cuts"] == 2
    assert result["written_while_cut"] > 0
    assert result["behind_max"] > 0, "the line was cut, and nothing was late"
    cents = sum(number * 7919 % 10_000 + 1 for number in range(2000))
    assert result["totals"] == {here: {of: [2000, cents] for of in ("hz", "sh")} for here in ("hz", "sh")}
