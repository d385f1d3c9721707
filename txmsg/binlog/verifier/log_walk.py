"""Walks through the files of a MetaQ log, queue by queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from txmsg.binlog.verifier.log_bytes import Damaged, LogBytes
from txmsg.binlog.verifier.mirror import NoteDifference, QueueWalk, Row, VerifiedQueue


class LogFiles:
    """A `VerifiedMirror` in a directory. Raises CorruptLog for one that is not a log."""

    def __init__(self, root: Path) -> None:
        self._log = LogBytes(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self) -> dict[str, list[int]]:
        return self._log.topics()

    def ends(self, queues: Sequence[VerifiedQueue]) -> dict[VerifiedQueue, int]:
        return {queue: self._log.end_offset(*queue) for queue in queues}

    def begin_offset(self, queue: VerifiedQueue) -> int:
        return next(self._log.cells(*queue)).base

    def walk(self, queue: VerifiedQueue, begin: int, end: int, note: NoteDifference) -> QueueWalk:
        return _QueueWalk(self._log, queue, begin, end, note)

    def expected(self, row: Row) -> Row:
        return row


class _QueueWalk:
    """One queue, by its cells."""

    def __init__(self, log: LogBytes, queue: VerifiedQueue, begin: int, end: int, note: NoteDifference) -> None:
        self._log = log
        self._queue = queue
        self._begin = begin
        self._end = end
        self._note = note
        self._is_cut = log.begin_position() > 0  # by the log's retention
        self._first: int | None = None  # offset that the log has
        self.holes: list[tuple[int, int]] = []
        self.damaged: list[tuple[int, int]] = []
        self.in_holes = 0

    def is_cut(self, offset: int) -> bool:
        return self._is_cut and (self._first is None or offset < self._first)

    def rows(self) -> Iterator[Row]:
        at: int | None = None
        for cell in self._log.cells(*self._queue):
            if cell.base >= self._end:
                return
            self._first = cell.base if self._first is None else self._first
            try:
                frame = self._log.frame(cell, *self._queue)
            except (Damaged, FileNotFoundError) as exc:
                if cell.position >= self._log.begin_position():  # else retention has deleted it meanwhile
                    self.damaged.append((cell.base, cell.end))
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
                self.holes.append((cell.base, end))
                self.in_holes += max(0, end - max(at, cell.base))
            for row in frame.rows:
                if at <= row[0] < self._end:
                    yield row
            at = max(at, end)
