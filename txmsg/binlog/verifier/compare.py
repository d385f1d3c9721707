"""Compares a log with its table, queue by queue, and names every difference."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from txmsg.binlog.verifier.log_walk import LogFiles
from txmsg.binlog.verifier.mirror import FIELDS, Row, VerifiedMirror, VerifiedQueue
from txmsg.binlog.verifier.table import MessageTable, TableQueue
from txmsg.errors import shown

DIFFERENCES_KEPT_MAX: Final = 20
_LOOK_S: Final = 0.05
_TOLD_EVERY: Final = 4096


@dataclass(frozen=True, slots=True)
class Difference:
    """A range of offsets of a queue with an error.

    kind: missing (in the table only), extra (in the log only), different, doubled (twice in the log, or behind a later
    one), unmarked (a gap that no hole marks), hole (marked as missing, but the table has it), damaged, foreign (a
    record in Kafka that no mirror wrote; its offsets are the partition's).
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
class VerifierReport:
    """The result of a comparison."""

    queues: int = 0
    messages: int = 0
    """Messages that were compared, equal except for the differences."""
    in_holes: int = 0
    """Offsets that the log marks as missing."""
    log_only: int = 0
    """Messages of the log that the table's retention has dropped: they cannot be compared."""
    table_only: int = 0
    """Messages of the table that the log's retention has deleted."""
    differing: Counter[str] = field(default_factory=Counter)
    """Numbers of offsets that differ, by kind."""
    differences: list[Difference] = field(default_factory=list)
    """The first differences; neighbours are joined."""
    other_topics: list[str] = field(default_factory=list)
    """Topics of the log that the database does not have, or has in memory only: they are not compared."""

    @property
    def is_equal(self) -> bool:
        return not self.differing

    def note(self, difference: Difference) -> None:
        """Count a difference, and keep it unless many are kept. One that continues the last one is joined with it."""
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
    where: Path | str,
    *,
    kafka_config: Path | None = None,
    topics: Sequence[str] = (),
    exclude: Sequence[str] = (),
    mirror: str = "metaq",
    wait_s: float = 0.0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> VerifierReport:
    """Compare all queues of the mirror's topics, or of those that match `topics` and `exclude`, in little memory.

    where: the directory of a log, or kafka://HOST:PORT,...[/PREFIX], then kafka_config is a file of Kafka's properties.

    Everything committed before the call must be in the log. wait_s: seconds that the mirror has to get there, and the
    table to show messages that the log has already. progress: called with the numbers of compared and of all messages.

    Raises CorruptLog for a directory that is not a log, StorageError when the database cannot be read.
    """
    report = VerifierReport()
    with _opened(where, kafka_config) as log, MessageTable(storage) as table:
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
            comparison = _QueueComparison(report, log, queue, begin, end)
            for compared in comparison.run(table.rows(queue, begin, end)):
                progress(done + compared, total)
            comparison.finish(table.begins([queue])[queue])
            done += end - begin
            progress(done, total)
    return report


def _opened(where: Path | str, kafka_config: Path | None) -> VerifiedMirror:
    if isinstance(where, str) and where.startswith("kafka://"):
        from txmsg.binlog.verifier.kafka_walk import KafkaTopics  # with txmsg[kafka] only

        return KafkaTopics(where, kafka_config)
    return LogFiles(Path(where))


def _fits(topic: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(topic, pattern) for pattern in patterns)


def _look_for_strangers(
    report: VerifierReport, log: VerifiedMirror, known: Sequence[TableQueue], queues: Sequence[TableQueue]
) -> None:
    """Note queues of the log that the table does not have."""
    in_log, in_table = log.topics(), {VerifiedQueue(queue.topic, queue.number) for queue in known}
    report.other_topics = sorted(in_log.keys() - {queue.topic for queue in known})
    strange = [
        queue
        for topic in sorted({queue.topic for queue in queues} & in_log.keys())
        for number in in_log[topic]
        if (queue := VerifiedQueue(topic, number)) not in in_table
    ]
    for queue, end in log.ends(strange).items():
        if end:
            report.note(Difference("extra", *queue, log.begin_offset(queue), end, "the database has no such queue"))


def _ends(
    log: VerifiedMirror, table: MessageTable, queues: Sequence[TableQueue], wait_s: float
) -> dict[TableQueue, int]:
    """Return the end of the comparison for each queue, after log and table had time to reach each other's end."""
    deadline = time.monotonic() + wait_s
    wanted = table.ends(queues)
    mirrored = _mirrored(log, queues)
    while time.monotonic() < deadline and (behind := [queue for queue in queues if mirrored[queue] < wanted[queue]]):
        time.sleep(_LOOK_S)
        mirrored |= _mirrored(log, behind)
    ahead = [queue for queue in queues if mirrored[queue] > wanted[queue]]
    while ahead and time.monotonic() < deadline:  # what waits for a standby is in the log before the table shows it
        ends = table.ends(ahead)
        ahead = [queue for queue in ahead if mirrored[queue] > ends[queue]]
        time.sleep(_LOOK_S if ahead else 0)
    return {queue: max(wanted[queue], mirrored[queue]) for queue in queues}


def _mirrored(log: VerifiedMirror, queues: Sequence[TableQueue]) -> dict[TableQueue, int]:
    ends = log.ends([VerifiedQueue(queue.topic, queue.number) for queue in queues])
    return {queue: ends[VerifiedQueue(queue.topic, queue.number)] for queue in queues}


class _QueueComparison:
    """The comparison of one queue, from `begin` to before `end`."""

    def __init__(self, report: VerifierReport, log: VerifiedMirror, queue: TableQueue, begin: int, end: int) -> None:
        self._report = report
        self._log = log
        self._queue = queue
        self._walk = log.walk(VerifiedQueue(queue.topic, queue.number), begin, end, self._note)
        self._extra: list[tuple[int, int]] = []

    def run(self, rows: Iterator[Row]) -> Iterator[int]:
        """Walk through both. Yields numbers of compared messages."""
        compared = 0
        log_rows = self._walk.rows()
        found = next(log_rows, None)
        for row in rows:
            while found is not None and found[0] < row[0]:
                _extend(self._extra, found[0])
                found = next(log_rows, None)
            if found is None or found[0] > row[0]:
                self._missing(row[0])
                continue
            compared += 1
            if found != (expected := self._log.expected(row)):
                self._different(found, expected)
            if compared % _TOLD_EVERY == 0:
                yield compared
            found = next(log_rows, None)
        while found is not None:
            _extend(self._extra, found[0])
            found = next(log_rows, None)
        self._report.messages += compared
        self._report.in_holes += self._walk.in_holes

    def finish(self, begin: int) -> None:
        """Note messages that only the log has. begin: the table's, which may have dropped segments meanwhile."""
        for first, end in self._extra:
            dropped = max(0, min(end, begin) - first)
            self._report.log_only += dropped
            if first + dropped < end:
                self._note("extra", first + dropped, end)

    def _missing(self, offset: int) -> None:
        if self._walk.is_cut(offset):
            self._report.table_only += 1
        elif _holds(self._walk.holes, offset):
            self._note("hole", offset, offset + 1, "marked as missing, but the table has it")
        elif not _holds(self._walk.damaged, offset):
            self._note("missing", offset, offset + 1)

    def _different(self, found: Row, expected: Row) -> None:
        names = [(name, i) for i, name in enumerate(FIELDS) if found[i] != expected[i]]
        detail = ", ".join(f"{name} is {shown(found[i])}, not {shown(expected[i])}" for name, i in names)
        self._note("different", found[0], found[0] + 1, detail)

    def _note(self, kind: str, begin: int, end: int, detail: str = "") -> None:
        self._report.note(Difference(kind, self._queue.topic, self._queue.number, begin, end, detail))


def _extend(ranges: list[tuple[int, int]], offset: int) -> None:
    """Add an offset that is greater than all others."""
    if ranges and ranges[-1][1] == offset:
        ranges[-1] = (ranges[-1][0], offset + 1)
    else:
        ranges.append((offset, offset + 1))


def _holds(ranges: list[tuple[int, int]], offset: int) -> bool:
    return any(begin <= offset < end for begin, end in ranges)
