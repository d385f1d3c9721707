"""The wheel holds txmsg alone, and its demo runs outside the repository. With what pip installs: `make release`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/user_registration/service.py"


def build(target: str, directory: Path) -> Path:
    """The file that hatch builds from the working tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    [built] = directory.iterdir()
    return built


@pytest.mark.long
@pytest.mark.takes_long
@pytest.mark.timeout(400)
def test_the_demo_runs_from_a_wheel_that_holds_txmsg_alone(tmp_path: Path) -> None:
    with ZipFile(build("wheel", tmp_path / "dist")) as wheel:
        names = wheel.namelist()
        wheel.extractall(tmp_path / "installed")
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"txmsg"}
    assert (tmp_path / "installed/txmsg/demo" / EXAMPLE).read_bytes() == (ROOT / EXAMPLE).read_bytes()

    # The interpreter below this environment reads none of its .pth files: it does not find the working tree.
    interpreter = str(Path(sys.executable).resolve())
    path = os.pathsep.join([str(tmp_path / "installed"), sysconfig.get_path("purelib")])
    run = subprocess.run(
        [interpreter, "-m", "txmsg.cli.main", "demo", "registration", "--users", "20", "--crash", "2", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-5000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert (result["users"], result["crashes"], result["missing"], result["duplicated"]) == (20, 2, 0, 0)


def test_a_source_distribution_holds_what_the_wheel_is_built_from(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {EXAMPLE, f"txmsg/demo/{EXAMPLE}", "pyproject.toml", "README.md", "LICENSE", "txmsg/py.typed"} <= names
