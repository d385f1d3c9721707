"""Checks the free space and the permissions of directories, and clocks."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from shutil import disk_usage
from typing import Final

from txmsg.checks.brokers import CLOCK_DIFFERS, DISK_NEARLY_FULL
from txmsg.checks.check import Finding
from txmsg.checks.database import LOOKED_INTO
from txmsg.checks.thresholds import DEFAULTS, Thresholds

CLOCK_S_MAX: Final = 1.0


def free_space(directory: Path, what: str, thresholds: Thresholds = DEFAULTS) -> Iterator[Finding]:
    """Yield a finding if the disk of a directory is nearly full."""
    usage = disk_usage(directory)
    share = usage.free / usage.total
    if share < thresholds.disk_free_ratio:
        yield DISK_NEARLY_FULL.found(
            f"the disk of {what} ({directory}) has {share:.0%} free, {usage.free / 1024**3:.1f} GiB"
        )


def looked_into(directory: Path, whose: str) -> Iterator[Finding]:
    """Yield a finding if other users can read a directory."""
    if (mode := stat.S_IMODE(directory.stat().st_mode)) & 0o077:
        yield LOOKED_INTO.found(
            whose=whose, directory=directory, quoted=shlex.quote(str(directory)), mode=f"{mode:04o}"
        )


def different_clock(whose: str, now: float, begun: float, ended: float) -> Iterator[Finding]:
    """Yield a finding if a clock, read between `begun` and `ended`, differs from that of this machine."""
    # The other clock was read at some moment between the two, so half of the round trip proves no difference.
    ahead_s = now - (begun + ended) / 2
    if abs(ahead_s) - (ended - begun) / 2 > CLOCK_S_MAX:
        yield CLOCK_DIFFERS.found(
            instance=whose, seconds=f"{abs(ahead_s):.1f}", ahead="ahead of" if ahead_s > 0 else "behind"
        )
