"""The revisions of txmsg's tables in a business database: a directory for each, with a file of SQL for each database.

Each brings the tables to its revision from the one before, the first from nothing, and ends with writing its number
into txmsg_fence_identity. A published one is never edited. It only adds what the release before can live with: tables
are upgraded first, then applications. A statement ends with a `;` at the end of a line, and has none within.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from txmsg.errors import MisuseError, shown
from txmsg.runtime import revisions as of_directory

DIRECTORY: Final = Path(__file__).parent
_FILES: Final = {
    "postgresql": "postgresql.sql",
    "mysql": "mysql.sql",
    "mariadb": "mysql.sql",
    "sqlite": "sqlite.sql",
}
_END: Final = re.compile(r";[ ]*(?:\n|$)")
_COMMENT: Final = re.compile(r"^--.*\n?", re.MULTILINE)


def changes_sql(dialect: str, *, since: str | None = None, to: str | None = None) -> list[str]:
    """Return the statements that bring txmsg's tables in a business database from one revision to another.

    For migrations that must print the same in years, as with Alembic, whose `op.execute` takes each, also with `--sql`.
    dialect: "postgresql", "mysql", "mariadb" or "sqlite". since: the revision that the tables have; None: there are no
    tables yet. to: default the newest of this release. Raises MisuseError for other dialects and unknown revisions.
    """
    if dialect not in _FILES:
        raise MisuseError(f"txmsg has no tables for {shown(dialect)}: give one of {', '.join(_FILES)}")
    there = of_directory.revisions(DIRECTORY)
    for each in (since, to):
        if each is not None and each not in there:
            raise MisuseError(
                f"txmsg's tables have no revision {shown(each)} in this release: there are {', '.join(there)}"
            )
    chosen = [each for each in there if (since or "") < each <= (to or there[-1])]
    return [
        statement
        for revision in chosen
        for text in of_directory.sql_files(DIRECTORY, revision, _FILES[dialect])
        for part in _END.split(text)
        if (statement := _COMMENT.sub("", part).strip())
    ]
