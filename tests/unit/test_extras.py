"""Commands and public names tell which extra is missing when optional packages are not installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from txmsg.ops.cli.main import COMMANDS
from txmsg.runtime.extras import PACKAGES, lacking

_ROOT = Path(__file__).resolve().parents[2]
_MODULES = re.findall(r"^## (\S+)$", (_ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
_IMPORTED_AS = {"opentelemetry_api": "opentelemetry"}

_WITHOUT = """
import json, sys
from importlib import import_module
ABSENT = set(json.loads(sys.argv[1]))
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
_COMMANDS = """
from click.testing import CliRunner
from txmsg.ops.cli.main import main
told = {}
def walk(command, words):
    result = CliRunner().invoke(main, [*words, "--help"])
    is_error = result.exception is not None and not isinstance(result.exception, SystemExit)
    told[" ".join(words)] = repr(result.exception) if is_error else result.output if result.exit_code else ""
    for name in getattr(command, "commands", {}) | getattr(command, "_modules", {}) if command is not None else ():
        try:
            below = command.get_command(main.make_context("txmsg", [words[0]], resilient_parsing=True), name)
        except ModuleNotFoundError:
            below = None
        walk(below, [*words, name])
for name in json.loads(sys.argv[2]):
    try:
        command = main.get_command(main.make_context("txmsg", [name], resilient_parsing=True), name)
    except ModuleNotFoundError:
        command = None
    walk(command, [name])
print(json.dumps(told))
"""
_NAMES = """
told = {}
for module in json.loads(sys.argv[2]):
    try:
        found = import_module(module)
    except ImportError as exc:
        told[module] = str(exc)
        continue
    for name in found.__all__:
        try:
            getattr(found, name)
            told[f"{module}.{name}"] = ""
        except ImportError as exc:
            told[f"{module}.{name}"] = str(exc)
print(json.dumps(told))
"""


def _told_without(packages: frozenset[str], program: str, what: list[str]) -> dict[str, str]:
    command = [sys.executable, "-c", _WITHOUT + program, json.dumps(sorted(packages)), json.dumps(what)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout)
    return told


def _wrong(told: dict[str, str]) -> dict[str, str]:
    return {what: text for what, text in told.items() if text and not re.search(r"pip install 'txmsg\[\w+\]'", text)}


def test_extras_match_pyproject() -> None:
    project: dict[str, Any] = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: set(needs) for name, needs in project["optional-dependencies"].items() if name in PACKAGES}
    assert set(project["optional-dependencies"]) - set(PACKAGES) == {"all", "dev"}
    for name, needs in extras.items():
        packages: set[str] = set()
        for need in needs:
            if included := re.match(r"txmsg\[(\w+)\]", need):
                packages |= PACKAGES[included[1]]
            else:
                word = re.split(r"[^\w-]", need)[0].replace("-", "_")
                packages.add(_IMPORTED_AS.get(word, word))
        assert packages == PACKAGES[name], name


ALL = frozenset[str]().union(*PACKAGES.values())


@pytest.mark.parametrize("packages", [ALL - {"click"}, ALL - PACKAGES["worker"], ALL - PACKAGES["broker"]])
def test_every_command_says_which_extra_it_lacks(packages: frozenset[str]) -> None:
    told = _told_without(packages, _COMMANDS, list(COMMANDS))
    assert told.keys() >= COMMANDS.keys()
    assert _wrong(told) == {}


@pytest.mark.parametrize("packages", [ALL, ALL - PACKAGES["broker"], ALL - PACKAGES["metaq"]])
def test_every_public_name_says_which_extra_it_lacks(packages: frozenset[str]) -> None:
    told = _told_without(packages, _NAMES, _MODULES)
    assert len(told) > len(_MODULES)
    assert _wrong(told) == {}


def test_the_extra_of_the_command_is_named_where_several_bring_a_package() -> None:
    exc = ModuleNotFoundError("No module named 'psutil'", name="psutil")
    assert lacking("txmsg worker", exc, ["worker"]) == (
        "txmsg worker needs psutil, which is not installed: run `pip install 'txmsg[worker]'`"
    )
    assert "txmsg[broker]" in str(lacking("txmsg up", exc, ["up"]))
    assert lacking("txmsg up", ModuleNotFoundError("No module named 'shop'", name="shop"), ["up"]) is None


def test_the_command_without_click_names_the_missing_package() -> None:
    program = _WITHOUT + "sys.argv = ['txmsg', 'rocketmq']\nimport txmsg.ops.cli.main"
    done = subprocess.run([sys.executable, "-c", program, '["click"]'], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "txmsg rocketmq needs click, which is not installed: run `pip install 'txmsg[rocketmq]'`\n",
    )
