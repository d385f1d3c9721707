"""Revisions of a schema: a directory of SQL files for each, by its number. Knows no database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def revisions(directory: Path) -> Sequence[str]:
    """Return all revisions of this release, oldest first."""
    return sorted(path.name for path in directory.iterdir() if path.name.isdecimal())


def sql_files(directory: Path, revision: str, pattern: str = "*.sql") -> Sequence[str]:
    """Return the texts that bring a database to a revision from the one before, in the order of the files' names."""
    return [path.read_text(encoding="utf-8") for path in sorted((directory / revision).glob(pattern))]
