"""Releases of txmsg as programs: the one of the working tree, and one that might follow it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from txmsg.broker import migrate

_ROOT = Path(__file__).resolve().parents[2]
_COMMAND_S_MAX = 60.0
_NEXT_REVISION = """
-- Adds a setting of topics, and a column to tables that brokers write all the time, and lets those of the release
-- before run on.
alter table txmsg.topic add column body_size_bytes_max int check (body_size_bytes_max > 0);
alter table txmsg.message add column of_the_next_release int not null default 0;
alter table txmsg.half_message add column of_the_next_release int not null default 0;
alter table txmsg.cursor add column of_the_next_release int not null default 0;
delete from txmsg.catalogue_of_revision;
insert into txmsg.catalogue_of_revision select * from txmsg.catalogue;
"""


@dataclass(frozen=True, slots=True)
class Release:
    """A release: the directory from which Python imports `txmsg`."""

    path: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment for processes of this release, wherever they are started."""
        return {**os.environ, "PYTHONPATH": str(self.path), "PYTHONSAFEPATH": "1"}

    def run(self, *args: str) -> str:
        """Return the output of `txmsg ARGS` of this release; fails with its error unless the exit status is 0."""
        done = self._done(*args)
        assert done.returncode == 0, f"txmsg {' '.join(args)} of {self.path}: {done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, *args: str) -> str:
        """Return the stderr of `txmsg ARGS`. Fails unless the exit status is 1."""
        done = self._done(*args)
        assert done.returncode == 1, f"txmsg {' '.join(args)} of {self.path}: {done.stdout}{done.stderr}"
        return done.stderr

    def _done(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "txmsg.ops.cli.main", *args],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_S_MAX,
        )


NOW = Release(_ROOT)


def write_next_revision(directory: Path, *, revision: str) -> None:
    """Write a revision after those of the working tree into a directory of revisions."""
    (directory / revision).mkdir()
    (directory / revision / "01_next.sql").write_text(_NEXT_REVISION)


def next_release(directory: Path, *, version: str, revision: str) -> Release:
    """Create a copy of the working tree as the next release: another version, and an additional revision that only
    adds.
    """
    package = directory / "txmsg"
    shutil.copytree(_ROOT / "txmsg", package, ignore=shutil.ignore_patterns("__pycache__"))
    _replace(package / "__init__.py", r'__version__ = "[^"]+"', f'__version__ = "{version}"')
    _replace(package / "broker" / "migrate.py", r"REVISIONS = .+", f"REVISIONS = {(*migrate.REVISIONS, revision)}")
    write_next_revision(package / "broker" / "migrations", revision=revision)
    _add_a_setting(package / "administration" / "topics.py")
    metadata = directory / f"txmsg-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: txmsg\nVersion: {version}\n")
    return Release(directory)


def _add_a_setting(values: Path) -> None:
    """Add the topic setting of the example in CONTRIBUTING.md."""
    shown = "    body_size_bytes_max: int | None = None"
    changed = '    body_size_bytes_max: QueueCount | None = setting("Largest body that is accepted.")'
    _replace(values, r"    queues: int\n    write_queues: int", rf"{shown}\n    queues: int\n    write_queues: int")
    _replace(values, r"(    queues: QueueCount \| None = setting\(\"Total.+)", rf"{changed}\n\1")


def _replace(path: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(f"^{pattern}$", replacement, path.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{pattern} is in {path} {count} times"
    path.write_text(text)
