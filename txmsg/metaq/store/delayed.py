"""Delayed messages of a log: they wait in a topic of the log's own, and are moved to their topics when due, once each.

Queue 0 of DELAYED has the batches as they came, each with its topic, queue and due time. Queue 1 has a note for each
move, written in one append with what is moved, and before it: a crash can have cut off some of that, which is looked
for when the log is opened, but never the other way round. docs/log_format.md names the bytes.

Progress is a place in the order (due time, offset): what waits up to that place, and was read by then, is moved. So a
note is small however many wait, and only what is due within the next hour is kept in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from txmsg.errors import CorruptLog, InvalidMessage, MisuseError, OffsetOutOfRange, OffsetsMissing
from txmsg.logs import EventLog
from txmsg.message import QUEUES_MAX, check_name
from txmsg.metaq.format.frame import Column, Columns, Compression, Kind, Payload, encode
from txmsg.metaq.store.cells import Cell, Cells, queue_directory
from txmsg.metaq.store.reader import LogReader, QueueReader

_log = EventLog(__name__)

DELAYED: Final = "%DELAYED%"
"""The topic in which messages wait until they are due."""
ENTRIES: Final = 0
NOTES: Final = 1
_WINDOW_US: Final = 3_600_000_000
"""What is due later is not kept in memory."""
_DAY_US: Final = 86_400_000_000
_MARGIN_US: Final = 60_000_000
_TOGETHER_MAX: Final = 1000
_TOGETHER_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024

_ENTRY: Final = struct.Struct("<qIIIIBHB")
_PROGRESS: Final = struct.Struct("<qqqqI")
_MOVE: Final = struct.Struct("<qIq")

Turn: TypeAlias = tuple[int, int]
"""Due time in us and offset of an entry: the order in which entries are moved."""


class Batch(NamedTuple):
    """What is to be appended to a queue."""

    topic: str
    queue: int
    payload: Payload


class Entry(NamedTuple):
    """A batch that waits. Its payload lacks the time of storing, which is that of the move."""

    due_us: int
    batch: Batch

    def pack(self) -> bytes:
        topic, queue, payload = self.batch
        fixed = (payload.raw_size_bytes, payload.crc, payload.count, payload.compression, payload.columns, len(topic))
        return b"".join((_ENTRY.pack(self.due_us, queue, *fixed), topic.encode(), payload.parts[0]))

    @classmethod
    def unpack(cls, data: bytes, stored_at_us: int = 0) -> Entry:
        due_us, queue, raw_size_bytes, crc, count, compression, columns, size = _ENTRY.unpack_from(data)
        start = _ENTRY.size + size
        stored = data[start:]
        payload = Payload(
            (stored, bytes(-len(stored) & 7)), len(stored), raw_size_bytes, crc, Compression(compression),
            Kind.MESSAGES, columns, count, stored_at_us, stored_at_us,
        )  # fmt: skip
        return cls(due_us, Batch(data[_ENTRY.size : start].decode("ascii"), queue, payload))


def entry_of(batch: Batch, due_us: int, *, now_us: int, ahead_us: int) -> Payload:
    """A batch as it waits until then. Raises InvalidMessage for one that cannot wait so, or not for so long."""
    topic, queue, payload = batch
    check_name("topic", topic)
    if not 0 <= queue < QUEUES_MAX:
        raise MisuseError(f"queue {queue} of topic {topic}: 0 to {QUEUES_MAX - 1} are allowed")
    if topic.startswith("%"):
        raise InvalidMessage(f"messages of topic {topic}, which is the log's own, cannot be delayed")
    if payload.kind is not Kind.MESSAGES or payload.columns & Column.STORED_AT:
        raise InvalidMessage(f"a delayed batch for topic {topic} says when its messages are stored: leave that out")
    if due_us - now_us > ahead_us:
        raise InvalidMessage(
            f"a message for topic {topic!r} would be due in {(due_us - now_us) / _DAY_US:.1f} days: this log holds "
            f"messages for {ahead_us / _DAY_US:g} days at most (its setting delay_max_s); send it later"
        )
    return encode(Columns([Entry(due_us, batch).pack()], [now_us]))


class _Move(NamedTuple):
    """Where an entry went."""

    entry: int
    queue: int
    base_offset: int


class _Note(NamedTuple):
    """How far moving has come. first: no entry before this offset waits. taken: entries from here on were not read."""

    turn: Turn
    first: int
    taken: int
    moves: tuple[_Move, ...]

    def pack(self) -> bytes:
        head = _PROGRESS.pack(*self.turn, self.first, self.taken, len(self.moves))
        return head + b"".join(_MOVE.pack(*move) for move in self.moves)

    @classmethod
    def unpack(cls, data: bytes) -> _Note:
        due_us, offset, first, taken, count = _PROGRESS.unpack_from(data)
        moves = (_Move(*_MOVE.unpack_from(data, _PROGRESS.size + _MOVE.size * each)) for each in range(count))
        return cls((due_us, offset), first, taken, tuple(moves))


class Mover:
    """Moves what is due. One thread uses it.

    append: appends these batches behind a note that it makes of their first offsets, all on disk on return.
    queue_of: the queue that takes what was meant for a queue of a topic.
    """

    def __init__(
        self,
        root: Path,
        append: Callable[[Sequence[Batch], Callable[[Sequence[int]], Batch]], Sequence[int]],
        queue_of: Callable[[str, int], int],
    ) -> None:
        self._root = root
        self._append = append
        self._queue_of = queue_of
        self._reader: LogReader | None = None
        self._heap: list[Turn] = []
        self._window_end_us = 0
        self._has_later = False
        """Whether some that wait are due after the window."""
        self._turn: Turn = (-1, -1)
        self._taken = 0
        self._first = 0
        self._moved = 0
        """Entries since `_first` was looked for."""

    def kept_from(self) -> int | None:
        """The position from which on the log is needed for what waits; None: nothing does. For any thread."""
        cell = Cells(queue_directory(self._root, DELAYED, ENTRIES)).first(_end_of, self._first + 1)
        return None if cell is None else cell.position

    def run_once(self, now_us: int) -> tuple[int | None, set[tuple[str, int]]]:
        """Moves what is due now. When to look again, None: not before something comes; and the queues that grew."""
        if self._reader is None:
            self._recover(now_us)
        elif self._has_later and now_us >= self._window_end_us - _MARGIN_US:
            self._look_ahead(now_us)
        grown: set[tuple[str, int]] = set()
        has_more = True
        while has_more:
            has_more = self._take_in()
            if not has_more or self._has_late:  # in the order of time, but for those that came after their time
                while self._heap and self._heap[0][0] <= now_us:
                    grown |= self._move(now_us)
        if not self._has_later and self._moved >= len(self._heap):  # so seldom that it costs little per message
            self._first = min((offset for _, offset in self._heap), default=self._taken)
            self._moved = 0
        times = [self._heap[0][0]] if self._heap else []
        if self._has_later:
            times.append(self._window_end_us - _MARGIN_US)
        return min(times, default=None), grown

    @property
    def _has_late(self) -> bool:
        return bool(self._heap) and self._heap[0] <= self._turn

    # ---- what waits

    def _queue(self, number: int) -> QueueReader:
        assert self._reader is not None
        return self._reader.queue(DELAYED, number)

    def _recover(self, now_us: int) -> None:
        """Reads what the last note says, and what is not done of it."""
        self._reader = LogReader(self._root)
        try:
            begin, end = self._queue(NOTES).range()
            oldest = self._queue(ENTRIES).range()[0]
            note = _Note((-1, -1), oldest, oldest, ())
            if begin < end:
                *_, last = self._queue(NOTES).fetch(end - 1)[0].messages()
                note = _Note.unpack(last.body)
            again = {move.entry for move in note.moves if not self._is_there(move)}
            self._window_end_us = now_us + _WINDOW_US
            self._turn, self._taken, self._first = note.turn, note.taken, note.first
            self._heap, self._has_later = [], False
            self._look(lambda turn: turn > note.turn or turn[1] in again)
        except BaseException:
            self._reader = None
            raise

    def _look_ahead(self, now_us: int) -> None:
        """Goes on to the next window."""
        since_us, self._window_end_us = self._window_end_us, now_us + _WINDOW_US
        kept, self._heap, self._has_later = self._heap, [], False
        known = set(kept)
        try:
            self._look(lambda turn: turn[0] >= since_us or turn in known)
        except BaseException:
            self._heap, self._has_later, self._window_end_us = kept, True, since_us
            raise

    def _look(self, waits: Callable[[Turn], bool]) -> None:
        """Reads again what was read before, for what waits."""
        first = self._taken
        for offset, entry in self._entries(self._first, self._taken):
            turn = (entry.due_us, offset)
            if waits(turn):
                first = min(first, offset)
                self._wait_for(turn)
        self._first = first

    def _take_in(self) -> bool:
        """Reads some that came since; whether there are more."""
        end = self._queue(ENTRIES).end()
        found: list[Turn] = []
        taken, size_bytes = end, 0
        for offset, entry in self._entries(self._taken, end):
            found.append((entry.due_us, offset))
            size_bytes += entry.batch.payload.size_bytes
            if len(found) == _TOGETHER_MAX or size_bytes > _TOGETHER_SIZE_BYTES_MAX:
                taken = offset + 1
                break
        for turn in found:
            self._wait_for(turn)
        self._taken = taken
        return taken < end

    def _wait_for(self, turn: Turn) -> None:
        if turn[0] < self._window_end_us:
            heappush(self._heap, turn)
        else:
            self._has_later = True

    def _entries(self, offset: int, end: int) -> Iterator[tuple[int, Entry]]:
        """Entries by offset. Those that are missing are told."""
        while offset < end:
            try:
                batches = self._queue(ENTRIES).fetch(offset)
            except OffsetsMissing as exc:
                following, error = exc.end, str(exc)
            except OffsetOutOfRange as exc:
                following, error = max(exc.begin, offset + 1), str(exc)
            except CorruptLog as exc:
                if exc.next_offset is None:
                    raise
                following, error = exc.next_offset, str(exc)
            else:
                for batch in batches:
                    for message in batch.messages():
                        assert message.offset is not None
                        if message.offset >= end:
                            return
                        yield message.offset, Entry.unpack(message.body)
                    offset = batch.end_offset
                continue
            _log.error("log.delayed_lost", "delayed messages of the log %(log)s are lost: %(error)s",
                       log=self._root, error=error)  # fmt: skip
            offset = following

    # ---- moving

    def _move(self, now_us: int) -> set[tuple[str, int]]:
        """Moves some that are due, with all that came after their time: so that the note says what is done."""
        turns: list[Turn] = []
        entries: list[int] = []
        batches: list[Batch] = []
        size_bytes = 0
        try:
            while self._heap and self._heap[0][0] <= now_us:
                is_full = len(turns) >= _TOGETHER_MAX or size_bytes >= _TOGETHER_SIZE_BYTES_MAX
                if is_full and not self._has_late:
                    break
                turns.append(heappop(self._heap))
                offset = turns[-1][1]
                for _, entry in self._entries(offset, offset + 1):
                    topic, queue, payload = entry.batch
                    payload = payload._replace(first_stored_at_us=now_us, last_stored_at_us=now_us)
                    batches.append(Batch(topic, self._queue_of(topic, queue), payload))
                    entries.append(offset)
                    size_bytes += payload.size_bytes
            turn = max(self._turn, turns[-1])

            def note(bases: Sequence[int]) -> Batch:
                queues = (batch.queue for batch in batches)
                moves = tuple(map(_Move, entries, queues, bases))
                packed = _Note(turn, self._first, self._taken, moves).pack()
                return Batch(DELAYED, NOTES, encode(Columns([packed], [now_us])))

            self._append(batches, note)
        except BaseException:
            for undone in turns:
                heappush(self._heap, undone)
            raise
        self._turn = turn
        self._moved += len(turns)
        return {(batch.topic, batch.queue) for batch in batches}

    def _is_there(self, move: _Move) -> bool:
        """Whether what was moved is in its queue; also when what was moved is not kept any more, here or there.

        Not where offsets are missing: a power cut, or a lost leader, took it, and its place was passed over.
        """
        for _, entry in self._entries(move.entry, move.entry + 1):
            topic, _, payload = entry.batch
            assert self._reader is not None
            try:
                batches = self._reader.queue(topic, move.queue).fetch(move.base_offset, size_bytes_max=1)
            except CorruptLog:
                continue
            except OffsetsMissing:
                return False
            except OffsetOutOfRange as exc:
                if move.base_offset < exc.begin:
                    continue
                return False
            if not batches:
                return False
            header = batches[0].header
            return (header.base_offset, header.payload_crc) == (move.base_offset, payload.crc)
        return True


def _end_of(cell: Cell) -> int:
    return cell.base_offset + cell.count
