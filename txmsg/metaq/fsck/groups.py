"""A log together with its groups: their small logs, which are logs like any other, and their own files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from txmsg.errors import CorruptLog
from txmsg.metaq.fsck.check import check, size_bytes_of
from txmsg.metaq.fsck.repair import repair
from txmsg.metaq.fsck.report import LogCheckReport, Problem
from txmsg.metaq.fsck.scan import Progress
from txmsg.metaq.group.files import begins_in, offset_in, queue_file, queues_in
from txmsg.metaq.group.logs import turn
from txmsg.metaq.group.settings import settings_in


def _small_logs(root: Path) -> list[Path]:
    """Return the logs of retries and dead letters of all groups."""
    return sorted(directory.parent for directory in root.glob("groups/*/*/commitlog"))


def size_bytes_with_groups(root: Path) -> int:
    """Return the number of bytes to read."""
    return sum(map(size_bytes_of, (root, *_small_logs(root))))


def check_with_groups(root: Path, progress: Progress = lambda _: None) -> LogCheckReport:
    """Check a log and its groups; see `check`. Counts are those of the log itself."""
    report = check(root, progress).report
    report.problems += _unreadable(root)
    for log in _small_logs(root):
        place = log.relative_to(root)
        try:
            found = check(log, progress).report
        except (CorruptLog, FileNotFoundError):
            if log.exists():
                raise
            continue  # the group was deleted meanwhile
        way_out = f"`txmsg metaq check {log} --repair` mends it, also while the log itself is written"
        report.problems += [
            replace(problem, file=f"{place}/{problem.file}", way_out=way_out) for problem in found.problems
        ]
        report.notes += [f"{place}: {note}" for note in found.notes]
        report.holes += found.holes
    return report


def repair_with_groups(root: Path, progress: Progress = lambda _: None) -> list[str]:
    """Repair a log and the small logs of its groups; see `repair`. Files of groups are left to the operator."""
    done = repair(root, progress)
    for log in _small_logs(root):
        with turn(log.with_suffix(".lock")):
            done += [f"{log.relative_to(root)}: {line}" for line in repair(log, progress)]
    return done


def _unreadable(root: Path) -> Iterator[Problem]:
    """Return the files with begins and offsets of groups that cannot be read."""

    def look(read: Callable[[Path], Any], path: Path) -> Iterator[Problem]:
        try:
            read(path)
        except CorruptLog as exc:
            text, _, way_out = str(exc).rpartition(": ")
            yield Problem(file=str(path.relative_to(root)), text=text, way_out=way_out)

    for group in sorted(group for group in root.glob("groups/*") if not group.name.startswith(".")):
        yield from look(lambda path: begins_in(path.parent), group / "begins.json")
        yield from look(lambda path: settings_in(path.parent), group / "settings.json")
        for queue in queues_in(group):
            yield from look(offset_in, queue_file(group, queue))
