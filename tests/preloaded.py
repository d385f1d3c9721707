"""C libraries that tests preload into programs (LD_PRELOAD), compiled on demand by the system's compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HOW_TO_INSTALL_CC = "no C compiler is installed: `apt-get install gcc libc6-dev` (Debian)"


def compiler() -> str | None:
    """Return the C compiler, if there is one."""
    return shutil.which("cc")


def compile_library(source: Path, library: Path) -> None:
    """Compile a source file to a library that other users can read. Raises OSError without a compiler."""
    cc = compiler()
    if cc is None:
        raise OSError(HOW_TO_INSTALL_CC)
    subprocess.run([cc, "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True, timeout=60)
    library.chmod(0o755)
