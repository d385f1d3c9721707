"""The names that rotation gives the files of a path: app.log.1, app.log-20261123, app-20261123.log, app.log.old.

Not app-1.log: that may be the file of another process. Not compressed ones: what is in them was there before. Follows
links, as rotation happens beside the file that a link leads to; opens no file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

COMPRESSED: Final = ("7z", "br", "bz2", "gz", "lz", "lz4", "lzma", "lzo", "sz", "tgz", "xz", "z", "zip", "zst")
"""Endings of the names of compressed files, in lower case."""

_SEPARATORS: Final = "._-"
_AFTER_NAME: Final = re.compile(r"\d[\d._:T-]*|old|bak|prev")
_IN_NAME: Final = re.compile(r"\d{4}[._-]?\d\d[._-]?\d\d[\d._:T-]*")
_LINKS_MAX: Final = 40
"""Links followed at most: as many as the kernel follows."""


def is_compressed(name: str) -> bool:
    """Return True if this is the name of a compressed file."""
    return os.path.splitext(name)[1][1:].lower() in COMPRESSED


def bases_of(name: str) -> Iterator[str]:
    """Return the names that a file may have had before rotation gave it this one."""
    stem, suffix = os.path.splitext(name)
    for at, char in enumerate(name):
        if at and char in _SEPARATORS:
            if _AFTER_NAME.fullmatch(name, at + 1):
                yield name[:at]
            if _IN_NAME.fullmatch(stem, at + 1):
                yield stem[:at] + suffix


def places_of(path: Path) -> Iterator[Path]:
    """Return the path itself, and the target of each link on the way to its file."""
    for _ in range(_LINKS_MAX):
        yield path
        try:
            path = path.parent / os.readlink(path)
        except OSError:
            return


def rotated_files(*paths: Path) -> Iterator[Path]:
    """Return the files beside these paths, and beside the targets of their links, that have such names. Each name once.

    Raises OSError, after the files that it has found, for a directory that cannot be listed now.
    """
    unlisted: OSError | None = None
    for place in dict.fromkeys(place for path in paths for place in places_of(path)):
        try:
            names = _names_beside(place)
        except OSError as exc:
            unlisted = exc
        else:
            yield from (place.with_name(name) for name in names if place.name in bases_of(name))
    if unlisted is not None:
        raise unlisted


def files_between(old: Path, new: Path) -> Iterator[Path]:
    """Return the files that a link led to between two that rotation has named after their time: app-20261123.log.

    Raises OSError for a directory that cannot be listed now.
    """
    if old.parent != new.parent:
        return
    bases = {*bases_of(old.name)} & {*bases_of(new.name)}
    for name in _names_beside(new):
        if old.name < name < new.name and not bases.isdisjoint(bases_of(name)):
            yield new.with_name(name)


def _names_beside(path: Path) -> list[str]:
    """Return the names in a directory; none if it does not exist. Raises OSError if it cannot be listed now."""
    try:
        return sorted(os.listdir(path.parent))
    except (FileNotFoundError, NotADirectoryError):
        return []
