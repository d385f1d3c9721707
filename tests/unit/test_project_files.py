"""Makefile, CI workflow and pre-commit name only existing targets and files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools import floors

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOW = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")


def test_the_workflow_runs_existing_make_targets_and_files() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    runs = re.findall(r"^ *-? ?run: *(.*)$", WORKFLOW, re.MULTILINE)
    assert len(runs) >= 5
    for run in runs:
        make, _, target = run.partition(" ")
        assert (make == "make" and target in targets) or (ROOT / run).is_file(), run


def test_every_target_of_the_makefile_is_phony() -> None:
    [phony] = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == set(re.findall(r"^([a-z-]+):(?! override)", MAKEFILE, re.MULTILINE))


@pytest.mark.parametrize("name", ["Makefile", ".pre-commit-config.yaml", ".ci/run", "CONTRIBUTING.md"])
def test_every_named_script_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    scripts = re.findall(r"\b(?:tools|benchmarks|tests)/[\w/]+\.py\b", text)
    modules = re.findall(r"-m ((?:tests|benchmarks)\.[\w.]+)", text)
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
    places = [ROOT / module.replace(".", "/") for module in modules]
    assert [
        place for place in places if not (place / "__main__.py").is_file() and not place.with_suffix(".py").is_file()
    ] == []


def test_every_requirement_has_a_lowest_version_to_test() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = floors.pins(project)
    assert "protobuf==6.31.1" in found
    assert "psycopg==3.3.9" in found  # of psycopg[binary,pool]
    assert "h2==4.4" in found  # of >=4.4,<5
    assert "numpy==2.3.2; python_version >= '3.14'" in found
    with pytest.raises(ValueError, match="'shop' has no oldest version"):
        floors.pin("shop")


def test_the_tools_of_a_release_are_pinned_by_hash() -> None:
    wanted = (ROOT / "tools/release.in").read_text(encoding="utf-8").split()
    pinned = dict(
        re.findall(r"^([\w-]+)==[^\n]*\\\n +--hash=(sha256):", (ROOT / "tools/release.txt").read_text(), re.MULTILINE)
    )
    assert wanted
    assert [name for name in wanted if name not in pinned] == []
    [backend] = re.findall(r'^build-backend = "(\w+)\.', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert backend in pinned  # it builds without isolation
