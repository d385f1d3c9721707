"""The relation of log and table, decided by their ranges and by one message."""

from __future__ import annotations

import pytest

from txmsg.binlog.resume import QueueComparison, ResumePoint, first_difference, verdict
from txmsg.binlog.rows import TableRow
from txmsg.binlog.sink import MessageFingerprint, OffsetRange, content_crc

HERE, OTHER = MessageFingerprint(9, b"i" * 16, 0, 1), MessageFingerprint(9, b"j" * 16, 0, 1)


@pytest.mark.parametrize(
    ("log", "table", "in_log", "in_table", "expected"),
    [
        ((0, 0), (0, 0), None, None, ResumePoint(QueueComparison.NEW, 0)),
        ((0, 0), (0, 7), None, None, ResumePoint(QueueComparison.NEW, 0)),
        ((0, 0), (5, 7), None, None, ResumePoint(QueueComparison.NEW, 5)),
        ((0, 10), (0, 10), HERE, HERE, ResumePoint(QueueComparison.FITS, 10)),
        ((0, 10), (3, 20), HERE, HERE, ResumePoint(QueueComparison.FITS, 10)),
        ((0, 10), (9, 20), HERE, HERE, ResumePoint(QueueComparison.FITS, 10)),
        (
            (0, 10),
            (10, 20),
            HERE,
            None,
            ResumePoint(QueueComparison.FITS, 10),
        ),  # the message before is dropped: there is none to compare
        ((10, 10), (3, 20), None, None, ResumePoint(QueueComparison.FITS, 10)),  # the log's own retention
        ((0, 10), (0, 10), None, HERE, ResumePoint(QueueComparison.FITS, 10)),  # it ends with a hole
        ((0, 10), (11, 20), HERE, None, ResumePoint(QueueComparison.HOLE, 11)),
        ((0, 10), (0, 9), HERE, None, ResumePoint(QueueComparison.BEHIND, 10)),
        ((0, 10), (0, 0), HERE, None, ResumePoint(QueueComparison.BEHIND, 10)),
        ((0, 10), (0, 10), HERE, OTHER, ResumePoint(QueueComparison.DIFFERS, 10)),
        ((0, 10), (0, 30), HERE, OTHER, ResumePoint(QueueComparison.DIFFERS, 10)),
        ((0, 10), (0, 30), HERE, HERE._replace(crc=2), ResumePoint(QueueComparison.DIFFERS, 10)),
        ((0, 10), (0, 30), HERE, HERE._replace(n=1), ResumePoint(QueueComparison.DIFFERS, 10)),
        ((0, 10), (0, 30), HERE, None, ResumePoint(QueueComparison.DIFFERS, 10)),
    ],
)
def test_resume_point_follows_from_ranges_of_log_and_table(
    log: tuple[int, int],
    table: tuple[int, int],
    in_log: MessageFingerprint | None,
    in_table: MessageFingerprint | None,
    expected: ResumePoint,
) -> None:
    assert verdict(OffsetRange(*log), OffsetRange(*table), in_log, in_table) == expected


def _marks(*offsets: int, crc: int = 0) -> list[MessageFingerprint]:
    return [MessageFingerprint(offset, b"i" * 16, 0, crc) for offset in offsets]


@pytest.mark.parametrize(
    ("in_log", "in_table", "expected"),
    [
        (_marks(0, 1, 2), _marks(0, 1, 2), 3),
        (_marks(0, 1, 2), _marks(0, 1), 2),
        (_marks(0, 1, 2), [], 0),
        (_marks(0, 2), _marks(0, 1, 2), 3),  # a hole in the log
        (_marks(0, 1, 2), _marks(0, 2), 1),
        (_marks(0) + _marks(1, crc=7) + _marks(2), _marks(0, 1, 2), 1),  # and equal again behind it
    ],
)
def test_the_first_difference_is_found(
    in_log: list[MessageFingerprint], in_table: list[MessageFingerprint], expected: int
) -> None:
    assert first_difference(in_log, in_table, 3) == expected


def test_message_checksum_covers_every_part_and_its_length() -> None:
    def crc(
        key: bytes = b"k", tag: bytes = b"t", headers: bytes = b"h", body: bytes = b"b", ordering_key: bytes = b"o"
    ) -> int:
        return content_crc(TableRow(b"i" * 16, 0, key, tag, headers, body, 0, 0, ordering_key))

    x = b"x"
    seen = {crc(), crc(key=x), crc(tag=x), crc(headers=x), crc(body=x), crc(ordering_key=x), crc(key=b"kt", tag=b"")}
    assert len(seen) == 7
    assert content_crc(TableRow(b"other id", 3, b"k", b"t", b"h", b"b", 5, 6, b"o")) == crc()
