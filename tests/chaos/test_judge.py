"""The judge itself: a correct record passes, and each changed part violates its invariant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.history import (
    GROUPS,
    GROUPS_WITH_GUESTS,
    PULLED,
    RETRIES_MAX,
    GroupProgress,
    Handling,
    Record,
    Recorder,
    Row,
    Sending,
    SendMethod,
    Sent,
    Told,
)
from tests.chaos.judge import judge
from tests.chaos.sample import CLASSIC, CREATED, FENCED, LATE, PAID, PLAIN, REFUSED, row_of, sample, store


def _trade(record: Record) -> list[Row]:
    return [row for row in record.rows if row.topic == "trade"]


def _show_in_place(record: Record) -> None:
    """Deliver each message at its position."""
    places = {row.body: row.place for row in record.rows}
    for each in record.handlings:
        each.place = places[each.body]


def _undo(record: Record, group: str, body: str) -> None:
    record.handlings[:] = [each for each in record.handlings if (each.group, each.body) != (group, body)]


def test_correct_record_has_no_violations() -> None:
    assert judge(sample()) == []


def _a_second_delivery(record: Record) -> None:
    record.handlings.append(Handling("grumbler", f"{PLAIN}/0", ("trade", 0, 3), 2, "c", 13))


def _a_dead_letter(record: Record) -> None:
    _undo(record, "grumbler", f"{PLAIN}/0")
    record.dead.add(("grumbler", "trade", 0, 3))


def _fail(record: Record, *, attempt: int) -> None:
    """The first message of a key failed before its next one arrived, and was done long after it."""
    handling = _handling(record, CREATED)
    record.handlings.append(replace(handling, attempt=attempt, got=handling.got, ended=handling.ended, done=False))
    handling.got, handling.ended = 20.0, 20.1


def _a_dead_letter_redriven(record: Record) -> None:
    _fail(record, attempt=RETRIES_MAX + 1)


def _an_unknown_answer_of_what_was_stored(record: Record) -> None:
    record.sendings[PLAIN].stored_at, record.sendings[PLAIN].failed = None, "outcome_unknown"


def _a_conflict_refused(record: Record) -> None:
    record.sendings[CLASSIC].told.append(Told("rollback", 8.5, 9, "outcome_conflict"))


def _forgotten_at_last(record: Record) -> None:
    record.sendings[CLASSIC].told.append(Told("commit", 100, 101, "outcome_expired"))


@pytest.mark.parametrize(
    "change",
    [
        _a_second_delivery,
        _a_dead_letter,
        _a_dead_letter_redriven,
        _an_unknown_answer_of_what_was_stored,
        _a_conflict_refused,
        _forgotten_at_last,
    ],
)
def test_permitted_deviation_has_no_violations(change: Callable[[Record], None]) -> None:
    record = sample()
    change(record)
    assert judge(record) == []


def _tell(record: Record, serial: str, state: str, reply: str) -> None:
    record.sendings[serial].told.append(Told(state, 9, 10, reply))


def _drop(record: Record, offset: int) -> None:
    """A message that never existed: later offsets shift, and no handler got it."""
    [gone] = [row for row in _trade(record) if row.offset == offset]
    store(
        record, *(row._replace(offset=row.offset - (row.offset > offset)) for row in _trade(record) if row is not gone)
    )
    record.handlings[:] = [each for each in record.handlings if each.body != gone.body]
    _show_in_place(record)
    del record.effects[gone.body]
    for group in GROUPS:
        record.cursors[group, "trade", 0] = GroupProgress(3, 0)


def _swap_last_two(record: Record) -> None:
    rows = [*_trade(record)[:2], record.rows[3]._replace(offset=2), record.rows[2]._replace(offset=3)]
    store(record, *rows)
    _show_in_place(record)


def _add(record: Record, row: Row) -> None:
    """Append a row to its queue, which all groups have handled."""
    record.rows.insert(4, row)
    record.effects[row.body] = 1
    for group in GROUPS:
        record.handlings.append(Handling(group, row.body, row.place, 1, "c", 13, 14, done=True))
        record.cursors[group, "trade", 0] = GroupProgress(row.offset + 1, 0)


def _fail_surely(record: Record) -> None:
    record.sendings[PLAIN].stored_at, record.sendings[PLAIN].failed = None, "broker_unavailable"


def _leave_a_gap(record: Record) -> None:
    record.sendings["p.5"] = Sending("p.5", SendMethod.PLAIN, [Sent("trade")], begun=15)
    _add(record, row_of(5, "p.5"))


def _handling(record: Record, serial: str) -> Handling:
    return next(each for each in record.handlings if each.body == f"{serial}/0" and each.group == "grumbler")


def _swap_story(record: Record) -> None:
    """Swap two messages in the log and in the order of handling."""
    created, paid = record.rows[4:6]
    record.rows[4:6] = [paid._replace(offset=0), created._replace(offset=1)]
    for each in record.handlings:
        if each.body == created.body:
            each.got, each.ended = 15, 16
    _show_in_place(record)


def _split_story(record: Record) -> None:
    record.rows[5] = record.rows[5]._replace(queue=1, offset=0)
    for group in GROUPS:
        record.cursors[group, "story", 0] = record.cursors[group, "story", 1] = GroupProgress(1, 0)
    _show_in_place(record)


def _refuse_kept(record: Record) -> None:
    record.sendings["p.9"] = Sending("p.9", SendMethod.KEPT, [Sent("trade")], begun=15, failed="broker_unavailable")


def _overtake_kept(record: Record) -> None:
    """Both had outboxes, and the second was called after the first had returned."""
    for serial, begun in ((CREATED, 1), (PAID, 3)):
        sent = record.sendings[serial].messages
        record.sendings[serial] = Sending(serial, SendMethod.KEPT, sent, begun=begun, returned_at=begun + 1)
        record.committed.add(serial)
    _swap_story(record)


WRONG: dict[str, tuple[set[str], Callable[[Record], object]]] = {
    "a committed message is lost": ({"I1"}, lambda r: _drop(r, 1)),
    "a phantom": ({"I1"}, lambda r: r.committed.discard(FENCED)),
    "a message of nobody": ({"I1"}, lambda r: _add(r, row_of(4, "p.9"))),
    "returned, but not committed": ({"I1"}, lambda r: setattr(r.sendings[REFUSED], "returned_at", 4.0)),
    "delivered, but not in the log": (
        {"I1", "I4"},
        lambda r: r.handlings.append(Handling("ledger", "p.2/0", ("trade", 0, 9), 1, "c", 11)),
    ),
    "a sure failure that was stored": ({"I1"}, _fail_surely),
    "an acknowledged send is lost": ({"I2"}, lambda r: _drop(r, 3)),
    "an acknowledged commit is lost": ({"I1", "I2"}, lambda r: _drop(r, 2)),
    "passed over by a group": ({"I3"}, lambda r: _undo(r, "grumbler", f"{CLASSIC}/0")),
    "two effects": ({"I3"}, lambda r: r.effects.update([f"{CLASSIC}/0"])),
    "no effect": ({"I3"}, lambda r: r.effects.pop(f"{CLASSIC}/0")),
    "a gap": ({"I4"}, _leave_a_gap),
    "a copy": ({"I4"}, lambda r: _add(r, row_of(4, PLAIN))),
    "a later one comes first": ({"I4"}, _swap_last_two),
    "a transaction backwards": (
        {"I4"},
        lambda r: store(r, r.rows[1]._replace(offset=0), r.rows[0]._replace(offset=1), *_trade(r)[2:]),
    ),
    "an older segment behind": ({"I4"}, lambda r: store(r, r.rows[0]._replace(segment=2), *_trade(r)[1:])),
    "delivered from elsewhere": ({"I4"}, lambda r: setattr(r.handlings[0], "place", ("trade", 0, 3))),
    "paid before created in the log": ({"I5"}, _swap_story),
    "a kept one is overtaken": ({"I5"}, _overtake_kept),
    "refused with an outbox": ({"out"}, _refuse_kept),
    "a key in two queues": ({"I5"}, _split_story),
    "another key than was sent": (
        {"I5"},
        lambda r: r.sendings.update({PAID: replace(r.sendings[PAID], messages=[Sent("story", ordering_key="2")])}),
    ),
    "got paid before created was done": ({"I5"}, lambda r: setattr(_handling(r, CREATED), "ended", 13.5)),
    "got paid while created was retried": ({"I5"}, lambda r: _fail(r, attempt=RETRIES_MAX)),
    "got paid, but never did created": ({"I3", "I5"}, lambda r: _undo(r, "grumbler", f"{CREATED}/0")),
    "two of a key in hand after a takeover": (
        {"I5"},
        lambda r: r.handlings.append(
            Handling("grumbler", f"{CREATED}/0", ("story", 0, 0), 1, "other", got=13.2, ended=13.4, done=True)
        ),
    ),
    "delivered before it is due": ({"due"}, lambda r: setattr(_handling(r, LATE), "got_at", 104.9)),
    "due, and not delivered": ({"I8"}, lambda r: r.scheduled.add("p.9/0")),
    "both outcomes stand": ({"I6"}, lambda r: r.rolled_back.add("t3")),
    "both answered OK": ({"I6"}, lambda r: _tell(r, CLASSIC, "rollback", "ok")),
    "refused without the other outcome": ({"I6"}, lambda r: _tell(r, CLASSIC, "commit", "outcome_conflict")),
    "forgotten too early": ({"I6"}, lambda r: _tell(r, CLASSIC, "commit", "outcome_expired")),
    "undecided for ever": ({"I8"}, lambda r: r.undecided.update({f"{REFUSED}/0": "in doubt"})),
    "a group that stands still": ({"I8"}, lambda r: r.cursors.update({("sleeper", "trade", 0): GroupProgress(3, 0)})),
    "a group past the end": ({"I8"}, lambda r: r.cursors.update({("sleeper", "trade", 0): GroupProgress(5, 0)})),
    "a retry for ever": ({"I8"}, lambda r: r.retrying.add(("grumbler", "trade", 0, 3))),
}


@pytest.mark.parametrize("what", WRONG)
def test_forbidden_deviation_violates_its_invariant(what: str) -> None:
    invariants, change = WRONG[what]
    record = sample()
    change(record)
    assert {violation.invariant for violation in judge(record)} == invariants


def test_rocketmq_groups_are_judged_if_there_are_any() -> None:
    record = sample()
    record.groups = GROUPS_WITH_GUESTS
    assert {violation.text.partition(" is ")[0] for violation in judge(record)} == {f"group {PULLED}"}


def test_one_process_can_handle_a_message_twice_concurrently() -> None:
    """As after a takeover: the journal distinguishes the calls."""
    recorder = Recorder()
    for call in (1, 2):
        recorder.add("consumer-0.0", [1.0, 0.0, "got", call, "ledger", "p.1/0", "trade", 0, 7, 1])
    recorder.add("consumer-0.0", [2.0, 0.0, "done", 1])
    recorder.add("consumer-0.0", [3.0, 0.0, "refused", 2])
    assert [(each.done, each.ended) for each in recorder.record.handlings] == [(True, 2.0), (False, 3.0)]
