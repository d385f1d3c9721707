"""Releases of txmsg as programs: an earlier one from its wheel, and the one of the working tree."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NOW", "Release", "unpacked"]

_ROOT = Path(__file__).resolve().parents[2]
_WHEELS = _ROOT / "tests" / "releases"
_COMMAND_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Release:
    """The directory that Python imports `txmsg` from."""

    path: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """For processes that shall run this release, whatever is installed and wherever they are started."""
        return {**os.environ, "PYTHONPATH": str(self.path), "PYTHONSAFEPATH": "1"}

    def run(self, *args: str) -> str:
        """What `txmsg ARGS` of this release prints; fails with what it says when its exit status is not 0."""
        done = subprocess.run(
            [sys.executable, "-m", "txmsg.cli.main", *args],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_S_MAX,
        )
        assert done.returncode == 0, f"txmsg {' '.join(args)} of {self.path}: {done.stdout}{done.stderr}"
        return done.stdout


NOW = Release(_ROOT)


def unpacked(version: str, directory: Path) -> Release:
    """The release as its wheel has it."""
    with zipfile.ZipFile(_WHEELS / f"txmsg-{version}-py3-none-any.whl") as wheel:
        wheel.extractall(directory)
    return Release(directory)
