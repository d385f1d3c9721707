"""A project of a txmsg user: only its own files, and a pytest that discovers the plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_RUN_S_MAX = 280.0
_FILE = re.compile(r"^<!-- file: (\S+) -->\n```(?:python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files_of(page: Path) -> dict[str, str]:
    """Return the files that a page shows, by name."""
    return dict(_FILE.findall(page.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result and output of a run of pytest."""

    status: int
    output: str

    @property
    def counts(self) -> dict[str, int]:
        """The counts of the summary: {"passed": 3}."""
        summary = self.output.rstrip().rpartition("\n")[2]
        return {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|errors?|warnings?)", summary)}


class UserProject:
    """A project directory with these files."""

    def __init__(self, directory: Path, files: Mapping[str, str]) -> None:
        self.directory = directory
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
        self._declare_plugin()

    def _declare_plugin(self) -> None:
        """Write the entry points of txmsg as pip would: the working tree may be installed differently."""
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
        metadata = self.directory / "installed" / "txmsg_of_the_tree-0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: txmsg-of-the-tree\nVersion: 0\n")
        lines = [f"{name} = {module}" for name, module in declared.items()]
        (metadata / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))

    def pytest(self, *args: str) -> Outcome:
        """Run pytest in it, as its user would, with warnings as errors."""
        plugins = ("-p", "tests.unclosed", "-p", "no:cacheprovider")
        path = os.pathsep.join([str(self.directory / "installed"), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-W", "error", *plugins, "--rootdir=.", *args],
            cwd=self.directory,
            # Its temporary directories are its own: pytest cleans up what other runs have left, while they do so, too.
            env={**os.environ, "PYTHONPATH": path, "PY_COLORS": "0", "PYTEST_DEBUG_TEMPROOT": str(self.directory)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_RUN_S_MAX,
        )
        return Outcome(done.returncode, done.stdout + done.stderr)
