"""The appends that were carried out: a repeat after a lost answer gets that answer, and appends nothing. Pure.

A producer is an opened log of some process; it numbers its calls, and each call names the lowest number that it may
repeat. So only calls under way are kept of it. Calls whose batches all name their offsets need none of this: the
message at an offset tells whether it is theirs.

What is kept outlives the server: for each append a note is written into the log, in the same write and just before the
batches (topic `access.NOTES`). A crash can have cut off batches whose note is there, never the other way round.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from txmsg.errors import Overloaded, ProtocolError

REMEMBERED_S: Final = 120.0
"""Seconds for which the answer to an append is remembered at least; clients repeat for a minute at most."""
_UNDER_WAY_MAX = 1024
_PRODUCERS_MAX = 100_000

_CALL = struct.Struct("<16sQQI")
_BATCH = struct.Struct("<BIQII")


class CallId(NamedTuple):
    """The identity of an append among all."""

    producer_id: bytes
    sequence: int


class Placed(NamedTuple):
    """The place of a batch, and the checksum that tells it from others."""

    topic: str
    queue: int
    base_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which it does not need
    crc: int


@dataclass(frozen=True, slots=True)
class AppendNote:
    """An append as it is noted in the log."""

    call: CallId
    settled: int
    placed: tuple[Placed, ...]

    def pack(self) -> bytes:
        parts = [_CALL.pack(*self.call, self.settled, len(self.placed))]
        for topic, queue, base_offset, count, crc in self.placed:
            name = topic.encode()
            parts += (_BATCH.pack(len(name), queue, base_offset, count, crc), name)
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes) -> AppendNote:
        producer_id, sequence, settled, batches = _CALL.unpack_from(data)
        at, placed = _CALL.size, list[Placed]()
        for _ in range(batches):
            size, queue, base_offset, count, crc = _BATCH.unpack_from(data, at)
            at += _BATCH.size
            placed.append(Placed(data[at : at + size].decode("ascii"), queue, base_offset, count, crc))
            at += size
        return cls(CallId(producer_id, sequence), settled, tuple(placed))


Bases: TypeAlias = tuple[int, ...]


@dataclass(slots=True)
class _Producer:
    settled: int = 0
    answers: dict[int, Bases] = field(default_factory=dict)
    used_at: float = 0.0


class RememberedAppends:
    """The answers that are remembered. Times are arguments, in seconds of one clock.

    An answer with fewer offsets than the call has batches is one that a crash has cut off: the rest is to be done.
    """

    def __init__(self) -> None:
        self._producers: OrderedDict[bytes, _Producer] = OrderedDict()  # the one used last is last

    def __len__(self) -> int:
        return len(self._producers)

    def answer_of(self, call: CallId, settled: int, now: float) -> Bases | None:
        """Return the answer that the call got, or None if it was not carried out.

        Raises ProtocolError for a call that its producer said it would not repeat, Overloaded for too many under way.
        """
        self._forget_producers(now)
        known = self._used(call.producer_id, settled, now)
        if call.sequence < known.settled:
            raise ProtocolError(
                f"append {call.sequence} of a producer that repeats none below {known.settled} came late"
            )
        answer = known.answers.get(call.sequence)
        # A producer that never settles its calls must not fill the server's memory.
        if answer is None and len(known.answers) >= _UNDER_WAY_MAX:
            raise Overloaded(f"a producer has more than {_UNDER_WAY_MAX} pending appends; try again")
        return answer

    def note(self, call: CallId, settled: int, bases: Sequence[int], now: float) -> None:
        """Remember an answer."""
        known = self._used(call.producer_id, settled, now)
        if call.sequence >= known.settled:
            known.answers[call.sequence] = tuple(bases)

    def _used(self, producer_id: bytes, settled: int, now: float) -> _Producer:
        known = self._producers.get(producer_id)
        if known is None:
            if len(self._producers) >= _PRODUCERS_MAX:
                raise Overloaded(f"more than {_PRODUCERS_MAX} producers appended within {REMEMBERED_S:g} s; try again")
            known = self._producers[producer_id] = _Producer()
        self._producers.move_to_end(producer_id)
        known.used_at = now
        if settled > known.settled:
            known.settled = settled
            # Answers below the settled number are never asked for again, so only calls under way are kept.
            known.answers = {sequence: bases for sequence, bases in known.answers.items() if sequence >= settled}
        return known

    def _forget_producers(self, now: float) -> None:
        while self._producers and next(iter(self._producers.values())).used_at < now - REMEMBERED_S:
            self._producers.popitem(last=False)
