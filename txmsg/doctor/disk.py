"""Free space of a directory, and who can look into it."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from shutil import disk_usage
from typing import Final

from txmsg.checks.thresholds import DEFAULTS
from txmsg.doctor.finding import Finding, problem, warning

_WARNING_SHARE: Final = DEFAULTS.disk_free_ratio
_PROBLEM_SHARE: Final = _WARNING_SHARE / 2


def free_space(directory: Path, what: str, fix: str) -> Iterator[Finding]:
    """Whether the disk of a directory is nearly full."""
    usage = disk_usage(directory)
    left = f", {usage.free / 1024**3:.1f} GiB"
    yield from free_share(usage.free / usage.total, f"{what} ({directory})", fix, left=left)


def free_share(share: float, what: str, fix: str, *, left: str = "") -> Iterator[Finding]:
    """Whether a disk with this share free is nearly full. left: the same as a size."""
    if share < _WARNING_SHARE:
        found = problem if share < _PROBLEM_SHARE else warning
        yield found(
            f"the disk of {what} has {share:.0%} free{left}",
            why="on a full disk nothing is stored: sends fail",
            fix=fix,
        )


def looked_into(directory: Path, what: str, why: str) -> Iterator[Finding]:
    """Whether other users can look into a directory."""
    if (mode := stat.S_IMODE(directory.stat().st_mode)) & 0o077:
        yield warning(
            f"other users can look into the directory of {what}, {directory} (mode {mode:04o})",
            why=f"{why}, and who may write there can falsify them",
            fix=f"chmod 700 {shlex.quote(str(directory))}",
        )
