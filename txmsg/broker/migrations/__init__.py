"""The revisions of a Notify database: a directory of SQL for each, whose files run in the order of their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from txmsg.runtime import revisions as of_directory

DIRECTORY = Path(__file__).parent


def revisions() -> Sequence[str]:
    """Return all revisions that this release has, oldest first."""
    return of_directory.revisions(DIRECTORY)


def statements_of(revision: str) -> Sequence[str]:
    """Return the statements that bring a database to a revision from the one before it."""
    return of_directory.sql_files(DIRECTORY, revision)
