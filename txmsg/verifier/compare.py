"""Whether the log holds what the table holds: walks both, queue by queue, and names every difference."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from txmsg.errors import shown
from txmsg.verifier.log_bytes import FIELDS, Damaged, LogBytes, Row
from txmsg.verifier.table import Table, TableQueue

DIFFERENCES_KEPT_MAX: Final = 20
_LOOK_S: Final = 0.05
_TOLD_EVERY: Final = 4096


@dataclass(frozen=True, slots=True)
class Difference:
    """One range of offsets of a queue that is not as it must be.

    kind: missing (in the table only), extra (in the log only), different, doubled (twice in the log), unmarked (a gap
    that no hole marks), hole (marked as missing, but the table has it), damaged.
    """

    kind: str
    topic: str
    queue: int
    begin: int
    end: int
    detail: str = ""

    def __str__(self) -> str:
        offsets = f"offset {self.begin}" if self.end - self.begin == 1 else f"offsets {self.begin} to {self.end - 1}"
        return f"{self.kind}: topic {self.topic} queue {self.queue} {offsets}" + (
            f": {self.detail}" if self.detail else ""
        )


@dataclass(slots=True)
class Report:
    """What was found."""

    queues: int = 0
    messages: int = 0
    """Compared, and equal but for what the differences say."""
    in_holes: int = 0
    """Offsets that the log marks as missing."""
    log_only: int = 0
    """Messages of the log that the table's retention has dropped: they cannot be compared."""
    table_only: int = 0
    """Messages of the table that the log's retention has deleted."""
    differing: Counter[str] = field(default_factory=Counter)
    """Offsets that differ, by kind."""
    differences: list[Difference] = field(default_factory=list)
    """The first of them, neighbours together."""
    other_topics: list[str] = field(default_factory=list)
    """Topics of the log that the database does not have, or has in memory only: they are not looked at."""

    @property
    def is_equal(self) -> bool:
        return not self.differing

    def note(self, difference: Difference) -> None:
        """Counts it, and keeps it unless many are kept. What continues the last one is put together with it."""
        self.differing[difference.kind] += difference.end - difference.begin
        last = self.differences[-1] if self.differences else None
        if (
            last
            and replace(difference, begin=last.begin) == replace(last, end=difference.end)
            and last.end == difference.begin
        ):
            self.differences[-1] = replace(last, end=difference.end)
        elif len(self.differences) < DIFFERENCES_KEPT_MAX:
            self.differences.append(difference)


