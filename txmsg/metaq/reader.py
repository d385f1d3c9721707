"""Reads queues of a log, in the process that writes it or in any other. Serves nothing that is not whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from txmsg.errors import CorruptLog, OffsetOutOfRange, OffsetsMissing
from txmsg.metaq.batch import LogBatch
from txmsg.metaq.cells import Cells, queue_directory, queues_of
from txmsg.metaq.commit_log import CommitLogReader
from txmsg.metaq.frame import BadFrame, Kind, hole_end, read_header, verify

__all__ = ["LogReader", "QueueReader"]


class LogReader:
    """All queues of a log. Cheap to open; close nothing: what is mapped goes with its last user."""

    def __init__(self, root: Path) -> None:
        if not (root / "commitlog").is_dir():
            raise CorruptLog(f"{root} is no log: it has no directory commitlog")
        self.root = root
        self.commit_log = CommitLogReader(root / "commitlog")
        self._queues: dict[tuple[str, int], QueueReader] = {}

    def topics(self) -> dict[str, list[int]]:
        """The topics, and the numbers of their queues."""
        found: dict[str, list[int]] = {}
        for topic, queue in queues_of(self.root):
            found.setdefault(topic, []).append(queue)
        return found

    def queue(self, topic: str, queue: int) -> QueueReader:
        """One queue, which may not be there yet."""
        key = (topic, queue)
        reader = self._queues.get(key)
        if reader is None:
            reader = self._queues[key] = QueueReader(self, topic, queue)
        return reader


class QueueReader:
    """One queue of a log, by offset or by time."""

    def __init__(self, log: LogReader, topic: str, queue: int) -> None:
        self.topic = topic
        self.number = queue
        self._log = log
        self._cells = Cells(queue_directory(log.root, topic, queue))
        self._next: tuple[int, int, int] | None = None  # offset -> (file, cell) after the last fetch

    # ---- where it begins and ends

    def range(self) -> tuple[int, int]:
        """The offset of the first message that is kept, and the one after the last."""
        bases = self._cells.files()
        if not bases:
            return 0, 0
        kept_from = self._log.commit_log.begin()
        for base in bases:
            cells = self._cells.load(base)
            place = int(np.searchsorted(cells["position"], kept_from))
            if place < len(cells):
                begin = int(cells["base_offset"][place])
                break
        else:
            end = self._end(bases)
            return end, end
        return begin, self._end(bases)

    def _end(self, bases: list[int]) -> int:
        for base in reversed(bases):
            cells = self._cells.load(base)
            if len(cells):
                last = cells[-1]
                if last["count"]:
                    return int(last["base_offset"] + last["count"])
                return self._hole(*(int(last[name]) for name in ("position", "size", "base_offset"))).end
        return bases[0]

    def end(self) -> int:
        """The offset after the last message."""
        bases = self._cells.files()
        return self._end(bases) if bases else 0

    def offset_at(self, us: int) -> int:
        """The first offset of a frame that has a message stored at this time or later; the end when there is none.

        Times of different brokers may lie a little apart, so the message itself may stand some places later.
        """
        begin, end = self.range()
        for base in self._cells.files():
            cells = self._cells.load(base)
            place = int(np.searchsorted(cells["last_stored_at"], us))
            if place < len(cells):
                return max(begin, int(cells["base_offset"][place]))
        return end

    # ---- reading

    def fetch(self, offset: int, *, size_bytes_max: int = 1024 * 1024) -> list[LogBatch]:
        """Batches from this offset on: at least one if there is any, and no more than size_bytes_max with it.

        Empty at the end. Raises OffsetOutOfRange before the begin or past the end, OffsetsMissing, CorruptLog.
        """
        batches: list[LogBatch] = []
        for position, size, base_offset, count in self._cells_from(offset):
            if batches and size_bytes_max < size:
                break
            size_bytes_max -= size
            try:
                batch = self._batch(position, size, base_offset, count)
            except (CorruptLog, OffsetsMissing):
                if batches:
                    break  # served up to it; the next fetch says what is there
                raise
            skip = max(0, offset - base_offset)
            batches.append(LogBatch(batch.header, batch.stored, skip) if skip else batch)
        return batches

    def _cells_from(self, offset: int) -> Iterator[tuple[int, int, int, int]]:
        """Position, size, first offset and count of the frames from the one that holds `offset` on."""
        if self._next is not None and self._next[0] == offset:
            _, base, place = self._next
            bases = self._cells.files()
            if base not in bases:
                base, place = self._find(offset)
        elif not self._cells.files() and offset == 0:
            return  # nothing was ever written to it
        else:
            base, place = self._find(offset)
        while True:
            cells = self._cells.load(base)
            for cell in cells[place:]:
                base_offset, position, size, count, _ = cell.item()
                place += 1
                self._next = (base_offset + count, base, place)
                yield position, size, base_offset, count
            bases = self._cells.files()
            following = bisect_right(bases, base)
            if following == len(bases):
                return
            base, place = bases[following], 0

    def _find(self, offset: int) -> tuple[int, int]:
        """The file of cells, and the place in it, of the frame that holds `offset`, or that will."""
        begin, end = self.range()
        if not begin <= offset <= end:
            kept = f"there are {begin} to {end - 1}" if end > begin else f"it is empty, and goes on at {end}"
            raise OffsetOutOfRange(
                f"offset {offset} of topic {self.topic} queue {self.number} is not kept: {kept}", begin, end
            )
        bases = self._cells.files()
        base = bases[max(0, bisect_right(bases, offset) - 1)]
        cells = self._cells.load(base)
        if offset == end:
            return base, len(cells)
        return base, int(np.searchsorted(cells["base_offset"], offset, "right")) - 1

    def _batch(self, position: int, size: int, base_offset: int, count: int) -> LogBatch:
        batch = self._frame(position, size, base_offset, count)
        if batch.header.kind is Kind.HOLE:
            raise self._hole(position, size, base_offset)
        return batch

    def _frame(self, position: int, size: int, base_offset: int, count: int) -> LogBatch:
        data = self._log.commit_log.read(position, size)
        try:
            header = read_header(data)
            found = (header.position, header.size_bytes, header.base_offset, header.count, header.topic, header.queue)
            if found != (position, size, base_offset, count, self.topic, self.number):
                raise BadFrame(f"another frame stands there: {found}")
            return LogBatch(header, verify(header, data))
        except BadFrame as exc:
            raise CorruptLog(
                f"topic {self.topic} queue {self.number} is damaged at offset {base_offset} (position {position}): "
                f"{exc}; run `txmsg metaq check`"
            ) from exc

    def _hole(self, position: int, size: int, base_offset: int) -> OffsetsMissing:
        frame = self._frame(position, size, base_offset, 0)
        end = hole_end(frame.header, frame.stored)
        return OffsetsMissing(
            f"offsets {base_offset} to {end - 1} of topic {self.topic} queue {self.number} are missing: they were gone "
            "before they could be mirrored",
            base_offset,
            end,
        )
