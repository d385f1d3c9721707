"""The revisions of a Notify database: a directory of SQL for each, whose files run in the order of their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DIRECTORY = Path(__file__).parent


def revisions() -> Sequence[str]:
    """All that this release has, oldest first."""
    return sorted(path.name for path in DIRECTORY.iterdir() if path.name.isdecimal())


def statements_of(revision: str) -> Sequence[str]:
    """What brings a database to a revision from the one before it."""
    return [path.read_text(encoding="utf-8") for path in sorted((DIRECTORY / revision).glob("*.sql"))]
