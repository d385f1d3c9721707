"""The wheel contains only txmsg, and runs in an empty environment with its dependencies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.acceptance.running_up import running_up

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/user_registration/service.py"
SEND = """
import sys, txmsg
with txmsg.Producer(sys.argv[1], group="shop") as producer:
    print(producer.send(txmsg.Message("orders", b"1")))
"""
RECEIVE = """
import sys, threading, txmsg
for source in ("brokers", "log"):
    app = txmsg.Txmsg(sys.argv[1], log=sys.argv[2], group="mailer")
    is_here = threading.Event()
    @app.subscribe("orders", source=source, start=txmsg.Start.earliest())
    def receive(message):
        print(message.id)
        is_here.set()
    with app:
        assert is_here.wait(100)
"""


def build(target: str, directory: Path, *, source: Path = ROOT) -> Path:
    """Build a file with hatch from the working tree or another source."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    [built] = directory.iterdir()
    return built


class Environment:
    """A virtual environment with the wheel and its dependencies; programs run in an empty directory."""

    def __init__(self, wheel: Path, directory: Path) -> None:
        self.bin = directory / "environment" / "bin"
        self.directory = directory / "empty"
        self.directory.mkdir()
        # No variable that leads to the working tree.
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.run(sys.executable, "-m", "venv", "--without-pip", str(self.bin.parent))
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet"]
        self.run(*pip, "--only-binary", ":all:", f"{wheel}[broker,metaq]")

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.directory, env=self.variables, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout

    def txmsg(self, *args: str) -> str:
        return self.run(str(self.bin / "txmsg"), *args)


@pytest.mark.long
@pytest.mark.takes_long
@pytest.mark.timeout(900)
def test_the_wheel_contains_only_txmsg_and_runs_in_an_empty_environment(tmp_path: Path) -> None:
    built = build("wheel", tmp_path / "dist")
    with ZipFile(built) as wheel:
        names = wheel.namelist()
        example = wheel.read(f"txmsg/ops/demo/{EXAMPLE}")
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"txmsg"}
    assert example == (ROOT / EXAMPLE).read_bytes()

    installed = Environment(built, tmp_path)
    place = installed.run(str(installed.bin / "python"), "-c", "import txmsg; print(txmsg.__file__)")
    assert Path(place.strip()).is_relative_to(installed.bin.parent)

    demo = installed.txmsg("demo", "registration", "--users", "20", "--crash", "2", "--json")
    result = json.loads(demo.splitlines()[-1])
    assert (result["users"], result["crashes"], result["missing"], result["duplicated"]) == (20, 2, 0, 0)

    data = installed.directory / "data"
    with running_up(data, python=installed.bin / "python", environment=installed.variables) as ready:
        sent = installed.run(str(installed.bin / "python"), "-c", SEND, ready["broker"])
        received = installed.run(str(installed.bin / "python"), "-c", RECEIVE, ready["broker"], ready["metaq"])
    assert received.split() == [sent.strip()] * 2
    assert [path.name for path in installed.directory.iterdir()] == ["data"]


def test_the_source_distribution_contains_the_sources_of_the_wheel(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {EXAMPLE, f"txmsg/ops/demo/{EXAMPLE}", "pyproject.toml", "README.md", "LICENSE", "txmsg/py.typed"} <= names
