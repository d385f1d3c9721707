"""Programs of another Debian release, run here without installing them.

debootstrap brings the packages into the user's cache, with all that they need; they are unpacked, not configured. Each
program then runs with the loader and the libraries of its own release.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.brought import brought

_BRING_S_MAX: Final = 1800
_WITH_ITS_LIBRARIES: Final = """\
#!/bin/sh
root=$(dirname "$0")/../..
libraries=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu
exec "$root/lib64/ld-linux-x86-64.so.2" --library-path "$libraries" "$0.of-debian" "$@"
"""


def programs_of(suite: str, packages: Sequence[str], names: Sequence[str]) -> Path:
    """Return the usr directory of packages and their dependencies, downloaded if it is missing. Safe to call from
    several processes.

    names: their programs that can be run, such as sbin/mysqld. Needs amd64, and at the first call root, debootstrap and
    dpkg-deb.
    """

    def bring(empty: Path) -> Path:
        needs_root = f"{packages[0]} of Debian {suite} is brought by debootstrap, as root"
        assert os.geteuid() == 0, needs_root
        assert shutil.which("debootstrap"), f"{needs_root} (Debian: apt-get install debootstrap)"
        root = empty / "root"
        with tempfile.TemporaryDirectory(dir=empty) as system:
            included = f"--include={','.join(packages)}"
            _run(["debootstrap", "--download-only", "--variant=minbase", included, suite, system])
            for archive in sorted(Path(system, "var/cache/apt/archives").glob("*.deb")):
                _run(["dpkg-deb", "--extract", str(archive), str(root)])
        for name in names:
            program = root / "usr" / name
            program.rename(program.with_name(f"{program.name}.of-debian"))
            program.write_text(_WITH_ITS_LIBRARIES)
            program.chmod(0o755)
        return root

    return brought(f"debian-{suite}-{packages[0]}", bring, by="debootstrap") / "usr"


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=_BRING_S_MAX,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}"
