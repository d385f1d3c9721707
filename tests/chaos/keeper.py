"""A PostgreSQL whose clock can be stepped, while it runs and for all of its processes at once.

`python -m tests.chaos.keeper DIR` is the product's keeper, but preloads libfaketime into PostgreSQL (Debian: `apt-get
install libfaketime`). How wrong the clock is stands in a file. Without the library the clock is right.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from txmsg.embedded import EmbeddedPostgres, keeper

OFFSET_FILE = "clock"
"""Beside the data directory, so that all servers of a run have one clock."""


class ClockedPostgres(EmbeddedPostgres):
    """An embedded PostgreSQL that is started by this module."""

    _keeper: ClassVar = "tests.chaos.keeper"


def library() -> Path | None:
    """Where libfaketime is, if it is installed."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


def set_clock(directory: Path, offset_s: float) -> None:
    """From now on the clock of all servers below this directory is wrong by so much."""
    new = directory / f"{OFFSET_FILE}.new"
    new.write_text(f"{offset_s:+.3f}\n")
    new.chmod(0o644)  # PostgreSQL may run as another user
    new.rename(directory / OFFSET_FILE)


def main() -> int:
    root = Path(sys.argv[1])
    preloaded = library()
    if preloaded is not None:
        environment = {
            "LD_PRELOAD": str(preloaded),
            "FAKETIME_TIMESTAMP_FILE": str(root.parent / OFFSET_FILE),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

        def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
            if Path(command[0]).name == "pg_ctl":
                options["env"] = options["env"] | environment
            return real_run(command, **options)

        real_run = subprocess.run
        patch.object(subprocess, "run", run).start()
    return keeper._main([str(root)])


if __name__ == "__main__":
    sys.exit(main())
