"""Make programs that do not watch their parent, such as Java, end with a killed parent."""

from __future__ import annotations

import sys
from typing import Final

_PROGRAM: Final = """\
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):  # Linux
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, which outlives exec
os.execvp(sys.argv[1], sys.argv[1:])
"""
ENDING_WITH_PARENT: Final = (sys.executable, "-c", _PROGRAM)
"""Prefix of a command: the kernel kills it when the thread that started it ends."""
