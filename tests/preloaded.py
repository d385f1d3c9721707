"""Libraries in C that tests preload into programs (LD_PRELOAD): compiled at need by the system's compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HOW_TO_INSTALL_CC = "no C compiler is installed: `apt-get install gcc libc6-dev` (Debian)"


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc")


def compile_library(source: Path, library: Path) -> None:
    """Compiles a source file to a library that other users can read, too. Raises OSError without a compiler."""
    cc = compiler()
    if cc is None:
        raise OSError(HOW_TO_INSTALL_CC)
    subprocess.run([cc, "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True, timeout=60)
    library.chmod(0o755)
