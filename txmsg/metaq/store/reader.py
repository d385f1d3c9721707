"""Reads queues of a log, in the process that writes it or in any other. Returns only intact messages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import numpy as np

from txmsg.errors import CorruptLog, MisuseError, OffsetOutOfRange, OffsetsMissing
from txmsg.message import ReceivedMessage
from txmsg.metaq.format.batch import FrameBatch
from txmsg.metaq.format.frame import (
    HEADER_SIZE_BYTES_MAX,
    BadFrame,
    FrameKind,
    Header,
    Payload,
    cut,
    hole,
    hole_end,
    read_header,
)
from txmsg.metaq.format.unreadable import way_on
from txmsg.metaq.store.cells import CELLS_PER_FILE_MAX, Cell, Cells, queue_directory, queues_of, seed_of, while_cut
from txmsg.metaq.store.commit_log import CommitLogReader
from txmsg.metaq.store.frames import DamagedFrame, frames
from txmsg.metaq.store.keys import KeyFinder
from txmsg.metaq.store.state import Checkpoint, checkpoint_of, identity_of

_CELLS_READ_AT_ONCE = 256
_LOOKS_MAX = 3


class LogReader:
    """All queues of a log. Cheap to open, and need not be closed: files are closed with their last user.

    Readers remember their position, so only one thread at a time may use one. Any number of them can be open.
    """

    def __init__(self, root: Path) -> None:
        if not (root / "commitlog").is_dir():
            raise CorruptLog(f"{root} is not a log: it has no directory commitlog")
        self.root = root
        self.commit_log = CommitLogReader(root / "commitlog")
        self._queues: dict[tuple[str, int], QueueReader] = {}
        self._finder: KeyFinder | None = None
        self._checkpoint: tuple[tuple[int, int, int], Checkpoint | None] | None = None

    @cached_property
    def log_id(self) -> int:
        """The id in `log.json`, by which frames and cells of other logs are rejected. Raises CorruptLog."""
        return identity_of(self.root, create=False).log_id

    def checkpoint(self) -> Checkpoint | None:
        """Return the writer's last checkpoint: cells reach at least to where queues ended then."""
        try:
            found = (self.root / "checkpoint").stat()
        except FileNotFoundError:
            return None
        # A stat instead of a read: the writer replaces the file as a whole, so its inode or time changes.
        mark = (found.st_ino, found.st_mtime_ns, found.st_size)
        if self._checkpoint is None or self._checkpoint[0] != mark:
            self._checkpoint = mark, checkpoint_of(self.root, self.log_id)
        return self._checkpoint[1]

    def begin_position(self) -> int:
        """Return the first position kept. Raises CorruptLog if a file is missing that retention did not delete."""
        begin, known = self.commit_log.begin_position(), self.checkpoint()  # in this order: it is noted before files go
        if known is not None and begin > known.begin:
            raise CorruptLog(
                f"the log {self.root} is damaged: it begins at position {begin}, and is kept from {known.begin} on; "
                "run `txmsg metaq check`"
            )
        return begin

    def topics(self) -> dict[str, list[int]]:
        """Return the topics and the numbers of their queues, including queues with lost cells: reading these reports
        it.
        """
        known = self.checkpoint()
        found: dict[str, list[int]] = {}
        for topic, queue in sorted({*queues_of(self.root), *(known.ends if known else ())}):
            found.setdefault(topic, []).append(queue)
        return found

    def queue(self, topic: str, queue: int) -> QueueReader:
        """Return the reader of one queue, which need not exist yet."""
        key = (topic, queue)
        reader = self._queues.get(key)
        if reader is None:
            reader = self._queues[key] = QueueReader(self, topic, queue)
        return reader

    def find(self, topic: str, key: str, *, count_max: int = 100) -> list[ReceivedMessage]:
        """Return kept messages with this key, by queue and offset; if more than count_max, those appended first."""
        if self._finder is None:
            self._finder = KeyFinder(self.root, self.log_id, self.commit_log)
        found: list[ReceivedMessage] = []
        if not key:
            return found  # an empty key is none
        for position in self._finder.positions(topic, key):
            try:
                found += self._with_key(position, topic, key)
            except CorruptLog:
                if position >= self.commit_log.begin_position():  # otherwise retention has deleted it meanwhile
                    raise
            if len(found) >= count_max:
                break
        return sorted(found[:count_max], key=lambda message: (message.queue, message.offset))

    def _with_key(self, position: int, topic: str, key: str) -> Iterator[ReceivedMessage]:
        """Return the messages of one frame that have this key."""
        try:
            header = read_header(self.commit_log.read_some(position, HEADER_SIZE_BYTES_MAX))
        except BadFrame as exc:
            raise CorruptLog(f"position {position} of {self.root} is damaged: {exc}; run `txmsg metaq check`") from exc
        batch = self.queue(topic, header.queue).batch_at(header) if header.topic == topic else None
        if batch is None:
            return iter(())
        return (message for message in batch.messages() if message.key == key)


