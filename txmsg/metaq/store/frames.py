"""Tells apart the remains of a crash: whole frames, a torn end, damage."""

from __future__ import annotations

from collections.abc import Iterator

from txmsg.metaq.format.frame import HEADER_SIZE_BYTES_MAX, MAGIC, BadFrame, FrameKind, Header, read_header, verify
from txmsg.metaq.store.commit_log import CommitLogReader


def frames(log: CommitLogReader, log_id: int, start: int, end: int) -> Iterator[Header]:
    """Return the headers of whole frames from `start` on. Raises DamagedFrame at the first damaged one."""
    firsts = log.files()
    for first, file_end in zip(firsts, [*firsts[1:], end], strict=False):  # none at all in a new log
        # A frame never spans two files, so each file is read for itself.
        position = max(first, start)
        while position < file_end:
            try:
                header = whole_frame(log, log_id, position, file_end)
            except BadFrame as exc:
                raise DamagedFrame(position, str(exc)) from exc
            position = header.end
            if header.kind is not FrameKind.PAD:
                yield header


class DamagedFrame(Exception):
    """Raised for a log without a whole frame at `position`."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"position {position}: {why}")
        self.position = position


def whole_frame(log: CommitLogReader, log_id: int, position: int, end: int) -> Header:
    """Return the header of the frame at this position, whose payload matches its checksum, too. Raises BadFrame.

    `end`: of the file, or before it.
    """
    header = read_header(log.ahead(position, min(HEADER_SIZE_BYTES_MAX, end - position), end))
    verified_payload(header, log, log_id, position, end)
    return header


def verified_payload(header: Header, log: CommitLogReader, log_id: int, position: int, end: int) -> memoryview:
    """Return the stored payload of a frame of this log, which is whole and at its own position. Raises BadFrame."""
    if header.position != position:
        raise BadFrame(f"it is a frame written for position {header.position}")
    if header.log_id != log_id:
        raise BadFrame("it is a frame of another log")
    if header.end > end:
        raise BadFrame("the frame is cut off")
    return verify(header, log.ahead(position, header.size_bytes, end))


def torn_end(log: CommitLogReader, log_id: int, position: int, end: int) -> bool:
    """Return True if incomplete data at `position` is the torn end of a crash: no later frame says that it was
    on disk.
    """
    firsts = log.files()
    for first, file_end in zip(firsts, [*firsts[1:], end], strict=False):
        start = max(first, position + 1)
        while header := next_frame(log, log_id, start, file_end):
            # The later frame was written when this position was on disk, so it may have been acknowledged: that is
            # damage, and cutting it off would lose messages silently.
            if header.synced > position:
                return False
            start = header.end
    return True


def next_frame(log: CommitLogReader, log_id: int, start: int, end: int) -> Header | None:
    """Return the first whole frame in this part of a file, at whatever position it begins; None if there is none."""
    while (start := log.find_bytes(MAGIC, start, end)) < end:
        try:
            return whole_frame(log, log_id, start, end)
        except BadFrame:
            # A payload can contain the magic bytes: the search continues one byte behind a false hit.
            start += 1
    return None
