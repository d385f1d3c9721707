"""A PostgreSQL whose clock can be stepped, while it runs and for all of its processes at once.

`python -m tests.chaos.keeper DIR` is the product's keeper, but preloads `clock.c` into PostgreSQL. A file says how
wrong the clock is. Without a C compiler the clock is right.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from txmsg.broker.embedded import EmbeddedPostgres, keeper

_SOURCE = Path(__file__).with_name("clock.c")
_OFFSET = "clock"
_LIBRARY = "clock.so"


class ClockedPostgres(EmbeddedPostgres):
    """An embedded PostgreSQL that is started by this module."""

    _keeper: ClassVar = "tests.chaos.keeper"


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc")


def prepare_clock(directory: Path) -> None:
    """Makes the clock of the servers whose data directories are in this one, before the first starts; it is right."""
    (directory / _OFFSET).write_bytes(bytes(8))
    if (cc := compiler()) is not None:
        command = [cc, "-shared", "-fPIC", "-O2", "-o", str(directory / _LIBRARY), str(_SOURCE)]
        subprocess.run(command, check=True, timeout=60)
    for path in directory.glob(f"{_OFFSET}*"):
        path.chmod(0o755)  # PostgreSQL may run as another user


def set_clock(directory: Path, offset_s: float) -> None:
    """From now on the clock of all servers below this directory is wrong by so much."""
    with (directory / _OFFSET).open("r+b") as file:  # in place: it is mapped
        file.write(struct.pack("=q", round(offset_s * 1e9)))


def main() -> int:
    root = Path(sys.argv[1])
    library = root.parent / _LIBRARY
    if library.exists():
        environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(root.parent / _OFFSET)}

        def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
            if Path(command[0]).name == "pg_ctl":
                options["env"] = options["env"] | environment
            return real_run(command, **options)

        real_run = subprocess.run
        patch.object(subprocess, "run", run).start()
    return keeper._main([str(root)])


if __name__ == "__main__":
    sys.exit(main())
