"""The user that a run-book names for a server, when root runs the tests: neither root nor PostgreSQL's."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Final

from txmsg.runtime.child import ChildProcess, spawn_program

_NAMES: Final = ("daemon", "nobody")


@contextmanager
def open_directory() -> Iterator[Path]:
    """Create a directory that every user can reach, unlike pytest's when root makes them."""
    with TemporaryDirectory(prefix="txmsg-runbook-", dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def as_user(uid: int, gid: int) -> list[str]:
    """Return the prefix that runs a command as this user. It may read all files: Python's may be closed to others."""
    reads = [f"--{kind}=-all,+dac_read_search" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", *reads]


class ServerUser:
    """The user `daemon`, or without root the user of the tests."""

    def __init__(self) -> None:
        found = [pwd.getpwnam(name) for name in _NAMES if any(name == each.pw_name for each in pwd.getpwall())]
        self._entry = found[0] if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        self._prefix: list[str] = []
        if os.geteuid() == 0:
            self._prefix = [*as_user(self._entry.pw_uid, self._entry.pw_gid), "--"]

    @property
    def name(self) -> str:
        return self._entry.pw_name

    @property
    def uid(self) -> int:
        return self._entry.pw_uid

    @property
    def prefix(self) -> str:
        """Return the prefix of a shell command that this user runs."""
        return shlex.join([*self._prefix, "env"])

    @property
    def shell(self) -> str:
        """Return a shell function body that runs "$@" as this user."""
        return f'{self.prefix} "$@"'

    def make(self, directory: Path) -> None:
        """Create a directory owned by this user."""
        directory.mkdir(mode=0o700)
        self.take(directory)

    def take(self, path: Path) -> None:
        """Give this user ownership."""
        os.chown(path, self._entry.pw_uid, self._entry.pw_gid)

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> ChildProcess:
        """Start a Python module: see `Spawn`."""
        return spawn_program([*self._prefix, sys.executable, "-m", *command], environment, stderr)
