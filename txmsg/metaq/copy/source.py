"""The bytes of a log from a position on, which a leader sends to its copies. Uses no network."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from txmsg.errors import CopyDiverged, CorruptLog
from txmsg.metaq.format.frame import HEADER_SIZE_BYTES_MAX, BadFrame, read_header
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.store.cells import Cells, queue_directory, queues_of
from txmsg.metaq.store.commit_log import CommitLogReader
from txmsg.metaq.store.reader import LogReader


class CopyTail(NamedTuple):
    """The end of a copy. last_position, last_crc: a frame near its end, by position and header_crc; 0, 0: none."""

    position: int
    last_position: int = 0
    last_crc: int = 0


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes of one file. position: of the data; if it is not the requested one, the copy starts again there.

    first: where the file begins. begin: the first position kept. ends: see `ends_before`.
    """

    begin: int
    first: int
    position: int
    data: memoryview = field(default_factory=lambda: memoryview(b""))
    ends: Mapping[LogQueue, int] = field(default_factory=dict)


def read_piece(root: Path, tail: CopyTail | None, end: int, size_bytes_max: int) -> FilePiece:
    """Return the bytes that follow a copy's tail, up to `end`, which is on disk; maybe none.

    None: the copy has nothing yet.

    Raises CopyDiverged for a tail that is not the log's.
    """
    log = CommitLogReader(root / "commitlog")
    firsts = log.files()
    begin = firsts[0] if firsts else end
    if tail is None or tail.position < begin:
        return FilePiece(begin, begin, begin, ends=ends_before(root, begin))
    _require_shared(log, tail, begin, end)
    place = bisect_right(firsts, tail.position) - 1
    first = firsts[place] if firsts else begin
    file_end = firsts[place + 1] if place + 1 < len(firsts) else end
    size_bytes = min(size_bytes_max, min(file_end, end) - tail.position)
    data = log.read(tail.position, size_bytes) if size_bytes > 0 else memoryview(b"")
    return FilePiece(begin, first, tail.position, data)


def _require_shared(log: CommitLogReader, tail: CopyTail, begin: int, end: int) -> None:
    """Raise CopyDiverged unless this log has the copy's last frame, and reaches as far."""
    if tail.position > end:
        raise CopyDiverged(f"the copy ends at position {tail.position}, after the end of its leader, {end}")
    if not tail.last_crc or tail.last_position < begin:
        return
    try:
        header = read_header(log.read_some(tail.last_position, HEADER_SIZE_BYTES_MAX))
    except (BadFrame, CorruptLog) as exc:
        raise CopyDiverged(
            f"its leader has no frame at position {tail.last_position}, as the copy does: {exc}"
        ) from exc
    # One frame is enough: its checksum covers position, generation and content, and a generation has one writer
    # (decision 0075).
    if header.header_crc != tail.last_crc:
        raise CopyDiverged(
            f"its leader has another frame at position {tail.last_position}: topic {header.topic} queue {header.queue} "
            f"offset {header.base_offset}, of generation {header.generation}"
        )


def ends_before(root: Path, begin: int) -> dict[LogQueue, int]:
    """Return the ends of queues that have nothing kept from this position on: frames do not tell these ends."""
    reader = LogReader(root)
    ends = ((queue, reader.queue(*queue).end_before(begin)) for queue in queues_of(root))
    return {LogQueue(*queue): end for queue, end in ends if end is not None}


def tail_of(root: Path, end: int) -> CopyTail:
    """Return the tail of a log that ends there: of the last frames, the one that a cell names."""
    cells = (Cells(queue_directory(root, *queue)).last() for queue in queues_of(root))
    last = max((cell for cell in cells if cell is not None), key=lambda cell: cell.position, default=None)
    return CopyTail(end) if last is None else CopyTail(end, last.position, last.header_crc)
