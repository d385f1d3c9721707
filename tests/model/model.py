"""The model: the conditions that a history must meet, whatever raced or was cut. Pure; knows no broker and no SQL.

Of each transaction is known what was told to which broker, between which two moments, and what was answered (perhaps
nothing: then it may or may not have been done). Moments are numbers of one counter. At the end the tables are read, and
`judge` compares:

  lost        I1, I2  committed or acknowledged, but not in its queue; or not visible once it was acknowledged
  phantom     I1      in a queue, though its local transaction did not commit, or nobody sent it
  duplicated  I4, I6  in a queue twice, or alive again as a half, while the outcome is remembered
  gap         I4      the offsets of a queue are not 0, 1, 2, ..., or a reader passed one that came later
  reordered   I4, I5  acknowledged before another was begun, but behind it; or another order than that of storing, which
                      those of an ordering key keep whatever decides them, and when
  turned      I6      both outcomes stand, or one was refused, answered OK or forgotten against what the tables say
  refused             a request with nothing wrong in it was called wrong
  stuck       I8      undecided at the end, though all were asked

Outcomes are remembered by the open and the previous segment. Beyond them a late copy may come back: with a fence to the
same outcome (so a second delivery, which I3 allows), else to whatever is said then.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.model.history import Kind, RequestKind, Transaction

OK = "ok"
KNOWS_NOTHING = frozenset({"", "broker_unavailable", "overloaded", "outcome_unknown"})
"""Replies after which the request may or may not have been executed. "": no reply."""


class Defect(enum.Enum):
    LOST = "lost"
    PHANTOM = "phantom"
    DUPLICATED = "duplicated"
    GAP = "gap"
    REORDERED = "reordered"
    TURNED = "turned"
    REFUSED = "refused"
    STUCK = "stuck"


class Violation(NamedTuple):
    defect: Defect
    text: str


@dataclass(slots=True)
class RequestRecord:
    """The part of one transaction in one request to one broker."""

    transaction: int
    word: RequestKind
    broker: int
    begun: int
    ended: int | None = None
    reply: str = ""
    """OK, the code of an error, or "" when no answer came."""
    segment_max: int = 0
    """The newest segment that may have been open at the answer."""


class Stored(NamedTuple):
    """A row of the message table. transaction 0: of no transaction. batch: the database transaction that stored it."""

    queue: int
    offset: int
    segment: int
    transaction: int
    n: int
    batch: str


class Seen(NamedTuple):
    """The messages that one read found after earlier ones, queue by queue."""

    begun: int
    rows: Sequence[Stored]


@dataclass(slots=True)
class Record:
    """The complete record of requests, answers and reads of a history."""

    transactions: Mapping[int, Transaction]
    told: list[RequestRecord] = field(default_factory=list)
    committed_at: dict[int, int] = field(default_factory=dict)
    """Fenced: when the local transaction committed."""
    reads: list[Seen] = field(default_factory=list)
    alive_again: set[int] = field(default_factory=set)
    """Transactions seen undecided while their outcome was remembered."""
    rows: list[Stored] = field(default_factory=list)
    """The message table at the end, by queue and offset."""
    rolled_back: list[tuple[int, int]] = field(default_factory=list)
    """Transaction and segment of each rollback at the end."""
    undecided: set[int] = field(default_factory=set)
    """Halves at the end."""


def judge(record: Record) -> list[Violation]:
    """Return all violations of a history; empty if there are none."""
    told, rows, rolled_back = defaultdict(list), defaultdict(list), defaultdict(list)
    for each in record.told:
        told[each.transaction].append(each)
    for row in record.rows:
        rows[row.transaction].append(row)
    for number, segment in record.rolled_back:
        rolled_back[number].append(segment)
    lives = [
        _Life(each, told[number], rows[number], rolled_back[number], record.committed_at.get(number))
        for number, each in record.transactions.items()
    ]
    found = [v for life in lives for v in (*life.outcome(), *life.replies())]
    found += [Violation(Defect.PHANTOM, f"a message that nobody sent is at {_at(row)}") for row in rows[0]]
    found += [Violation(Defect.DUPLICATED, f"{n} lives again as a half, though decided") for n in record.alive_again]
    found += [Violation(Defect.STUCK, f"{n} is undecided, though all were asked") for n in record.undecided]
    found += _queues(record.rows)
    found += _order(record, {life.transaction.number: life for life in lives})
    found += _reads(record, lives)
    return found


@dataclass(slots=True)
class _Life:
    """One transaction: its requests and their answers."""

    transaction: Transaction
    told: list[RequestRecord]
    rows: list[Stored]
    rolled_back: list[int]
    """Segments."""
    committed_at: int | None

    def sendable_at(self) -> int | None:
        """The first moment from which it may be delivered; None: never."""
        match self.transaction.kind:
            case Kind.FENCED:
                return self.committed_at
            case Kind.CLAIMED:
                return min((each.begun for each in self.told if each.word is RequestKind.COMMIT), default=None)
            case Kind.PLAIN:
                return min((each.begun for each in self.told if each.word is RequestKind.PLAIN), default=None)

    def acknowledged_at(self) -> int | None:
        """The first moment at which a client knew that it is in its queue; None: never."""
        return min((each.ended or 0 for each in self._ok(RequestKind.COMMIT, RequestKind.PLAIN)), default=None)

    def entered_at(self, n: int) -> int | None:
        """The first moment at which a client knew that its n-th message is in its queue; with an ordering key it may be
        held back then.
        """
        return None if self.transaction.key(n) else self.acknowledged_at()

    def _ok(self, *words: RequestKind) -> Iterator[RequestRecord]:
        return (each for each in self.told if each.reply == OK and each.word in words)

    def outcome(self) -> Iterator[Violation]:
        name, expected = self.transaction.number, set(range(len(self.transaction.topics)))
        present = {row.n for row in self.rows}
        must = self.acknowledged_at() is not None or self.committed_at is not None
        if present - expected or (present and self.sendable_at() is None):
            yield Violation(Defect.PHANTOM, f"{name} is in a queue, but did not commit: {_places(self.rows)}")
        elif expected - present and (must or present):
            yield Violation(Defect.LOST, f"{name} was committed, but messages {sorted(expected - present)} are missing")
        for n in present:
            segments = sorted(row.segment for row in self.rows if row.n == n)
            if any(later - earlier < 2 for earlier, later in pairwise(segments)):
                yield Violation(Defect.DUPLICATED, f"{name}.{n} is there {len(segments)} times: {_places(self.rows)}")
        fenced = self.transaction.kind is Kind.FENCED
        if any(fenced or abs(row.segment - segment) < 2 for row in self.rows for segment in self.rolled_back):
            yield Violation(Defect.TURNED, f"{name} is rolled back, and delivered as well")
        if not self.rolled_back and any(self._ok(RequestKind.ROLLBACK)):
            yield Violation(Defect.TURNED, f"{name}: a rollback was answered OK, but is not remembered")

    def replies(self) -> Iterator[Violation]:
        """Check refusals and late answers against the tables."""
        decided = [*(row.segment for row in self.rows), *self.rolled_back]
        stored_at = min((each.ended or 0 for each in self._ok(RequestKind.HALF)), default=None)
        known_at = min((each.ended or 0 for each in self._ok(RequestKind.COMMIT, RequestKind.ROLLBACK)), default=None)
        for each in self.told:
            what = f"{self.transaction.number}: {each.word.value} told to broker {each.broker} at {each.begun}"
            remembered = bool(decided) and min(decided) >= each.segment_max - 1
            if each.reply in KNOWS_NOTHING:
                continue
            if each.reply == OK:
                if each.word is RequestKind.HALF and remembered and known_at is not None and known_at < each.begun:
                    yield Violation(Defect.TURNED, f"{what}: a late copy was answered OK, though decided")
            elif each.reply == "outcome_conflict":
                other = {
                    RequestKind.COMMIT: bool(self.rolled_back),
                    RequestKind.ROLLBACK: bool(self.rows),
                    RequestKind.HALF: bool(decided),
                }
                if not other.get(each.word, False):
                    yield Violation(Defect.TURNED, f"{what} was refused for an outcome that it does not have")
            elif each.reply == "outcome_expired":
                if stored_at is not None and stored_at < each.begun and (remembered or not decided):
                    yield Violation(Defect.TURNED, f"{what} was called unknown, though its half was on disk")
            else:
                yield Violation(Defect.REFUSED, f"{what} was refused: {each.reply}")


def _queues(rows: Sequence[Stored]) -> Iterator[Violation]:
    """Check I4: offsets are dense from 0, and older segments hold the smaller ones."""
    for queue, of_queue in _by_queue(rows).items():
        offsets = [row.offset for row in of_queue]
        if sorted(offsets) != list(range(len(offsets))):
            yield Violation(Defect.GAP, f"queue {queue} has the offsets {sorted(offsets)}")
        elif any(a.segment > b.segment for a, b in pairwise(of_queue)):
            yield Violation(Defect.REORDERED, f"queue {queue}: an older segment holds a greater offset")


def _order(record: Record, lives: Mapping[int, _Life]) -> Iterator[Violation]:
    """Check I4 and I5: a message acknowledged before another was begun comes first, and a batch keeps its storage
    order.
    """
    first: dict[tuple[int, int], Stored] = {}  # a second one came when the first was forgotten
    for row in sorted(record.rows, key=lambda row: row.segment):
        if row.transaction:
            first.setdefault((row.transaction, row.n), row)
    for queue, of_queue in _by_queue(row for row in record.rows if first.get((row.transaction, row.n)) is row).items():
        begun_max, latest = 0, None
        for row in of_queue:
            life = lives[row.transaction]
            acknowledged, begun = life.entered_at(row.n), life.sendable_at()
            if acknowledged is not None and acknowledged < begun_max:
                yield Violation(
                    Defect.REORDERED,
                    f"queue {queue}: {row.transaction} was acknowledged at {acknowledged}, but comes behind {latest}, "
                    f"which began at {begun_max}",
                )
            if begun is not None and begun > begun_max:
                begun_max, latest = begun, row.transaction
        yield from _order_of_storing(queue, of_queue, lives)
    yield from _order_of_keys([row for row in record.rows if first.get((row.transaction, row.n)) is row], lives)


def _order_of_keys(rows: Iterable[Stored], lives: Mapping[int, _Life]) -> Iterator[Violation]:
    """Check I5: messages of one topic and ordering key are in one queue, in the order in which they were stored."""
    by_key: dict[tuple[int, int], list[Stored]] = defaultdict(list)
    for row in rows:
        transaction = lives[row.transaction].transaction
        if key := transaction.key(row.n):
            by_key[transaction.topics[row.n], key].append(row)
    for (topic, key), of_key in by_key.items():
        if len({row.queue for row in of_key}) > 1:
            yield Violation(Defect.REORDERED, f"key {key} of topic {topic} is in several queues: {_places(of_key)}")
        of_key.sort(key=lambda row: row.offset)
        for earlier, later in ((a, b) for place, a in enumerate(of_key) for b in of_key[place + 1 :]):
            same = earlier.transaction == later.transaction
            if (same and earlier.n > later.n) or (
                not same and _stored_before(lives[later.transaction], lives[earlier.transaction])
            ):
                yield Violation(
                    Defect.REORDERED,
                    f"key {key} of topic {topic}: {later.transaction}.{later.n} was stored before "
                    f"{earlier.transaction}.{earlier.n}, but comes behind it",
                )


def _stored_before(one: _Life, other: _Life) -> bool:
    """Return True if `one` was on disk, as a half or plain, before `other` was first sent."""
    if one.rolled_back:
        return False  # and forgotten, it may have been stored a second time
    stored_at = min((each.ended or 0 for each in one._ok(RequestKind.HALF, RequestKind.PLAIN)), default=None)
    begun_at = min(
        (each.begun for each in other.told if each.word in (RequestKind.HALF, RequestKind.PLAIN)), default=None
    )
    return stored_at is not None and begun_at is not None and stored_at < begun_at


def _order_of_storing(queue: int, rows: Sequence[Stored], lives: Mapping[int, _Life]) -> Iterator[Violation]:
    by_batch: dict[str, list[Stored]] = defaultdict(list)
    for row in rows:
        by_batch[row.batch].append(row)
    for together in by_batch.values():
        for earlier, later in ((a, b) for place, a in enumerate(together) for b in together[place + 1 :]):
            same = earlier.transaction == later.transaction
            if any(lives[row.transaction].transaction.key(row.n) for row in (earlier, later)):
                continue  # those of a key may have waited; see _order_of_keys
            if (same and earlier.n > later.n) or (
                not same and _surely_before(lives[later.transaction], lives[earlier.transaction])
            ):
                yield Violation(
                    Defect.REORDERED,
                    f"queue {queue}: {later.transaction}.{later.n} was stored before "
                    f"{earlier.transaction}.{earlier.n}, but comes behind it in the same batch",
                )


def _surely_before(one: _Life, other: _Life) -> bool:
    """Return True if the half of `one` was on disk before that of `other` was first sent, both by the same broker.

    By different brokers the order is not kept without an ordering key: each session takes sequence numbers in advance.
    """
    first = [each for each in one.told if each.word is RequestKind.HALF]
    second = [each for each in other.told if each.word is RequestKind.HALF]
    if not first or not second or len({each.broker for each in (*first, *second)}) > 1 or one.rolled_back:
        return False  # rolled back and forgotten, it may have been stored a second time
    stored_at = min((each.ended or 0 for each in first if each.reply == OK), default=None)
    return stored_at is not None and stored_at < min(each.begun for each in second)


def _reads(record: Record, lives: Iterable[_Life]) -> Iterator[Violation]:
    """Check that a reader sees each queue grow at its end only, with all messages acknowledged before it looked."""
    final = _by_queue(record.rows)
    seen: dict[int, list[Stored]] = defaultdict(list)
    met: set[int] = set()
    acknowledged = sorted(
        (at, life.transaction.number)
        for life in lives
        if (at := life.acknowledged_at()) is not None and not any(life.transaction.keys)
    )
    for read in record.reads:
        for row in read.rows:
            if row.offset != len(seen[row.queue]):
                yield Violation(
                    Defect.GAP, f"queue {row.queue}: a reader at {len(seen[row.queue])} was shown {row.offset}"
                )
            else:
                seen[row.queue].append(row)
            met.add(row.transaction)
        for at, number in acknowledged:
            if at < read.begun and number not in met:
                yield Violation(
                    Defect.LOST, f"{number} was acknowledged at {at}, but a reader at {read.begun} saw nothing"
                )
                met.add(number)
    for queue, rows in seen.items():
        if rows != final.get(queue, [])[: len(rows)]:
            yield Violation(Defect.REORDERED, f"queue {queue} is not what a reader saw of it before")


def _by_queue(rows: Iterable[Stored]) -> dict[int, list[Stored]]:
    queues: dict[int, list[Stored]] = defaultdict(list)
    for row in rows:
        queues[row.queue].append(row)
    return queues


def _at(row: Stored) -> str:
    return f"queue {row.queue} offset {row.offset} (segment {row.segment})"


def _places(rows: Iterable[Stored]) -> str:
    return ", ".join(f".{row.n} at {_at(row)}" for row in rows)
