"""User code is checked by mypy --strict and pyright, as users run them: the expected errors are marked in the lines.

A line marked `# error: mypy[CODES] pyright[RULES]` must be an error of both, or of the one named; no other line may be.
`assert_type` says what passes, and as what.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import txmsg.client.fence
import txmsg.errors
from tests.acceptance.user_project import files_of

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CASES = HERE / "cases"

_RUN_S_MAX = 280
_MARK = re.compile(r"# error:(?P<checkers>.*)")
_CHECKER = re.compile(r"(?P<name>\w+)\[(?P<codes>[^\]]+)\]")

Errors = dict[str, set[str]]
"""`FILE:LINE` to its error codes."""


def expected(checker: str) -> Errors:
    """Return the errors marked in the lines."""
    errors: Errors = {}
    for path in sorted(CASES.glob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if mark := _MARK.search(line):
                for each in _CHECKER.finditer(mark["checkers"]):
                    if each["name"] == checker:
                        errors[f"{path.name}:{number}"] = set(each["codes"].split(","))
    return errors


def mypy() -> Errors:
    """Return the errors of mypy --strict, without the project's own settings."""
    # A cache of its own: that of the project's settings would be thrown away each time.
    options = ["--strict", "--output=json", "--config-file=", "--python-version=3.11", "--cache-dir=.mypy_cache/cases"]
    output = _run([sys.executable, "-m", "mypy", *options, str(CASES)])
    found: Errors = defaultdict(set)
    for line in output.splitlines():
        said = json.loads(line)
        if said["severity"] == "error" and Path(said["file"]).parent.resolve() == CASES:
            found[f"{Path(said['file']).name}:{said['line']}"].add(said["code"])
    return dict(found)


def pyright() -> Errors:
    """Return the errors of pyright in strict mode."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(HERE)]
    said = json.loads(_run(command))
    assert said["summary"]["filesAnalyzed"] == len(list(CASES.glob("*.py"))), said["summary"]
    found: Errors = defaultdict(set)
    for each in said["generalDiagnostics"]:
        if each["severity"] == "error":
            line = each["range"]["start"]["line"] + 1
            found[f"{Path(each['file']).name}:{line}"].add(each.get("rule", "syntax"))
    return dict(found)


def _run(command: list[str]) -> str:
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_RUN_S_MAX
    )
    assert done.returncode in (0, 1), f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.long  # `make lint` checks all that is ours
def test_mypy_reports_exactly_the_planted_mistakes() -> None:
    assert mypy() == expected("mypy")


@pytest.mark.long
def test_pyright_reports_exactly_the_planted_mistakes() -> None:
    assert pyright() == expected("pyright")


_UNTYPED = """
[mypy]
strict = true
[mypy-celery.*]
ignore_missing_imports = true
[mypy-receipts]
disable_error_code = untyped-decorator
"""
"""Celery has no types: neither its import nor its decorator is the recipe's."""


@pytest.mark.long
def test_recipes_of_the_cookbook_pass_a_strict_check(tmp_path: Path) -> None:
    for page in (ROOT / "docs" / "cookbook").glob("*.md"):
        for name, text in files_of(page).items():
            (tmp_path / name).write_text(text)
    (tmp_path / "mypy.ini").write_text(_UNTYPED)
    options = [f"--config-file={tmp_path / 'mypy.ini'}", "--cache-dir=.mypy_cache/recipes"]
    said = _run([sys.executable, "-m", "mypy", *options, str(tmp_path)])
    assert said.startswith("Success: no issues found"), said


def test_every_public_name_is_used_in_the_cases() -> None:
    written = "\n".join(path.read_text() for path in CASES.glob("*.py"))
    names = [*txmsg.__all__, *txmsg.errors.__all__, *txmsg.client.fence.__all__]
    assert [name for name in names if not re.search(rf"\b{name}\b", written)] == []


def test_package_is_marked_as_typed() -> None:
    assert (Path(txmsg.__file__).parent / "py.typed").is_file()