def verify(
    storage: str,
    root: Path,
    *,
    topics: Sequence[str] = (),
    exclude: Sequence[str] = (),
    mirror: str = "metaq",
    wait_s: float = 0.0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Report:
    """Compares all queues of the mirror's topics, or of those that fit `topics` and `exclude`, in little memory.

    What is committed when it begins must be in the log. wait_s: the time that the mirror has to get there, and the
    table to show what the log has already. progress is told how many messages are compared, and how many there are.

    Raises CorruptLog for a directory that is not a log, StorageError when the database cannot be read.
    """
    report = Report()
    log = LogBytes(root)
    with Table(storage) as table:
        known = table.queues()
        if not topics:
            topics, excluded = table.patterns(mirror)
            exclude = (*exclude, *excluded)
        queues = [queue for queue in known if _fits(queue.topic, topics) and not _fits(queue.topic, exclude)]
        _look_for_strangers(report, log, known, queues)
        report.queues = len(queues)
        begins, ends = table.begins(queues), _ends(log, table, queues, wait_s)
        total, done = sum(ends[queue] - begins[queue] for queue in queues), 0
        for queue in queues:
            begin, end = begins[queue], ends[queue]
            comparison = _Comparison(report, log, queue, begin, end)
            for compared in comparison.run(table.rows(queue, begin, end)):
                progress(done + compared, total)
            comparison.finish(table.begins([queue])[queue])
            done += end - begin
            progress(done, total)
    return report


def _fits(topic: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(topic, pattern) for pattern in patterns)


def _look_for_strangers(
    report: Report, log: LogBytes, known: Sequence[TableQueue], queues: Sequence[TableQueue]
) -> None:
    """Queues of the log that the table does not have."""
    in_log, in_table = log.topics(), {(queue.topic, queue.number) for queue in known}
    report.other_topics = sorted(in_log.keys() - {queue.topic for queue in known})
    for topic in sorted({queue.topic for queue in queues} & in_log.keys()):
        for number in in_log[topic]:
            if (topic, number) not in in_table and (end := log.end(topic, number)):
                begin = next(log.cells(topic, number)).base
                report.note(Difference("extra", topic, number, begin, end, "the database has no such queue"))


def _ends(log: LogBytes, table: Table, queues: Sequence[TableQueue], wait_s: float) -> dict[TableQueue, int]:
    """Up to where each queue is compared: whatever table or log had, after both had time to have what the other has."""
    deadline = time.monotonic() + wait_s
    wanted = table.ends(queues)
    mirrored = {queue: log.end(queue.topic, queue.number) for queue in queues}
    while time.monotonic() < deadline and (behind := [queue for queue in queues if mirrored[queue] < wanted[queue]]):
        time.sleep(_LOOK_S)
        mirrored |= {queue: log.end(queue.topic, queue.number) for queue in behind}
    ahead = [queue for queue in queues if mirrored[queue] > wanted[queue]]
    while ahead and time.monotonic() < deadline:  # what waits for a standby is in the log before the table shows it
        ends = table.ends(ahead)
        ahead = [queue for queue in ahead if mirrored[queue] > ends[queue]]
        time.sleep(_LOOK_S if ahead else 0)
    return {queue: max(wanted[queue], mirrored[queue]) for queue in queues}


class _Comparison:
    """One queue, from `begin` to before `end`."""

    def __init__(self, report: Report, log: LogBytes, queue: TableQueue, begin: int, end: int) -> None:
        self._report = report
        self._log = log
        self._queue = queue
        self._begin = begin
        self._end = end
        self._is_cut = log.begin() > 0  # by the log's retention
        self._first: int | None = None  # offset that the log has
        self._holes: list[tuple[int, int]] = []
        self._damaged: list[tuple[int, int]] = []
        self._extra: list[tuple[int, int]] = []

    def run(self, rows: Iterator[Row]) -> Iterator[int]:
        """Walks both; yields the number of messages compared, now and then."""
        compared = 0
        log_rows = self._log_rows()
        found = next(log_rows, None)
        for expected in rows:
            while found is not None and found[0] < expected[0]:
                _extend(self._extra, found[0])
                found = next(log_rows, None)
            if found is None or found[0] > expected[0]:
                self._missing(expected[0])
                continue
            compared += 1
            if found != expected:
                self._different(found, expected)
            if compared % _TOLD_EVERY == 0:
                yield compared
            found = next(log_rows, None)
        while found is not None:
            _extend(self._extra, found[0])
            found = next(log_rows, None)
        self._report.messages += compared

    def finish(self, begin: int) -> None:
        """Notes what the log alone has. begin: of the table, which may have dropped segments meanwhile."""
        for first, end in self._extra:
            dropped = max(0, min(end, begin) - first)
            self._report.log_only += dropped
            if first + dropped < end:
                self._note("extra", first + dropped, end)

    def _log_rows(self) -> Iterator[Row]:
        """The log's messages by rising offsets; notes what is wrong with their places."""
        at: int | None = None
        for cell in self._log.cells(self._queue.topic, self._queue.number):
            if cell.base >= self._end:
                return
            self._first = cell.base if self._first is None else self._first
            try:
                frame = self._log.frame(cell, self._queue.topic, self._queue.number)
            except (Damaged, FileNotFoundError) as exc:
                if cell.position >= self._log.begin():  # else it was deleted since: retention goes on
                    self._damaged.append((cell.base, cell.end))
                    self._note("damaged", cell.base, cell.end, str(exc))
                    at = max(at or 0, cell.end)
                continue
            end = cell.end if frame.hole_end is None else frame.hole_end
            at = cell.base if at is None else at
            if cell.base > at and at < self._begin:
                self._note("unmarked", at, min(cell.base, self._begin), "a gap, and no hole is marked")
            elif cell.base < at:
                self._note("doubled", cell.base, min(end, at))
            if frame.hole_end is not None:
                self._holes.append((cell.base, end))
                self._report.in_holes += max(0, end - max(at, cell.base))
            for row in frame.rows:
                if at <= row[0] < self._end:
                    yield row
            at = max(at, end)

    def _missing(self, offset: int) -> None:
        if self._is_cut and (self._first is None or offset < self._first):
            self._report.table_only += 1
        elif _holds(self._holes, offset):
            self._note("hole", offset, offset + 1, "marked as missing, but the table has it")
        elif not _holds(self._damaged, offset):
            self._note("missing", offset, offset + 1)

    def _different(self, found: Row, expected: Row) -> None:
        names = [(name, i) for i, name in enumerate(FIELDS) if found[i] != expected[i]]
        detail = ", ".join(f"{name} is {shown(found[i])}, not {shown(expected[i])}" for name, i in names)
        self._note("different", found[0], found[0] + 1, detail)

    def _note(self, kind: str, begin: int, end: int, detail: str = "") -> None:
        self._report.note(Difference(kind, self._queue.topic, self._queue.number, begin, end, detail))


def _extend(ranges: list[tuple[int, int]], offset: int) -> None:
    """Adds an offset, which is greater than all there are."""
    if ranges and ranges[-1][1] == offset:
        ranges[-1] = (ranges[-1][0], offset + 1)
    else:
        ranges.append((offset, offset + 1))


def _holds(ranges: list[tuple[int, int]], offset: int) -> bool:
    return any(begin <= offset < end for begin, end in ranges)
