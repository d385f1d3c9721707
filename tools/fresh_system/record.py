"""The page docs/tested-on.md, and the JSON that it is generated from. Each run replaces its own rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed|warnings?|deselected)")
_SKIP = re.compile(r"SKIPPED \[(\d+)\] \S+?(?::\d+)?: (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row: one command on one system. summary: its last line. skips: number of each reason."""

    system: str
    python: str
    command: str
    commit: str
    date: str
    is_passed: bool
    seconds: float
    summary: str
    skips: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        return self.system, minor(self.python), self.command


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A row: the demo in one circumstance. results: seconds for each user, or None if it failed.

    end: the line that it ended with, where it cannot run.
    """

    system: str
    python: str
    name: str
    meaning: str
    commit: str
    date: str
    users: int
    results: Mapping[str, float | None]
    end: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        return self.system, minor(self.python), self.name

    @property
    def is_passed(self) -> bool:
        """Return True if it passed for each user."""
        return None not in self.results.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRun:
    """A row: the tests of one part that use a database, on one version of it. summary, skips: as in Run."""

    database: str
    version: str
    part: str
    python: str
    commit: str
    date: str
    is_passed: bool
    seconds: float
    summary: str
    skips: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        return self.database, self.release, self.part

    @property
    def release(self) -> str:
        """Return 15 for PostgreSQL's 15.19; 11.4 for MariaDB's 11.4.5."""
        return self.version.split(".")[0] if self.database == "PostgreSQL" else minor(self.version)


_Row = TypeVar("_Row", Run, Met, DatabaseRun)


def minor(version: str) -> str:
    """Return 3.13 for 3.13.5."""
    return ".".join(version.split(".")[:2])


def counts_of(lines: Sequence[str]) -> dict[str, int]:
    """Return the counts in pytest's last line, such as {"passed": 12, "skipped": 1}; empty if there are none."""
    for line in reversed(lines):
        if re.search(r" in [\d.]+s\b", line) and (found := _COUNT.findall(line)):
            return {name.removesuffix("s") if name.startswith("error") else name: int(n) for n, name in found}
    return {}


def skips_of(lines: Iterable[str]) -> dict[str, int]:
    """Return the number of skipped tests by reason, the most frequent first, from the output of `pytest -ra`."""
    skips = Counter[str]()
    for line in lines:
        if match := _SKIP.match(line):
            skips[match[2]] += int(match[1])
    return dict(skips.most_common())


def summary_of(lines: Sequence[str]) -> str:
    """Return pytest's counts, or the last non-empty line."""
    if counts := counts_of(lines):
        return ", ".join(f"{number:,} {name}" for name, number in counts.items() if name != "deselected")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def replaced(rows: Sequence[_Row], new: _Row) -> list[_Row]:
    """Return the rows with a new one, which replaces the row with its key."""
    return list(({row.key: row for row in rows} | {new.key: new}).values())


def load(page: Path) -> tuple[list[Run], list[Met], list[DatabaseRun]]:
    """Return the rows in the JSON file; none if there is no such file."""
    path = page.with_suffix(".json")
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return (
        [Run(**row) for row in kept.get("runs", ())],
        [Met(**row) for row in kept.get("circumstances", ())],
        [DatabaseRun(**row) for row in kept.get("databases", ())],
    )


def save(page: Path, new: Run | Met | DatabaseRun) -> None:
    """Replace a row in the JSON beside the page, and write the page."""
    runs, met, databases = load(page)
    if isinstance(new, Run):
        # Stable: the commands of a system stay in their order.
        runs = sorted(replaced(runs, new), key=lambda row: row.key[:2])
    elif isinstance(new, Met):
        met = replaced(met, new)
    else:
        databases = sorted(replaced(databases, new), key=_order)
    kept = {
        "runs": [asdict(row) for row in runs],
        "circumstances": [asdict(row) for row in met],
        "databases": [asdict(row) for row in databases],
    }
    page.with_suffix(".json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page.write_text(page_of(runs, met, databases), encoding="utf-8")


def _order(row: DatabaseRun) -> tuple[bool, str, list[int], str]:
    """Sort PostgreSQL first; releases by number, not as text."""
    return row.database != "PostgreSQL", row.database, [int(part) for part in row.release.split(".")], row.part


def page_of(runs: Sequence[Run], met: Sequence[Met], databases: Sequence[DatabaseRun] = ()) -> str:
    """Return the page as Markdown."""
    lines = [
        "# Tested on",
        "",
        "`python3 -m tools.fresh_system` writes this page. It makes a minimal Debian with debootstrap, installs",
        "`python3-venv`, `make` and `git`, clones the repository, and runs the commands in it.",
        "",
        "## Systems",
        "",
        *table(
            ("System", "Python", "Command", "Result", "Time", "Last line", "Commit", "Date"),
            (
                (
                    run.system,
                    run.python,
                    f"`{run.command}`",
                    "passed" if run.is_passed else "**failed**",
                    duration(run.seconds),
                    run.summary,
                    f"`{run.commit}`",
                    run.date,
                )
                for run in runs
            ),
        ),
    ]
    for run in runs:
        if run.skips:
            lines += ["", f"Skipped on {run.system} with Python {run.python}:", ""]
            lines += table(("Tests", "Reason"), ((f"{n:,}", reason) for reason, n in run.skips.items()))
    for system, python in dict.fromkeys(row.key[:2] for row in met):
        here = [row for row in met if row.key[:2] == (system, python)]
        users = list(dict.fromkeys(user for row in here for user in row.results))
        lines += ["", f"## Circumstances: {system}, Python {here[0].python}", ""]
        lines += ["`make demo` with few users, when only this differs from a login on a fresh machine:", ""]
        lines += table(
            ("Circumstance", *users, "Users of the demo", "Commit", "Date"),
            (
                (row.meaning, *(result(row, user) for user in users), str(row.users), f"`{row.commit}`", row.date)
                for row in here
            ),
        )
    return "\n".join([*lines, *_of_databases(databases), ""])


def _of_databases(rows: Sequence[DatabaseRun]) -> list[str]:
    """Return the section of databases; empty without rows."""
    if not rows:
        return []
    lines = [
        "",
        "## Databases",
        "",
        "`make databases` writes this section. PostgreSQL is the Notify database and the business database, MariaDB",
        "and MySQL are business databases. A part is a set of test directories, of which the tests that use the server",
        "run.",
        "",
        *table(
            ("Database", "Part", "Result", "Time", "Last line", "Python", "Commit", "Date"),
            (
                (
                    f"{row.database} {row.version}",
                    row.part,
                    "passed" if row.is_passed else "**failed**",
                    duration(row.seconds),
                    row.summary,
                    row.python,
                    f"`{row.commit}`",
                    row.date,
                )
                for row in rows
            ),
        ),
    ]
    if skips := [(row, reason, count) for row in rows for reason, count in row.skips.items()]:
        lines += ["", "Skipped with databases:", ""]
        lines += table(
            ("Database", "Part", "Tests", "Reason"),
            ((f"{row.database} {row.version}", row.part, f"{count:,}", reason) for row, reason, count in skips),
        )
    return lines


def result(row: Met, user: str) -> str:
    """Return a cell: the time of the demo, its failure, or nothing for a user who did not run it."""
    if user not in row.results:
        return ""
    if row.end:
        return f"`{row.end}`"
    seconds = row.results[user]
    return "**failed**" if seconds is None else duration(seconds)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return ["| " + " | ".join(row) + " |" for row in (list(head), ["---"] * len(head), *cells)]


def duration(seconds: float) -> str:
    """Return 48 s, or 7 min 42 s."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
