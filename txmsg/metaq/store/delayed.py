"""Delayed messages of a log: they wait in an internal topic, and each is moved to its topic once, when it is due.

Queue 0 of DELAYED has the batches as they arrived, each with its topic, queue and due time. Queue 1 has a note for each
move, written in one append with the moved batches and before them. So a crash can leave a note without all of its
batches, which is checked when the log is opened, but never batches without their note. Queue 2 has the numbers of
recalled batches. docs/log_format.md specifies the bytes.

Progress is a position in the order (due time, offset): everything waiting up to that position, and read by then, has
been moved. So a note is small, regardless of how many messages wait. This module has the bytes, and what any process
can read of them; `mover` moves.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nsmallest
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from txmsg.errors import CorruptLog, InvalidMessage, MisuseError, OffsetOutOfRange, OffsetsMissing
from txmsg.message import QUEUES_MAX, ReceivedMessage, check_name
from txmsg.metaq.format.frame import Compression, FrameColumn, FrameColumns, FrameKind, Payload, encode
from txmsg.metaq.store.cells import Cell, Cells, queue_directory
from txmsg.metaq.store.reader import LogReader
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

DELAYED: Final = "%DELAYED%"
"""The topic in which messages wait until they are due."""
ENTRIES: Final = 0
NOTES: Final = 1
RECALLS: Final = 2
_DAY_US: Final = 86_400_000_000
_READ_SIZE_BYTES: Final = 1024 * 1024

_ENTRY: Final = struct.Struct("<qIIIIBHB")
_PROGRESS: Final = struct.Struct("<qqqqI")
_MOVE: Final = struct.Struct("<qIq")
_RECALL: Final = struct.Struct("<q")

Turn: TypeAlias = tuple[int, int]
"""Due time in us and offset of an entry: the order in which entries are moved."""


class DelayedBatch(NamedTuple):
    """A batch to append to a queue."""

    topic: str
    queue: int
    payload: Payload


class DelayedEntry(NamedTuple):
    """A waiting batch. Its payload lacks the time of storing, which is that of the move."""

    due_us: int
    batch: DelayedBatch

    def pack(self) -> bytes:
        topic, queue, payload = self.batch
        fixed = (payload.raw_size_bytes, payload.crc, payload.count, payload.compression, payload.columns, len(topic))
        return b"".join((_ENTRY.pack(self.due_us, queue, *fixed), topic.encode(), payload.parts[0]))

    @classmethod
    def unpack(cls, data: bytes, stored_at_us: int = 0) -> DelayedEntry:
        due_us, queue, raw_size_bytes, crc, count, compression, columns, size = _ENTRY.unpack_from(data)
        start = _ENTRY.size + size
        stored = data[start:]
        payload = Payload(
            (stored, bytes(-len(stored) & 7)), len(stored), raw_size_bytes, crc, Compression(compression),
            FrameKind.MESSAGES, columns, count, stored_at_us, stored_at_us,
        )  # fmt: skip
        return cls(due_us, DelayedBatch(data[_ENTRY.size : start].decode("ascii"), queue, payload))


def entry_of(batch: DelayedBatch, due_us: int, *, now_us: int, ahead_us: int) -> Payload:
    """Return the entry of a batch that waits until then. Raises InvalidMessage if it cannot wait, or not for so
    long.
    """
    topic, queue, payload = batch
    check_name("topic", topic)
    if not 0 <= queue < QUEUES_MAX:
        raise MisuseError(f"queue {queue} of topic {topic}: 0 to {QUEUES_MAX - 1} are allowed")
    if topic.startswith("%"):
        raise InvalidMessage(f"messages of topic {topic}, which is the log's own, cannot be delayed")
    if payload.kind is not FrameKind.MESSAGES or payload.columns & FrameColumn.STORED_AT_US:
        raise InvalidMessage(f"a delayed batch for topic {topic} says when its messages are stored: leave that out")
    if due_us - now_us > ahead_us:
        raise InvalidMessage(
            f"a message for topic {topic!r} would be due in {(due_us - now_us) / _DAY_US:.1f} days: this log holds "
            f"messages for {ahead_us / _DAY_US:g} days at most (its setting delay_max_s); send it later"
        )
    return encode(FrameColumns([DelayedEntry(due_us, batch).pack()], [now_us]))


class DelayedMove(NamedTuple):
    """The place to which an entry was moved."""

    entry: int
    queue: int
    base_offset: int


class MoveNote(NamedTuple):
    """The progress of moving. first: no entry before this offset waits. taken: entries from here on were not read."""

    turn: Turn
    first: int
    taken: int
    moves: tuple[DelayedMove, ...]

    def leaves(self, turn: Turn) -> bool:
        """Return True if an entry waited when the note was written, or came later."""
        return turn > self.turn or turn[1] >= self.taken

    def pack(self) -> bytes:
        head = _PROGRESS.pack(*self.turn, self.first, self.taken, len(self.moves))
        return head + b"".join(_MOVE.pack(*move) for move in self.moves)

    @classmethod
    def unpack(cls, data: bytes) -> MoveNote:
        due_us, offset, first, taken, count = _PROGRESS.unpack_from(data)
        moves = (DelayedMove(*_MOVE.unpack_from(data, _PROGRESS.size + _MOVE.size * each)) for each in range(count))
        return cls((due_us, offset), first, taken, tuple(moves))


def note_batch(note: MoveNote, now_us: int) -> DelayedBatch:
    """Return a note, as it is appended."""
    return DelayedBatch(DELAYED, NOTES, encode(FrameColumns([note.pack()], [now_us])))


def recall_batch(topic: str, number: int, now_us: int) -> DelayedBatch:
    """Return the record that an entry must not be moved, as it is appended."""
    return DelayedBatch(DELAYED, RECALLS, encode(FrameColumns([_RECALL.pack(number) + topic.encode()], [now_us])))


class DelayedReader:
    """Reads waiting entries. One thread at a time uses it."""

    def __init__(self, log: LogReader) -> None:
        self.log = log

    def end_number(self) -> int:
        """Return the number of the next entry."""
        return self.log.queue(DELAYED, ENTRIES).end_offset()

    def last_note(self) -> MoveNote:
        """Return the progress of moving. Entries moved since are moved again if a repair has removed their notes."""
        notes = self.log.queue(DELAYED, NOTES)
        begin, end = notes.range()
        while begin < end:
            try:
                *_, last = notes.fetch(end - 1, size_bytes_max=1)[0].messages()
            except OffsetsMissing as exc:
                _log.error("log.delayed_again", "delayed messages of the log %(log)s may come twice: %(error)s",
                           log=self.log.root, error=exc)  # fmt: skip
                # A repair has removed the last notes. An earlier one counts, so messages moved since arrive twice
                # rather than never (decision 0080).
                end = exc.begin
            else:
                return MoveNote.unpack(last.body)
        oldest = self.log.queue(DELAYED, ENTRIES).range()[0]
        return MoveNote((-1, -1), oldest, oldest, ())

    def recalled(self, first: int) -> dict[int, str]:
        """Return the numbers of entries that were recalled, with their topics: of all from this number on, maybe
        others.
        """
        entry = first_kept(self.log.root, first)
        if entry is None:
            return {}
        recalls = self.log.queue(DELAYED, RECALLS)  # each stands behind its entry
        found = (message.body for message in self._messages(RECALLS, *recalls.range_behind(entry.position)))
        return {_RECALL.unpack_from(body)[0]: body[_RECALL.size :].decode("ascii") for body in found}

    def entries(self, offset: int, end: int) -> Iterator[tuple[int, DelayedEntry]]:
        """Yield entries by number. Missing ones are logged."""
        for message in self._messages(ENTRIES, offset, end):
            assert message.offset is not None
            yield message.offset, DelayedEntry.unpack(message.body)

    def _messages(self, number: int, offset: int, end: int) -> Iterator[ReceivedMessage]:
        queue = self.log.queue(DELAYED, number)
        while offset < end:
            try:
                batches = queue.fetch(offset, size_bytes_max=_READ_SIZE_BYTES, end=end)
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
                        if message.offset is not None and message.offset >= end:
                            return
                        yield message
                    offset = batch.end_offset
                continue
            _log.error("log.delayed_lost", "delayed messages of the log %(log)s are lost: %(error)s",
                       log=self.log.root, error=error)  # fmt: skip
            offset = following


def first_kept(root: Path, number: int) -> Cell | None:
    """Return the first entry from this number on that is kept. Any thread may call it."""
    return Cells(queue_directory(root, DELAYED, ENTRIES)).first(_end_of, number + 1)


def _end_of(cell: Cell) -> int:
    return cell.base_offset + cell.count


# ---- what waits, for people


class WaitingSend(NamedTuple):
    """The messages that one send appended for one queue and time. number: to recall them."""

    due_at_us: int
    number: int
    topic: str
    queue: int
    messages: int


class Delayed(NamedTuple):
    """Waiting messages of a log. messages: their number by topic. first: those due first, in order of time."""

    messages: Mapping[str, int]
    first: Sequence[WaitingSend]

    def plus(self, other: Delayed, limit: int) -> Delayed:
        """Return both together."""
        messages = Counter(self.messages)
        messages.update(other.messages)
        return Delayed(messages, nsmallest(limit, (*self.first, *other.first)))


def delayed_from(
    log: LogReader, start: int, limit: int, *, size_bytes: int, shows: Callable[[str], bool] = lambda _: True
) -> tuple[Delayed, int]:
    """Return waiting messages, of so many bytes from this number on, and the number at which to continue; 0: that was
    all.

    Messages of a move that a crash has cut off are missing until the log is opened for writing.
    """
    reader = DelayedReader(log)
    note, end = reader.last_note(), reader.end_number()
    start = max(start, note.first)
    recalled = reader.recalled(start)
    found: list[WaitingSend] = []
    messages: Counter[str] = Counter()
    following = 0
    for number, (due_us, (topic, queue, payload)) in reader.entries(start, end):
        if size_bytes < 0:
            following = number
            break
        # Bounded by what is read, not by what is shown: a list in which little may be shown must not read everything in
        # one call.
        size_bytes -= payload.size_bytes
        if number not in recalled and note.leaves((due_us, number)) and shows(topic):
            found.append(WaitingSend(due_us, number, topic, queue, payload.count))
            messages[topic] += payload.count
    return Delayed(messages, nsmallest(limit, found)), following
