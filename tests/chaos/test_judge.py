"""The judge itself: a record of what must be is clean, and each thing changed in it breaks the invariant it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.history import GROUPS, Handling, Passed, Record, Recorder, Row, Sending, Sent, Told, Way
from tests.chaos.judge import judge, wants

FENCED, REFUSED, CLASSIC, PLAIN = "p.1", "p.2", "p.3", "p.4"
CREATED, PAID, LATE = "p.6", "p.7", "p.8"
"""Two of one ordering key, and a delayed one."""
KEY = "order 1"


def _record() -> Record:
    """A transaction of two messages that committed, one that did not, one with a listener, and a plain send."""
    record = Record()
    common = Sent("trade")
    for sending in (
        Sending(FENCED, Way.FENCED, [common, common], begun=1, returned_at=2),
        Sending(REFUSED, Way.FENCED, [common], begun=3, failed="refused"),
        Sending(CLASSIC, Way.CLASSIC, [common], begun=5, half_at=6, told=[Told("commit", 7, 8, "ok")]),
        Sending(PLAIN, Way.PLAIN, [Sent("trade", "rare")], begun=9, stored_at=10, returned_at=10),
    ):
        record.sendings[sending.serial] = sending
    record.committed |= {FENCED, CLASSIC}
    record.rolled_back.add("t2")
    _store(record, _row(0, FENCED), _row(1, FENCED, n=1), _row(2, CLASSIC), _row(3, PLAIN, tag="rare"))
    record.sendings[CREATED] = Sending(
        CREATED, Way.CLASSIC, [Sent("story", ordering_key=KEY)], begun=1, half_at=2, told=[Told("commit", 6, 7, "ok")]
    )
    record.sendings[PAID] = Sending(PAID, Way.PLAIN, [Sent("story", ordering_key=KEY)], begun=3, stored_at=4)
    record.sendings[LATE] = Sending(LATE, Way.PLAIN, [Sent("user", delay_s=5)], begun=1, begun_at=100.0, stored_at=2)
    record.committed.add(CREATED)
    record.rows += [
        Row("story", 0, 0, 1, "t6", 0, f"{CREATED}/0", "common", KEY),
        Row("story", 0, 1, 1, "t7", 0, f"{PAID}/0", "common", KEY),
        Row("user", 0, 0, 1, "t8", 0, f"{LATE}/0", "common"),
    ]
    got = {f"{PAID}/0": 13.0}
    for row in record.rows:
        for group in GROUPS:
            if wants(group, row):
                at = got.get(row.body, 11)
                record.handlings.append(Handling(group, row.body, row.place, 1, "c", at, at + 1, True, got_at=106.0))
        record.effects[row.body] = 1
    for group in GROUPS:
        record.cursors |= {(group, "trade", 0): Passed(4, 0), (group, "story", 0): Passed(2, 0)}
        record.cursors[group, "user", 0] = Passed(1, 0)
    return record


def _row(offset: int, serial: str, *, n: int = 0, tag: str = "common", segment: int = 1) -> Row:
    return Row("trade", 0, offset, segment, f"t{serial[-1]}", n, f"{serial}/{n}", tag)


def _store(record: Record, *rows: Row) -> None:
    """These stand in the first queue of trade."""
    record.rows[:] = [*rows, *(row for row in record.rows if row.topic != "trade")]


def _trade(record: Record) -> list[Row]:
    return [row for row in record.rows if row.topic == "trade"]


def _show_in_place(record: Record) -> None:
    """Handlers were shown each message where it stands."""
    places = {row.body: row.place for row in record.rows}
    for each in record.handlings:
        each.place = places[each.body]


def _undo(record: Record, group: str, body: str) -> None:
    record.handlings[:] = [each for each in record.handlings if (each.group, each.body) != (group, body)]


def test_what_must_be_is_clean() -> None:
    assert judge(_record()) == []


def _a_second_delivery(record: Record) -> None:
    record.handlings.append(Handling("grumbler", f"{PLAIN}/0", ("trade", 0, 3), 2, "c", 13))


def _a_dead_letter(record: Record) -> None:
    _undo(record, "grumbler", f"{PLAIN}/0")
    record.dead.add(("grumbler", "trade", 0, 3))


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
        _an_unknown_answer_of_what_was_stored,
        _a_conflict_refused,
        _forgotten_at_last,
    ],
)
def test_what_may_be_is_clean(change: Callable[[Record], None]) -> None:
    record = _record()
    change(record)
    assert judge(record) == []


def _tell(record: Record, serial: str, state: str, reply: str) -> None:
    record.sendings[serial].told.append(Told(state, 9, 10, reply))


def _drop(record: Record, offset: int) -> None:
    """A message that never came to be: those behind it stand one further in front, and nobody handled it."""
    [gone] = [row for row in _trade(record) if row.offset == offset]
    _store(
        record, *(row._replace(offset=row.offset - (row.offset > offset)) for row in _trade(record) if row is not gone)
    )
    record.handlings[:] = [each for each in record.handlings if each.body != gone.body]
    _show_in_place(record)
    del record.effects[gone.body]
    for group in GROUPS:
        record.cursors[group, "trade", 0] = Passed(3, 0)


def _swap_last_two(record: Record) -> None:
    rows = [*_trade(record)[:2], record.rows[3]._replace(offset=2), record.rows[2]._replace(offset=3)]
    _store(record, *rows)
    _show_in_place(record)


def _add(record: Record, row: Row) -> None:
    """A row behind the others of its queue, which all groups have handled."""
    record.rows.insert(4, row)
    record.effects[row.body] = 1
    for group in GROUPS:
        record.handlings.append(Handling(group, row.body, row.place, 1, "c", 13, 14, done=True))
        record.cursors[group, "trade", 0] = Passed(row.offset + 1, 0)


def _fail_surely(record: Record) -> None:
    record.sendings[PLAIN].stored_at, record.sendings[PLAIN].failed = None, "broker_unavailable"


def _leave_a_gap(record: Record) -> None:
    record.sendings["p.5"] = Sending("p.5", Way.PLAIN, [Sent("trade")], begun=15)
    _add(record, _row(5, "p.5"))


def _handling(record: Record, serial: str) -> Handling:
    return next(each for each in record.handlings if each.body == f"{serial}/0" and each.group == "grumbler")


def _swap_story(record: Record) -> None:
    """The log has them the wrong way round, and so they were handled."""
    created, paid = record.rows[4:6]
    record.rows[4:6] = [paid._replace(offset=0), created._replace(offset=1)]
    for each in record.handlings:
        if each.body == created.body:
            each.got, each.ended = 15, 16
    _show_in_place(record)


def _split_story(record: Record) -> None:
    record.rows[5] = record.rows[5]._replace(queue=1, offset=0)
    for group in GROUPS:
        record.cursors[group, "story", 0] = record.cursors[group, "story", 1] = Passed(1, 0)
    _show_in_place(record)


WRONG: dict[str, tuple[set[str], Callable[[Record], object]]] = {
    "a committed message is lost": ({"I1"}, lambda r: _drop(r, 1)),
    "a phantom": ({"I1"}, lambda r: r.committed.discard(FENCED)),
    "a message of nobody": ({"I1"}, lambda r: _add(r, _row(4, "p.9"))),
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
    "a copy": ({"I4"}, lambda r: _add(r, _row(4, PLAIN))),
    "a later one comes first": ({"I4"}, _swap_last_two),
    "a transaction backwards": (
        {"I4"},
        lambda r: _store(r, r.rows[1]._replace(offset=0), r.rows[0]._replace(offset=1), *_trade(r)[2:]),
    ),
    "an older segment behind": ({"I4"}, lambda r: _store(r, r.rows[0]._replace(segment=2), *_trade(r)[1:])),
    "delivered from elsewhere": ({"I4"}, lambda r: setattr(r.handlings[0], "place", ("trade", 0, 3))),
    "paid before created in the log": ({"I5"}, _swap_story),
    "a key in two queues": ({"I5"}, _split_story),
    "another key than was sent": (
        {"I5"},
        lambda r: r.sendings.update({PAID: replace(r.sendings[PAID], messages=[Sent("story", ordering_key="2")])}),
    ),
    "got paid before created was done": ({"I5"}, lambda r: setattr(_handling(r, CREATED), "ended", 13.5)),
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
    "a group that stands still": ({"I8"}, lambda r: r.cursors.update({("sleeper", "trade", 0): Passed(3, 0)})),
    "a group past the end": ({"I8"}, lambda r: r.cursors.update({("sleeper", "trade", 0): Passed(5, 0)})),
    "a retry for ever": ({"I8"}, lambda r: r.retrying.add(("grumbler", "trade", 0, 3))),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_must_not_be_breaks_its_invariant(what: str) -> None:
    invariants, change = WRONG[what]
    record = _record()
    change(record)
    assert {violation.invariant for violation in judge(record)} == invariants


def test_a_message_may_be_handled_twice_at_the_same_time_by_one_process() -> None:
    """As after a takeover: the journal tells the calls apart."""
    recorder = Recorder()
    for call in (1, 2):
        recorder.add("consumer-0.0", [1.0, 0.0, "got", call, "ledger", "p.1/0", "trade", 0, 7, 1])
    recorder.add("consumer-0.0", [2.0, 0.0, "done", 1])
    recorder.add("consumer-0.0", [3.0, 0.0, "refused", 2])
    assert [(each.done, each.ended) for each in recorder.record.handlings] == [(True, 2.0), (False, 3.0)]