class QueueReader:
    """One queue of a log, by offset or by time."""

    def __init__(self, log: LogReader, topic: str, queue: int) -> None:
        self.topic = topic
        self.number = queue
        self._log = log
        self._cells = Cells(queue_directory(log.root, topic, queue))
        self._next: tuple[int, int, int] | None = None  # offset -> (file, cell) after the last fetch

    def batch_at(self, header: Header) -> FrameBatch | None:
        """Return the frame with this header if this queue has it: it is kept, may be seen, and was not cut off."""
        try:
            found = while_cut(lambda: self._find_frame(header.base_offset))
        except OffsetOutOfRange:
            return None
        if found is None or not found[2] or found[2][0].position != header.position:
            return None
        return self._frame(found[2][0])

    @cached_property
    def _seed(self) -> int:
        return seed_of(self._log.log_id, self.topic, self.number)

    # ---- where it begins and ends

    def is_new(self) -> bool:
        """Return True if it was never appended to."""
        return not self._cells.files()

    def range(self) -> tuple[int, int]:
        """Return the offset of the first message kept, and the one after the last. (0, 0) if nothing was written yet.

        Raises CorruptLog.
        """
        end = self.end_offset()
        self._require_first()
        return self._first_behind(0, end), end

    def range_behind(self, position: int) -> tuple[int, int]:
        """Return the same for the part of the log from this position on."""
        end = self.end_offset()
        return self._first_behind(position, end), end

    def _first_behind(self, position: int, end: int) -> int:
        first = self._cells.first(_position, max(position, self._log.begin_position()))
        return end if first is None else self._whole(first).base_offset

    def end_offset(self) -> int:
        """Return the offset after the last message. Raises CorruptLog."""
        known = self._log.checkpoint()  # before the cells, which are never behind it
        return self._end_after(self._cells.last(), known)

    def end_before(self, position: int) -> int | None:
        """Return the same for a queue that has nothing from this position on; None: it has, or was never
        appended to.
        """
        # In this order: a checkpoint is never ahead of its cells, but cells read before it may be behind it.
        known, last = self._log.checkpoint(), self._cells.last()
        if (last is None and self.is_new()) or (last is not None and last.position >= position):
            return None
        return self._end_after(last, known)

    def _end_after(self, last: Cell | None, known: Checkpoint | None) -> int:
        end = self._cells.mark() or 0 if last is None else self._end_of(last)
        self._require_end(end, known)
        return end

    def _require_end(self, end: int, known: Checkpoint | None) -> None:
        """Raise CorruptLog for a queue that ended higher, and was not cut since: its cells are lost."""
        # The checkpoint was written after its cells were on disk, so a queue that ends before it has lost cells, unless
        # a later frame has cut it.
        expected = known.ends.get((self.topic, self.number), 0) if known else 0
        if known and end < expected and not self._is_cut_since(known.position):
            raise CorruptLog(
                f"topic {self.topic} queue {self.number} is damaged at offset {end}: its cells end there, and were on "
                f"disk up to offset {expected}; run `txmsg metaq check`"
            )

    def _require_first(self) -> None:
        """Raise CorruptLog when the first file of cells does not begin with the cell that it is named by."""
        with suppress(FileNotFoundError):  # deleted by retention meanwhile
            for base in self._cells.files()[:1]:
                with self._cells.open(base) as file:
                    for cell in file.read(0, 1):
                        if cell.base_offset != base:
                            raise self._damaged(cell, f"the cell of offset {base} is missing")

    def _is_cut_since(self, position: int) -> bool:
        log = self._log.commit_log
        with suppress(DamagedFrame, CorruptLog):  # the end may be half written
            for header in frames(log, self._log.log_id, position, log.end_position()):
                if header.kind in {FrameKind.CUT, FrameKind.LOST} and (header.topic, header.queue) == (
                    self.topic,
                    self.number,
                ):
                    return True
        return False

    def _end_of(self, cell: Cell) -> int:
        self._whole(cell)
        if cell.count:
            return cell.base_offset + cell.count
        if cell.position < self._log.commit_log.begin_position():  # retention has noted where a hole ended
            known = self._log.checkpoint()
            return max(cell.base_offset, known.ends.get((self.topic, self.number), 0) if known else 0)
        frame = self._frame(cell)
        return self._missing(frame).end if frame.header.is_hole else cell.base_offset

    def checked_end(self) -> int:
        """Return the same, for a writer to continue at: raises CorruptLog if the last frame does not match its cell."""
        last = self._cells.last()
        if last is None:
            return self._cells.mark() or 0
        if last.position >= self._log.commit_log.begin_position():
            self._header(last, self._log.commit_log.read(last.position, min(last.size_bytes, HEADER_SIZE_BYTES_MAX)))
        return self._end_of(last)

    def holes(self) -> list[tuple[int, int]]:
        """Return the missing offsets: for each hole the first one, and the one after the last."""
        kept_from = self._log.commit_log.begin_position()
        found: list[tuple[int, int]] = []
        for base in self._cells.files():
            cells = self._cells.load(base)
            for row in cells[(cells["count"] == 0) & (cells["position"] >= kept_from)]:
                frame = self._frame(self._whole(Cell._make(row.item())))
                if frame.header.is_hole:
                    missing = self._missing(frame)
                    found.append((missing.begin, missing.end))
        return found

    def offset_at(self, us: int) -> int:
        """Return the first offset of a message stored at this time or later; the end if there is none.

        Clocks of brokers may differ slightly, so later messages may be slightly older.
        """
        begin, end = self.range()
        cell = self._cells.first(_last_stored_at_us, us)
        if cell is None:
            return end
        if self._whole(cell).base_offset < begin:
            return begin
        return cell.base_offset + (self._older(cell, us) if cell.count else 0)

    def _older(self, cell: Cell, us: int) -> int:
        """Return how many messages at a frame's begin were stored before this time."""
        stored_at_us = self._frame(cell).to_arrow()["stored_at"].cast("int64").to_numpy()
        return int(np.argmax(stored_at_us >= us))

    # ---- reading

    def fetch(self, offset: int, *, size_bytes_max: int = 1024 * 1024, end: int | None = None) -> list[FrameBatch]:
        """Return batches from this offset on: at least one if there is any, and at most size_bytes_max in all.

        end: none that begins there or later.

        Empty at the end. Raises OffsetOutOfRange before the begin or past the end, OffsetsMissing, CorruptLog.
        """
        for _ in range(_LOOKS_MAX):  # the queue may be cut, or grow, in the middle of a look
            known = self._log.checkpoint()  # before the cells, which are never behind it
            try:
                batches = self._fetch(offset, size_bytes_max, end)
                if not batches:
                    self._require_end(offset, known)
                return batches
            except OffsetsMissing:
                raise
            except (CorruptLog, OffsetOutOfRange, FileNotFoundError, IndexError) as exc:
                failure, self._next = exc, None
                try:
                    begin, end = self.range()
                except CorruptLog as damage:
                    failure = damage if isinstance(exc, OffsetOutOfRange) else exc
                    continue
                if not begin <= offset <= end:
                    raise self._out_of_range(offset, begin, end) from exc  # or deleted by retention
        if isinstance(failure, FileNotFoundError):
            failure = CorruptLog(f"{failure.filename} is missing")
        if isinstance(failure, CorruptLog):
            raise self._with_way_on(failure, offset) from failure
        raise failure

    def _with_way_on(self, damage: CorruptLog, offset: int) -> CorruptLog:
        """Return the same error, with the next offset after this one from which on messages are whole."""
        on = next((cell.base_offset for cell in self._whole_after(offset)), None)
        if on is None:
            return CorruptLog(f"{damage}; nothing after it is intact")
        return CorruptLog(
            f"{damage}; intact messages continue at offset {on}: {way_on(self.topic, self.number, on)}",
            on,
        )

    def _whole_after(self, offset: int) -> Iterator[Cell]:
        """Yield the cells behind an offset whose frames are whole, one by one."""
        for base in self._cells.files():
            with suppress(CorruptLog):
                cells = self._cells.load(base)
                for row in cells[cells["base_offset"] > offset]:
                    with suppress(CorruptLog):
                        cell = self._whole(Cell._make(row.item()))
                        self._frame(cell)
                        yield cell

    def _fetch(self, offset: int, size_bytes_max: int, end: int | None) -> list[FrameBatch]:
        batches: list[FrameBatch] = []
        for cell, base, place in self._cells_from(offset):
            if batches and (size_bytes_max < cell.size_bytes or (end is not None and cell.base_offset >= end)):
                break
            size_bytes_max -= cell.size_bytes
            try:
                self._require_follows(cell, offset)
                batch = self._frame(cell, offset - cell.base_offset)
                if not cell.count:
                    self._require_no_hole(batch, offset)
            except (CorruptLog, OffsetsMissing):
                if batches:
                    break  # batches before it are returned; the next fetch reports it
                raise
            if cell.count:
                batches.append(batch)
                offset = cell.base_offset + cell.count
            # A reader that continues where it ended needs no search through the files of cells.
            self._next = (offset, base, place)
        return batches

    def _cells_from(self, offset: int) -> Iterator[tuple[Cell, int, int]]:
        """Return the cells from the one that holds `offset` on; with each the place after it: a file and a number."""
        found = self._next_place(offset) or self._find_frame(offset)
        if found is None:
            return
        base, place, cells = found
        while True:
            for cell in cells:
                place += 1
                yield cell, base, place
            if cells:
                with self._cells.open(base) as file:
                    cells = file.read(place, _CELLS_READ_AT_ONCE)
            # Only a full file has a successor, so the end of a partly filled one is the end of the queue.
            elif place < CELLS_PER_FILE_MAX or (following := self._cells.following(base)) is None:
                return
            else:
                base, place = following, 0
                with self._cells.open(base) as file:
                    cells = file.read(0, _CELLS_READ_AT_ONCE)

    def _next_place(self, offset: int) -> tuple[int, int, list[Cell]] | None:
        """Return the place where the last fetch ended, if it is still the place of this offset."""
        if self._next is None or self._next[0] != offset:
            return None
        _, base, place = self._next
        try:
            with self._cells.open(base) as file:
                cells = file.read(place, _CELLS_READ_AT_ONCE)
                if cells[0].base_offset == offset if cells else len(file) == place:
                    return base, place, cells
        except FileNotFoundError:
            pass  # deleted by retention: the search below uses the current files
        self._next = None
        return None

    def _find_frame(self, offset: int) -> tuple[int, int, list[Cell]] | None:
        """Return the file, and the place in it, of the frame that holds `offset`, or will; None in a queue that
        is new.
        """
        bases = self._cells.files()
        cells: list[Cell] = []
        while bases and not cells:
            base = bases[max(0, bisect_right(bases, offset) - 1)]
            with self._cells.open(base) as file:
                count = len(file)  # it may grow meanwhile
                place = bisect_right(file, offset, 0, count, key=_base_offset) - 1
                cells = file.read(max(0, place), _CELLS_READ_AT_ONCE) if count else []
            while len(cells) > 1 and cells[1].base_offset <= offset:  # it has grown
                place, cells = place + 1, cells[1:]
            if not cells:
                bases.remove(base)  # made this moment: its first cell is about to be written
        if not cells:
            if offset:
                raise self._out_of_range(offset, 0, 0)
            return None
        if place >= 0:
            self._whole(cells[0])
            # The end is computed for the last frame only: for a hole it costs a read of the frame.
            is_last = base == bases[-1] and len(cells) == 1
            if is_last and offset >= (end := self._end_of(cells[0])):
                if offset == end:
                    return base, place + 1, []
            elif cells[0].position >= self._log.commit_log.begin_position():
                return base, place, cells
        raise self._out_of_range(offset, *self.range())

    def _out_of_range(self, offset: int, begin: int, end: int) -> OffsetOutOfRange:
        kept = f"there are {begin} to {end - 1}" if end > begin else f"it is empty, and goes on at {end}"
        return OffsetOutOfRange(
            f"offset {offset} of topic {self.topic} queue {self.number} is not kept: {kept}", begin, end
        )

    def hole_at(self, offset: int) -> tuple[int, int, Header, int]:
        """Return the hole that holds an offset: the file of its cell, the place in it, its header, and where it ends.

        Raises MisuseError when there is none, OffsetOutOfRange, CorruptLog.
        """
        found = self._find_frame(offset)
        frame = self._frame(found[2][0]) if found and found[2] else None
        if found is None or frame is None or not frame.header.is_hole:
            raise MisuseError(f"offset {offset} of topic {self.topic} queue {self.number} is not in a hole")
        return found[0], found[1], frame.header, self._missing(frame).end

    def cut_at(self, offset: int) -> tuple[int, list[Payload]]:
        """Return the begin of the frame that holds an offset, and the batches to append there so that the queue ends at
        the offset.

        No batches if it ends there already. Before the first offset that is kept, it begins there again. Raises
        OffsetOutOfRange past the end, CorruptLog when a part of a damaged frame would be kept.
        """
        if 0 <= offset < self.range()[0]:
            return offset, [cut(None)]
        found = self._find_frame(offset)
        if found is None or not found[2]:
            return offset, []
        cell = found[2][0]
        if cell.base_offset == offset:
            return offset, [cut(None)]
        frame = self._frame(cell)
        if frame.header.is_hole:
            return cell.base_offset, [cut(None), hole(offset, frame.header.first_stored_at_us, frame.header.kind)]
        return cell.base_offset, [cut(frame.columns(offset))]

    # ---- frames

    def _whole(self, cell: Cell) -> Cell:
        if not cell.is_whole(self._seed):
            raise self._damaged(cell, "its cell does not match its checksum")
        return cell

    def _require_follows(self, cell: Cell, offset: int) -> None:
        """Raise CorruptLog unless this cell's frame holds the offset. Only its frame knows where a hole ends."""
        self._whole(cell)
        if cell.base_offset > offset or (cell.base_offset + cell.count <= offset and cell.count):
            raise self._damaged(cell, f"the cell that should hold offset {offset} does not")

    def _require_no_hole(self, frame: FrameBatch, offset: int) -> None:
        """Raise OffsetsMissing if a frame without messages marks this offset as missing."""
        if frame.header.is_hole and offset < (missing := self._missing(frame)).end:
            raise missing
        if frame.header.base_offset != offset:
            raise self._damaged(Cell.of(frame.header), f"the cell that should hold offset {offset} does not")

    def _header(self, cell: Cell, data: memoryview) -> Header:
        """Return the header of the frame that these bytes begin with, compared with its cell."""
        try:
            header = read_header(data)
        except BadFrame as exc:
            raise self._damaged(cell, str(exc)) from exc
        if (
            # A cell can outlive its frame: a crash cuts the log, and another frame takes the position.
            header.header_crc == cell.header_crc
            and header.base_offset == cell.base_offset
            and header.position == cell.position
            and header.size_bytes == cell.size_bytes
            and header.count == cell.count
            and header.queue == self.number
            and header.topic == self.topic
        ):
            return header
        raise self._damaged(
            cell, f"there is another frame: topic {header.topic} queue {header.queue} offset {header.base_offset}"
        )

    def _frame(self, cell: Cell, skip: int = 0) -> FrameBatch:
        """Return a frame that is whole and matches its cell. skip: messages at its begin that are left out."""
        data = self._log.commit_log.read(cell.position, cell.size_bytes)
        header = self._header(cell, data)
        try:
            return FrameBatch.verified(header, data, skip)
        except BadFrame as exc:
            raise self._damaged(cell, str(exc)) from exc

    def _damaged(self, cell: Cell, why: str) -> CorruptLog:
        return CorruptLog(
            f"topic {self.topic} queue {self.number} is damaged at offset {cell.base_offset} (position "
            f"{cell.position}): {why}; run `txmsg metaq check`"
        )

    def _missing(self, frame: FrameBatch) -> OffsetsMissing:
        begin, end = frame.header.base_offset, hole_end(frame.header, frame.stored)
        return OffsetsMissing(
            f"offsets {begin} to {end - 1} of topic {self.topic} queue {self.number} are missing: "
            f"{_WHY_MISSING[frame.header.kind]}",
            begin,
            end,
        )


_WHY_MISSING = {
    FrameKind.HOLE: "they were gone before they could be mirrored",
    FrameKind.LOST: "they were damaged, and taken out by a repair",
    FrameKind.PASSED: "they may have been given out before a power cut took their messages: not given out again",
}
_base_offset = attrgetter("base_offset")
_position = attrgetter("position")
_last_stored_at_us = attrgetter("last_stored_at_us")


class CurrentReader:
    """A `LogReader`, replaced if another log takes the log's place. A check costs one `stat`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: tuple[tuple[int, int], LogReader] | None = None

    def get(self) -> LogReader | None:
        """Return the reader of the current log; None while there is no log."""
        try:
            found = (self._root / "log.json").stat()
        except FileNotFoundError:
            self._known = None
            return None
        mark = (found.st_ino, found.st_mtime_ns)  # not the inode alone: the next file may get it again
        known = self._known
        if known is None or known[0] != mark:
            known = self._known = (mark, LogReader(self._root))
        return known[1]
