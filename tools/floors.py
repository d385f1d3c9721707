"""Prints the oldest version of each package that pyproject.toml allows, as constraints for pip.

python tools/floors.py >FILE && pip install -c FILE -e '.[dev]'
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def pins(project: Mapping[str, Any]) -> list[str]:
    """Return `name==version` of all extras, with the markers of requirements, without the project itself."""
    needs = {*project["dependencies"], *(need for each in project["optional-dependencies"].values() for need in each)}
    return sorted(pin(need) for need in needs if not need.startswith(f"{project['name']}["))


def pin(need: str) -> str:
    """Return the requirement for the oldest version; constraints have no extras."""
    found = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?[>=]=([^,;]+)(?:,[^;]+)?(;.*)?", need)
    if found is None:
        raise ValueError(f"{need!r} has no oldest version: write >= or == first")
    return f"{found[1]}=={found[2]}{found[3] or ''}"


if __name__ == "__main__":
    print(*pins(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]), sep="\n")
