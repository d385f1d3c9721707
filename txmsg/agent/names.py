"""Which names rotation gives the files of a path: app.log.1, app.log-20261123, app-20261123.log, app.log.old. Pure.

Not app-1.log: that may be the file of another process. Not compressed ones: what is in them was there before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SEPARATORS: Final = "._-"
_AFTER_NAME: Final = re.compile(r"\d[\d._:T-]*|old|bak|prev")
_IN_NAME: Final = re.compile(r"\d{4}[._-]?\d\d[._-]?\d\d[\d._:T-]*")


def bases_of(name: str) -> Iterator[str]:
    """The names that a file may have had before rotation gave it this one."""
    stem, suffix = os.path.splitext(name)
    for at, char in enumerate(name):
        if at and char in _SEPARATORS:
            if _AFTER_NAME.fullmatch(name, at + 1):
                yield name[:at]
            if _IN_NAME.fullmatch(stem, at + 1):
                yield stem[:at] + suffix


def rotated_files(path: Path) -> Iterator[Path]:
    """The files beside a path that have such names."""
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return
    yield from (path.parent / name for name in names if path.name in bases_of(name))
