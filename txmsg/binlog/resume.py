"""What to do with a queue before anything is mirrored into it: decided by where log and table begin and end. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from txmsg.binlog.sink import MessageFingerprint, OffsetRange


class QueueComparison(Enum):
    """How the log of a queue compares with its table."""

    FITS = auto()
    """It ends where the table goes on, or within it, with the same message."""
    NEW = auto()
    """The log has nothing of it, and begins where the table begins."""
    HOLE = auto()
    """What comes next in the log is gone from the table: that is noted in the log, which goes on behind it."""
    BEHIND = auto()
    """The table ends before the log: a restored backup, or a standby that had not got all when it was promoted."""
    DIFFERS = auto()
    """The log ends with another message than the table has there: the same, and the table has grown since."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A verdict, and the offset that comes next in the log: behind a hole, if there is one."""

    verdict: QueueComparison
    next_offset: int


def verdict(
    log: OffsetRange, table: OffsetRange, in_log: MessageFingerprint | None, in_table: MessageFingerprint | None
) -> ResumePoint:
    """`log`, `table`: what they have. The marks: what they have at the log's last offset.

    No mark of the log: it has nothing of the queue, or ends with a hole. No mark of the table: it has no such row.
    """
    if log.end == 0:
        return ResumePoint(QueueComparison.NEW, table.begin)
    if log.end > table.end:
        return ResumePoint(QueueComparison.BEHIND, log.end)
    if log.end < table.begin:
        return ResumePoint(QueueComparison.HOLE, table.begin)
    if in_log is not None and log.end > table.begin and in_log != in_table:
        return ResumePoint(QueueComparison.DIFFERS, log.end)
    return ResumePoint(QueueComparison.FITS, log.end)


def first_difference(in_log: Iterable[MessageFingerprint], in_table: Iterable[MessageFingerprint], end: int) -> int:
    """The first offset at which log and table do not hold the same message; `end` if that is none."""
    table = iter(in_table)
    other = next(table, None)
    for mark in in_log:
        while other is not None and other.offset < mark.offset:  # a hole in the log
            other = next(table, None)
        if other != mark:
            return mark.offset
    return end
