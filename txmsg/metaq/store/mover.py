"""Moves delayed messages of a log to their topics when they are due, and recalls them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Final, TypeAlias

from txmsg.errors import CorruptLog, MisuseError, OffsetOutOfRange, OffsetsMissing
from txmsg.metaq.store.delayed import (
    DelayedBatch,
    DelayedEntry,
    DelayedMove,
    DelayedReader,
    MoveNote,
    Turn,
    first_kept,
    note_batch,
    recall_batch,
)
from txmsg.metaq.store.reader import LogReader

_WINDOW_US: Final = 3_600_000_000
"""The time before which a message must be due to be kept in memory."""
_MARGIN_US: Final = 60_000_000
_READ_TOGETHER_MAX: Final = 1000
_MOVED_TOGETHER_MAX: Final = 250
"""Entries moved together: so few that a mover that is killed every few hundred milliseconds progresses, as only noted
moves count.
"""
_TOGETHER_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_PASSED_OVER_SIZE_BYTES_MAX: Final = 1024
"""Unwanted bytes that are read rather than skipped: reading them costs no more than finding the next place."""

_Due: TypeAlias = tuple[int, int, int]
"""Due time in us, offset and size in bytes of an entry."""


class Mover:
    """Moves due messages. Threads may share it: a batch is not recalled and moved at the same time.

    append: appends the batches that it makes of their first offsets; on disk after `sync`. queue_of: the queue to use
    for messages that were sent to a queue of a topic.
    """

    def __init__(
        self,
        root: Path,
        append: Callable[[Sequence[DelayedBatch], Callable[[Sequence[int]], DelayedBatch]], object],
        sync: Callable[[], None],
        queue_of: Callable[[str, int], int],
    ) -> None:
        self._root = root
        self._append = append
        self._sync = sync
        self._queue_of = queue_of
        # Held while entries are moved or recalled, so that none is both. It is taken before the log's lock, inside
        # `append`.
        self._lock = threading.Lock()
        self._reader: DelayedReader | None = None
        self._heap: list[_Due] = []
        self._window_end_us = 0
        self._has_later = False
        """True if some waiting entries are due after the window."""
        self._turn: Turn = (-1, -1)
        self._taken = 0
        self._first = 0
        self._moved = 0
        """Entries moved since `_first` was last determined."""
        self._recalled: set[int] = set()
        """Entries that must not be moved, as far as they may still be read again."""
        self.waiting_messages = 0
        """Messages that wait, as far as they were read."""

    @property
    def first_due_us(self) -> int | None:
        """The time at which the first waiting entry is due; None: not within the hour."""
        return next((due_us for due_us, *_ in self._heap[:1]), None)

    def kept_from(self) -> int | None:
        """Return the position from which on the log is needed for waiting entries; None: not needed.

        Any thread may call it.
        """
        cell = first_kept(self._root, self._first)
        return None if cell is None else cell.position

    def run_once(self, now_us: int) -> tuple[int | None, set[tuple[str, int]]]:
        """Move due entries. Returns the time of the next run (None: when an entry arrives), and the queues that
        grew.
        """
        with self._lock:
            return self._run_once(now_us)

    def recall(self, topic: str, number: int, now_us: int) -> None:
        """Cancel an entry, on disk on return. Repeating it changes nothing.

        Raises MisuseError if it is not waiting in this topic.
        """
        with self._lock:
            self._recall(topic, number, now_us)
        self._sync()  # not under the lock: others can be recalled, or moved, meanwhile

    def _recall(self, topic: str, number: int, now_us: int) -> None:
        reader = self._reader or self._recover(now_us)
        # The number may be that of an entry which was not read yet.
        while self._take_in(reader):
            pass
        entry = self._waiting(reader, topic, number)
        if entry is None:
            self._sync()  # a recall is read when it is on disk
            if reader.recalled(number).get(number) == topic:
                return
            raise MisuseError(
                f"nothing waits as number {number} in topic {topic!r}: it was delivered, or there was none; "
                "`txmsg metaq delayed --log LOG` lists what waits"
            )
        self._append([], lambda _: recall_batch(topic, number, now_us))
        self._recalled.add(number)
        self.waiting_messages -= entry.batch.payload.count
        if (waiting := _due_of(number, entry)) in self._heap:
            self._heap.remove(waiting)
            heapify(self._heap)

    def _waiting(self, reader: DelayedReader, topic: str, number: int) -> DelayedEntry | None:
        if number in self._recalled or not self._first <= number < self._taken:
            return None
        for _, entry in reader.entries(number, number + 1):
            is_later = entry.due_us >= self._window_end_us
            if entry.batch.topic == topic and (is_later or _due_of(number, entry) in self._heap):
                return entry
        return None

    def _run_once(self, now_us: int) -> tuple[int | None, set[tuple[str, int]]]:
        reader = self._reader
        if reader is None:
            reader = self._recover(now_us)
        elif self._has_later and now_us >= self._window_end_us - _MARGIN_US:
            # A minute before the window ends, so that an entry due right after it is not late by the time of reading.
            self._look_ahead(reader, now_us)
        now_us = max(now_us, self._turn[0])  # a clock that was set back: notes say that all up to there is moved
        grown: set[tuple[str, int]] = set()
        has_more = True
        while has_more:
            has_more = self._take_in(reader)
            if not has_more or self._has_late:  # in the order of time, but for those that came after their time
                while self._heap and self._heap[0][0] <= now_us:
                    grown |= self._move(reader, now_us)
        if not self._has_later and self._moved >= len(self._heap):  # so seldom that it costs little per message
            self._begin_at(min((offset for _, offset, _ in self._heap), default=self._taken))
            self._moved = 0
        times = [self._heap[0][0]] if self._heap else []
        if self._has_later:
            times.append(self._window_end_us - _MARGIN_US)
        return min(times, default=None), grown

    @property
    def _has_late(self) -> bool:
        return bool(self._heap) and self._heap[0][:2] <= self._turn

    # ---- what waits

    def _recover(self, now_us: int) -> DelayedReader:
        """Read the last note, and the entries that it leaves to be moved."""
        reader = self._reader = DelayedReader(LogReader(self._root))
        try:
            note = reader.last_note()
            # Only batches of the last note can be missing: a move is synced before the next one begins.
            again = {move.entry for move in note.moves if not self._is_there(reader, move)}
            self._recalled = set(reader.recalled(note.first))
            self._window_end_us = now_us + _WINDOW_US
            self._turn, self._taken, self._first = note.turn, note.taken, note.first
            self._heap, self._has_later = [], False
            self._read_waiting(reader, lambda turn: turn > note.turn or turn[1] in again)
        except BaseException:
            self._reader = None
            raise
        return reader

    def _look_ahead(self, reader: DelayedReader, now_us: int) -> None:
        """Advance to the next window."""
        since_us, self._window_end_us = self._window_end_us, now_us + _WINDOW_US
        kept, self._heap, self._has_later = self._heap, [], False
        known = {number for _, number, _ in kept}
        try:
            # Entries due before the old window's end were moved, or are in the old heap; only later ones are new.
            self._read_waiting(reader, lambda turn: turn[0] >= since_us or turn[1] in known)
        except BaseException:
            self._heap, self._has_later, self._window_end_us = kept, True, since_us
            raise

    def _read_waiting(self, reader: DelayedReader, waits: Callable[[Turn], bool]) -> None:
        """Read entries again that were read before, and keep those that wait."""
        first, messages = self._taken, 0
        for number, entry in reader.entries(self._first, self._taken):
            if number not in self._recalled and waits((entry.due_us, number)):
                first = min(first, number)
                messages += entry.batch.payload.count
                self._wait_for(_due_of(number, entry))
        self.waiting_messages = messages
        self._begin_at(first)

    def _begin_at(self, first: int) -> None:
        """Record that nothing before this entry waits."""
        self._first = first
        if self._recalled:
            self._recalled = {number for number in self._recalled if number >= first}

    def _take_in(self, reader: DelayedReader) -> bool:
        """Read some new entries; return True if there are more."""
        end = reader.end_number()
        found: list[_Due] = []
        taken, size_bytes, messages = end, 0, 0
        for number, entry in reader.entries(self._taken, end):
            if number not in self._recalled:
                found.append(_due_of(number, entry))
                messages += entry.batch.payload.count
            size_bytes += entry.batch.payload.size_bytes
            if len(found) == _READ_TOGETHER_MAX or size_bytes > _TOGETHER_SIZE_BYTES_MAX:
                taken = number + 1
                break
        for waiting in found:
            self._wait_for(waiting)
        self._taken = taken
        self.waiting_messages += messages
        return taken < end

    def _wait_for(self, waiting: _Due) -> None:
        if waiting[0] < self._window_end_us:
            heappush(self._heap, waiting)
        else:
            self._has_later = True

    # ---- moving

    def _move(self, reader: DelayedReader, now_us: int) -> set[tuple[str, int]]:
        """Move some due entries, with all that came after their time, so that the note's position is true."""
        due: list[_Due] = []
        size_bytes = 0
        try:
            while self._heap and self._heap[0][0] <= now_us:
                is_full = len(due) >= _MOVED_TOGETHER_MAX or size_bytes >= _TOGETHER_SIZE_BYTES_MAX
                if is_full and not self._has_late:
                    break
                due.append(heappop(self._heap))
                size_bytes += due[-1][2]
            # `max`: entries that came after their time are moved late, and must not set the progress back.
            turn = max(self._turn, due[-1][:2])
            found = dict(_entries(reader, due))
            numbers = [number for _, number, _ in due if number in found]
            batches = [self._due_batch(found.pop(number), now_us) for number in numbers]

            def note(bases: Sequence[int]) -> DelayedBatch:
                queues = (batch.queue for batch in batches)
                moves = tuple(map(DelayedMove, numbers, queues, bases))
                return note_batch(MoveNote(turn, self._first, self._taken, moves), now_us)

            self._append(batches, note)
        except BaseException:
            for undone in due:
                # Nothing was appended, so they wait again, and a later run moves them.
                heappush(self._heap, undone)
            raise
        self._turn = turn
        self._moved += len(due)
        self.waiting_messages -= sum(batch.payload.count for batch in batches)
        self._sync()  # if that fails the log takes no more appends, or a later sync does it: moved again it comes twice
        return {(batch.topic, batch.queue) for batch in batches}

    def _due_batch(self, entry: DelayedEntry, now_us: int) -> DelayedBatch:
        topic, queue, payload = entry.batch
        payload = payload._replace(first_stored_at_us=now_us, last_stored_at_us=now_us)
        return DelayedBatch(topic, self._queue_of(topic, queue), payload)

    @staticmethod
    def _is_there(reader: DelayedReader, move: DelayedMove) -> bool:
        """Return True if a moved batch is in its queue; also if it is not kept any more, here or there.

        Not if its offsets are missing: a power cut, or a lost leader, took it, and its place was passed over.
        """
        for _, entry in reader.entries(move.entry, move.entry + 1):
            topic, _, payload = entry.batch
            try:
                batches = reader.log.queue(topic, move.queue).fetch(move.base_offset, size_bytes_max=1)
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


def _due_of(number: int, entry: DelayedEntry) -> _Due:
    return entry.due_us, number, entry.batch.payload.size_bytes


def _entries(reader: DelayedReader, waiting: Iterable[_Due]) -> Iterator[tuple[int, DelayedEntry]]:
    """Yield these entries in the order in which they stand in the log: one by one costs 20 system calls each."""
    sizes = {number: size_bytes for _, number, size_bytes in waiting}
    numbers = sorted(sizes)
    start = numbers[0]
    for number, following in zip(numbers, [*numbers[1:], None], strict=True):
        if following is None or (following - number - 1) * sizes[number] > _PASSED_OVER_SIZE_BYTES_MAX:
            for found, entry in reader.entries(start, number + 1):
                if found in sizes:
                    yield found, entry
            if following is not None:
                start = following
