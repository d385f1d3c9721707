"""A PostgreSQL whose clock can be stepped, while it runs and for all of its processes at once, and whose disk is slow.

`python -m tests.chaos.keeper DIR` is the product's keeper, but preloads into PostgreSQL what has been prepared beside
the data directory: `clock.c`, and tests/disk.c. Without a C compiler the clock is right and the disk fast.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from tests.disk import Disk
from tests.preloaded import compile_library, compiler
from txmsg.broker.embedded import EmbeddedPostgres, keeper

_SOURCE = Path(__file__).with_name("clock.c")
_OFFSET = "clock"
_LIBRARY = "clock.so"
_FORGETS = "/pg_wal/"
"""The write-ahead log, on whose syncs commits rest. No other file is ever ahead of it, so all of those may stay."""


class DisturbedPostgres(EmbeddedPostgres):
    """An embedded PostgreSQL started by this module."""

    _keeper: ClassVar = "tests.chaos.keeper"

    @property
    def disk(self) -> Disk:
        """Its disk, with a delay that all servers in this directory share. Make it forgetful before the start."""
        return _disk_of(self.data_dir)

    def forget_unsynced(self) -> int:
        """Drop unsynced writes, with no server process running. Returns the number of lost writes."""
        return self.disk.forget(self.data_dir / "cluster" / "pg_wal")


def prepare_clock(directory: Path) -> None:
    """Build the clock library for the servers with data directories below this one, before the first starts."""
    offset = directory / _OFFSET
    offset.write_bytes(bytes(8))
    offset.chmod(0o644)  # PostgreSQL may run as another user
    if compiler() is not None:
        compile_library(_SOURCE, directory / _LIBRARY)


def set_clock(directory: Path, offset_s: float) -> None:
    """Set the clock error of all servers below this directory."""
    with (directory / _OFFSET).open("r+b") as file:  # in place: it is mapped
        file.write(struct.pack("=q", round(offset_s * 1e9)))


def _disk_of(root: Path) -> Disk:
    return Disk(root.parent, root.name)


def _environment(root: Path) -> dict[str, str]:
    """Return the additional environment of PostgreSQL."""
    found: list[dict[str, str]] = []
    library, disk = root.parent / _LIBRARY, _disk_of(root)
    if library.exists():
        found.append({"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(root.parent / _OFFSET)})
    if disk.is_prepared:
        found.append(dict(disk.environment(forgets=_FORGETS if disk.is_forgetful else None)))
    together = {name: value for each in found for name, value in each.items()}
    if found:
        together["LD_PRELOAD"] = ":".join(each["LD_PRELOAD"] for each in found)
    return together


def main() -> int:
    root = Path(sys.argv[1])
    environment = _environment(root)

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if Path(command[0]).name == "pg_ctl":
            options["env"] = options["env"] | environment
        return real_run(command, **options)

    real_run = subprocess.run
    patch.object(subprocess, "run", run).start()
    return keeper._main([str(root)])


if __name__ == "__main__":
    sys.exit(main())
