"""Puts the batches of many callers into the log in one append, each call as a whole or not at all. Blocks; no network.

It computes the offsets that batches will get in advance, so that one note can name them (`producers`) and one bad call
does not spoil the append of the others. The computation may be wrong, where other code of this process appends to the
same queue, as for delayed messages that are due: then the log refuses the whole, and each call is tried by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from txmsg.errors import MisuseError, OffsetOutOfRange, OffsetsMissing, TxmsgError
from txmsg.message import now_us
from txmsg.metaq.acks import Acks
from txmsg.metaq.format.batch import FrameBatch, LogBatch
from txmsg.metaq.format.frame import FrameColumns, FrameKind, encode, hole_end_of
from txmsg.metaq.interface import DEAD_LETTERS, NOTES, RETRIES, LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.server.producers import REMEMBERED_S, AppendNote, CallId, Placed
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.topics import Flush
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

OFFSET_MAX: Final = 2**62
_NOTES = LogQueue(NOTES, 0)
_TRIES_MAX = 10

Outcome: TypeAlias = tuple[int, ...] | Exception
"""The first offset of each batch of a call, or the error why nothing of it was appended."""


class WaitsFor(Enum):
    """The cause that may delay a call; calls with other causes are not delayed by it."""

    NOTHING = auto()
    """All of its topics are timed."""
    DISK = auto()
    MEMBERS = auto()
    """It goes to the small log of a group, which other processes append to, too, one at a time."""


@dataclass(frozen=True, slots=True)
class AppendCall:
    """The batches that one caller appends, all or nothing."""

    id: CallId
    settled: int
    appends: tuple[Append, ...]
    is_repeat: bool = False
    acks: Acks | None = None
    done: tuple[int, ...] = ()
    """The offsets of the first batches, if a crash has left only those of an earlier attempt."""

    @property
    def size_bytes(self) -> int:
        """The bytes that it keeps in memory."""
        return sum(append.payload.size_bytes for append in self.appends)

    @property
    def is_placed(self) -> bool:
        """True if each batch names its offset, which tells a repeat."""
        return all(append.base_offset is not None for append in self.appends)

    @property
    def is_of_group(self) -> bool:
        """True if it goes to the small log of a group, which other processes append to as well."""
        return any(append.topic.startswith((RETRIES, DEAD_LETTERS)) for append in self.appends)


@dataclass(frozen=True, slots=True)
class _PlacementPlan:
    call: AppendCall
    bases: tuple[int, ...]
    """First offsets of all batches."""
    appends: tuple[Append, ...]
    """Batches that are still to be appended, with their offsets."""


class Placer:
    """Appends the batches of calls. One thread at a time uses it."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._ends: dict[LogQueue, int] = {}

    def waits_for(self, call: AppendCall) -> WaitsFor:
        """Return the cause that delays a call: calls with the same one are carried out together."""
        if call.is_of_group:
            return WaitsFor.MEMBERS
        if call.acks is not None:
            return WaitsFor.NOTHING if call.acks.flush is Flush.TIMED else WaitsFor.DISK
        is_timed = all(self._log.settings_of(append.topic).flush is Flush.TIMED for append in call.appends)
        return WaitsFor.NOTHING if is_timed else WaitsFor.DISK

    def place(self, calls: Sequence[AppendCall]) -> list[Outcome]:
        """Append calls in this order, on disk as each topic promises; return the outcome of each."""
        shared = [number for number, call in enumerate(calls) if not call.is_of_group]
        # Calls of groups go to logs of their own, which cannot share a write with the main log.
        together = dict(zip(shared, self._place_together([calls[number] for number in shared]), strict=True))
        return [together.get(number) or self._alone(call) for number, call in enumerate(calls)]

    def recovered(self) -> list[tuple[AppendNote, tuple[int, ...]]]:
        """Return the appends noted lately, with the offsets of batches that exist: a crash may have cut some off."""
        since_us = now_us() - int(REMEMBERED_S * 1e6)
        offset = self._log.offsets_at([_NOTES], since_us)[_NOTES]
        found: list[tuple[AppendNote, tuple[int, ...]]] = []
        last: list[AppendNote] = []
        while fetched := self._log.fetch({_NOTES: offset}):
            if isinstance(fetched[0].error, OffsetsMissing):
                offset = fetched[0].error.end
            elif fetched[0].error is not None:
                _log.error(
                    "append.repeats_unknown",
                    "appends that are repeated from before this start may be doubled: %(error)s",
                    error=fetched[0].error,
                )
                break
            for batch in fetched[0].batches:
                last = list(_notes_in(batch))
                found += [(note, tuple(placed.base_offset for placed in note.placed)) for note in last]
                offset = batch.end_offset
        for place, note in enumerate(last, len(found) - len(last)):  # all before it were followed by a whole frame
            there = self._there(note.placed)
            if there < len(note.placed):
                _log.warning(
                    "append.cut_off",
                    "append %(sequence)d of a producer was cut off by a crash: %(placed)d of its %(batches)d batches "
                    "are there",
                    sequence=note.call.sequence,
                    placed=there,
                    batches=len(note.placed),
                )
            found[place] = note, found[place][1][:there]
        return found

    # ---- together, or one by one

    def _place_together(self, calls: Sequence[AppendCall]) -> list[Outcome]:
        plans: list[_PlacementPlan | Exception] = []
        ends: dict[LogQueue, int] = {}
        for call in calls:
            try:
                plans.append(self._plan(call, ends))
            except TxmsgError as exc:
                plans.append(exc)
        good = [plan for plan in plans if isinstance(plan, _PlacementPlan)]
        try:
            self._append(good, ends)
        except TxmsgError:
            # The foreseen ends were wrong, or the log is full. Each call is tried by itself, so that one bad call fails
            # alone.
            self._ends.clear()
            if len(calls) > 1:
                return [self._place_together([call])[0] for call in calls]
            plans = [self._planned_anew(call) for call in calls]
        return [plan.bases if isinstance(plan, _PlacementPlan) else plan for plan in plans]

    def _planned_anew(self, call: AppendCall) -> _PlacementPlan | Exception:
        """Plan one call again from the log's current state: repeatedly, if it moves delayed messages at that moment."""
        failure: TxmsgError | None = None
        for _ in range(_TRIES_MAX):
            # A move of delayed messages may take the foreseen offsets again and again, so there is a bound on attempts.
            self._ends.clear()
            ends: dict[LogQueue, int] = {}
            try:
                plan = self._plan(call, ends)
            except TxmsgError as exc:
                return exc
            try:
                self._append([plan], ends)
            except MisuseError as exc:
                failure = exc
            except TxmsgError as exc:
                return exc
            else:
                return plan
        assert failure is not None
        return failure

    def _alone(self, call: AppendCall) -> Outcome:
        try:
            return tuple(self._log.append(call.appends))
        except TxmsgError as exc:
            return exc

    def _append(self, plans: Sequence[_PlacementPlan], ends: dict[LogQueue, int]) -> None:
        appends = [append for plan in plans for append in plan.appends]
        if not appends:
            return
        notes = [_note_of(plan) for plan in plans if plan.appends and not plan.call.is_placed]
        if notes:
            columns = FrameColumns([note.pack() for note in notes], [now_us()])
            # The note is in front of its batches in the same write: after a crash there may be a note without batches,
            # which `_there` finds, but no batch without its note.
            appends.insert(0, Append(NOTES, 0, encode(columns)))
        self._log.append(appends, _strongest(plan.call.acks for plan in plans))
        self._ends.update(ends)

    # ---- where each batch will stand

    def _plan(self, call: AppendCall, ends: dict[LogQueue, int]) -> _PlacementPlan:
        """Plan a call, and add the ends of its queues after it to `ends` if it can be appended."""
        bases = list(call.done)
        if call.is_repeat and call.is_placed:
            named = [
                Placed(topic, queue, base or 0, payload.count, payload.crc)
                for topic, queue, payload, base, *_ in call.appends
            ]
            bases = [placed.base_offset for placed in named[: self._there(named)]]
        after: dict[LogQueue, int] = {}
        appends: list[Append] = []
        for append in call.appends[len(bases) :]:
            queue = LogQueue(append.topic, append.queue)
            at = after.get(queue, ends.get(queue, self._ends.get(queue, -1)))
            if at < 0 or (append.base_offset not in {None, at} and not (queue in after or queue in ends)):
                at = self._log.writer.next_offset(*queue)  # not the visible end, which may wait for the disk
            if append.base_offset is not None and not at:
                at = append.base_offset  # a queue that is new may begin anywhere; if it is not, the log refuses
            elif append.base_offset not in {None, at}:
                raise MisuseError(
                    f"offset {append.base_offset} of topic {append.topic} queue {append.queue}: the next one is {at}; "
                    "nothing was appended"
                )
            # Ends are foreseen per call in `after`, and count for later calls only if the whole call can be appended.
            end = hole_end_of(append.payload) if append.payload.kind is FrameKind.HOLE else at + append.payload.count
            if not at < end <= OFFSET_MAX:
                raise MisuseError(
                    f"a batch for topic {append.topic} queue {append.queue} would reach from {at} to {end}: offsets "
                    f"rise, up to {OFFSET_MAX}; nothing was appended"
                )
            after[queue] = end
            bases.append(at)
            appends.append(append._replace(base_offset=at))
        ends.update(after)
        return _PlacementPlan(call, tuple(bases), tuple(appends))

    def _there(self, placed: Sequence[Placed]) -> int:
        """Return how many of the first batches of a call are in the log."""
        for number, (topic, queue, base_offset, count, crc) in enumerate(placed):
            fetched = self._log.fetch({LogQueue(topic, queue): base_offset}, size_bytes_max=1)
            if not fetched:
                return number
            error = fetched[0].error
            if isinstance(error, OffsetsMissing) and not count and error.begin == base_offset:
                continue
            if isinstance(error, OffsetOutOfRange):
                return number
            if error is not None:
                raise error
            batch = fetched[0].batches[0]
            assert isinstance(batch, FrameBatch)
            header = batch.header
            # The checksum tells another producer's batch at the same offset from a repeat of this one.
            if (header.base_offset, header.count, header.payload_crc) != (base_offset, count, crc):
                return number
        return len(placed)


def _notes_in(batch: LogBatch) -> Iterator[AppendNote]:
    """Yield the notes among these messages, and skip others."""
    for message in batch.messages():
        try:
            yield AppendNote.unpack(message.body)
        except (struct.error, ValueError):
            _log.error(
                "append.note_unreadable",
                "offset %(offset)s of topic %(topic)s is not a note of an append: skipped",
                offset=message.offset,
                topic=NOTES,
            )


def _strongest(levels: Iterable[Acks | None]) -> Acks | None:
    """Return the level for calls that are appended together: those of a lane wait for the same."""
    asked = {level for level in levels if level is not None}
    if any(level.flush is Flush.SYNC for level in asked):
        return Acks.DISK
    return Acks.MEMORY if asked else None


def _note_of(plan: _PlacementPlan) -> AppendNote:
    placed = tuple(
        Placed(append.topic, append.queue, base, append.payload.count, append.payload.crc)
        for append, base in zip(plan.call.appends, plan.bases, strict=True)
    )
    return AppendNote(plan.call.id, plan.call.settled, placed)
