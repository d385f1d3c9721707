"""The model itself: a correct record is clean, and each change of it is reported as its own kind of defect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model.history import Kind, RequestKind, Transaction, random_history
from tests.model.model import OK, Defect, Record, RequestRecord, Seen, Stored, judge

FENCED, ROLLED_BACK, PLAIN = 1, 2, 3


def _record() -> Record:
    """Return a record with a committed fenced transaction of two messages, one rolled back, and a plain message."""
    record = Record(
        {
            FENCED: Transaction(FENCED, Kind.FENCED, (0, 0), 0, commits=True),
            ROLLED_BACK: Transaction(ROLLED_BACK, Kind.FENCED, (0,), 0, commits=False),
            PLAIN: Transaction(PLAIN, Kind.PLAIN, (0,), 0, commits=False),
        }
    )
    record.told += [
        RequestRecord(FENCED, RequestKind.HALF, 0, begun=1, ended=2, reply=OK, segment_max=1),
        RequestRecord(ROLLED_BACK, RequestKind.HALF, 0, begun=3, ended=4, reply=OK, segment_max=1),
        RequestRecord(FENCED, RequestKind.COMMIT, 1, begun=6, ended=7, reply=OK, segment_max=1),
        RequestRecord(ROLLED_BACK, RequestKind.ROLLBACK, 1, begun=8, ended=9, reply=OK, segment_max=1),
        RequestRecord(PLAIN, RequestKind.PLAIN, 0, begun=10, ended=11, reply=OK, segment_max=1),
    ]
    record.committed_at[FENCED] = 5
    record.rows += [Stored(1, 0, 1, FENCED, 0, "a"), Stored(1, 1, 1, FENCED, 1, "a"), Stored(1, 2, 1, PLAIN, 0, "b")]
    record.reads.append(Seen(12, tuple(record.rows)))
    record.rolled_back.append((ROLLED_BACK, 1))
    return record


def _say(record: Record, number: int, word: RequestKind, reply: str, segment_max: int = 1) -> None:
    record.told.append(RequestRecord(number, word, 0, begun=20, ended=21, reply=reply, segment_max=segment_max))


def _restore(record: Record, *rows: Stored) -> None:
    record.rows[:] = rows
    record.reads.clear()


def test_the_required_record_has_no_violation() -> None:
    assert judge(_record()) == []


def _late_copy_within_memory(record: Record) -> None:
    _say(record, FENCED, RequestKind.HALF, "outcome_conflict")
    _say(record, FENCED, RequestKind.COMMIT, OK)


def _late_copy_beyond_memory(record: Record) -> None:
    _say(record, FENCED, RequestKind.COMMIT, "outcome_expired", segment_max=3)
    _say(record, FENCED, RequestKind.HALF, OK, segment_max=3)
    record.rows += [Stored(1, 3, 3, FENCED, 0, "c"), Stored(1, 4, 3, FENCED, 1, "c")]


def _late_copy_in_another_queue(record: Record) -> None:
    """Add a late copy beyond memory, in another queue, after the topic has got more queues."""
    record.rows += [Stored(2, 0, 3, PLAIN, 0, "c"), Stored(2, 1, 3, FENCED, 0, "d"), Stored(2, 2, 3, FENCED, 1, "d")]


@pytest.mark.parametrize("change", [_late_copy_within_memory, _late_copy_beyond_memory, _late_copy_in_another_queue])
def test_an_allowed_deviation_has_no_violation(change: Callable[[Record], None]) -> None:
    record = _record()
    change(record)
    assert judge(record) == []


_A, _B, _C = Stored(1, 0, 1, FENCED, 0, "a"), Stored(1, 1, 1, FENCED, 1, "a"), Stored(1, 2, 1, PLAIN, 0, "b")

WRONG: dict[str, tuple[Defect, Callable[[Record], object]]] = {
    "a committed message is missing": (Defect.LOST, lambda r: _restore(r, _A, _C._replace(offset=1))),
    "a reader did not see what was acknowledged": (Defect.LOST, lambda r: r.reads.__setitem__(0, Seen(12, (_A, _B)))),
    "what was not committed is delivered": (Defect.PHANTOM, lambda r: r.committed_at.clear()),
    "a message of nobody": (Defect.PHANTOM, lambda r: r.rows.append(Stored(1, 3, 1, 0, 0, "z"))),
    "one message twice": (Defect.DUPLICATED, lambda r: r.rows.append(_C._replace(offset=3, segment=2))),
    "a half lives beside its outcome": (Defect.DUPLICATED, lambda r: r.alive_again.add(FENCED)),
    "an offset is left out": (Defect.GAP, lambda r: _restore(r, _A, _B, _C._replace(offset=3))),
    "an offset is given twice": (Defect.GAP, lambda r: _restore(r, _A, _B, _C._replace(offset=1, segment=2))),
    "a reader skips": (Defect.GAP, lambda r: r.reads.insert(0, Seen(0, (_B,)))),
    "a later one comes first": (
        Defect.REORDERED,
        lambda r: _restore(r, _C._replace(offset=0), _A._replace(offset=1), _B._replace(offset=2)),
    ),
    "a transaction backwards": (Defect.REORDERED, lambda r: _restore(r, _A._replace(n=1), _B._replace(n=0), _C)),
    "an older segment behind": (Defect.REORDERED, lambda r: _restore(r, _A._replace(segment=2), _B, _C)),
    "rolled back and delivered": (Defect.TURNED, lambda r: r.rolled_back.append((FENCED, 1))),
    "a rollback is forgotten": (Defect.TURNED, lambda r: r.rolled_back.clear()),
    "refused without the other outcome": (
        Defect.TURNED,
        lambda r: _say(r, FENCED, RequestKind.COMMIT, "outcome_conflict"),
    ),
    "forgotten too early": (
        Defect.TURNED,
        lambda r: _say(r, FENCED, RequestKind.COMMIT, "outcome_expired", segment_max=2),
    ),
    "a late copy is taken": (Defect.TURNED, lambda r: _say(r, FENCED, RequestKind.HALF, OK, segment_max=2)),
    "called wrong": (Defect.REFUSED, lambda r: _say(r, PLAIN, RequestKind.PLAIN, "invalid_message")),
    "undecided for ever": (Defect.STUCK, lambda r: r.undecided.add(FENCED)),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_forbidden_deviation_is_reported_by_name(what: str) -> None:
    defect, change = WRONG[what]
    record = _record()
    change(record)
    assert {violation.defect for violation in judge(record)} == {defect}


def test_a_seed_determines_the_history() -> None:
    assert random_history(4711) == random_history(4711) != random_history(4712)


def _of_a_key(batch: str) -> Record:
    """Return a record with two transactions of one key: the second committed first and waited for the first."""
    record = Record({n: Transaction(n, Kind.FENCED, (0,), 0, commits=True, keys=(1,)) for n in (1, 2)})
    record.told += [
        RequestRecord(1, RequestKind.HALF, 0, begun=1, ended=2, reply=OK, segment_max=1),
        RequestRecord(2, RequestKind.HALF, 1, begun=3, ended=4, reply=OK, segment_max=1),
        RequestRecord(2, RequestKind.COMMIT, 1, begun=6, ended=7, reply=OK, segment_max=1),
        RequestRecord(1, RequestKind.COMMIT, 0, begun=10, ended=11, reply=OK, segment_max=1),
    ]
    record.committed_at |= {1: 9, 2: 5}
    record.reads.append(Seen(8, ()))  # it is held back, which keeps the guarantee
    record.rows += [Stored(1, 0, 1, 1, 0, "a"), Stored(1, 1, 1, 2, 0, batch)]
    return record


@pytest.mark.parametrize("batch", ["a", "b"])
def test_a_message_may_wait_for_but_not_overtake_an_earlier_one_of_its_key(batch: str) -> None:
    record = _of_a_key(batch)
    assert judge(record) == []
    first, second = record.rows
    _restore(record, second._replace(offset=0), first._replace(offset=1))
    assert {each.defect for each in judge(record)} == {Defect.REORDERED}
    _restore(record, first, second._replace(queue=2, offset=0))
    assert any("is in several queues" in each.text for each in judge(record))
