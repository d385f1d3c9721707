"""Decides how to continue a queue, by the ends and fingerprints of its log and its table, before mirroring. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from txmsg.binlog.sink import MessageFingerprint, OffsetRange


class QueueComparison(Enum):
    """The result of comparing a queue's log with its table."""

    FITS = auto()
    """The log ends where the table continues, or within the table and with the same message."""
    NEW = auto()
    """The log has no messages of the queue, and begins where the table begins."""
    HOLE = auto()
    """The table has dropped the log's next offsets: the log records a hole, and continues behind it."""
    BEHIND = auto()
    """The table ends before the log: a restored backup, or the promotion of a standby that lacked messages."""
    DIFFERS = auto()
    """The log's last message is another one than the table's at that offset: as BEHIND, and the table has
    grown since."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A verdict, and the offset at which the log continues: behind a hole, if there is one."""

    verdict: QueueComparison
    next_offset: int


def verdict(
    log: OffsetRange, table: OffsetRange, in_log: MessageFingerprint | None, in_table: MessageFingerprint | None
) -> ResumePoint:
    """Compare a queue's log and table by their ranges and by their messages at the log's last offset.

    in_log is None if the log has no messages of the queue, or ends with a hole. in_table is None if the table lacks the
    row.
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
    """Return the first offset at which log and table hold different messages; `end` if there is none."""
    table = iter(in_table)
    other = next(table, None)
    for mark in in_log:
        while other is not None and other.offset < mark.offset:  # a hole in the log
            other = next(table, None)
        if other != mark:
            return mark.offset
    return end
