"""Data that a database may lose, and data it may not: the judge excuses by evidence only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.history import (
    DURABILITY,
    GROUPS,
    OTHER_SHARD,
    STORY_TOPIC,
    DatabaseContents,
    Handling,
    Loss,
    Record,
    Seek,
    Sending,
    Sent,
    Told,
)
from tests.chaos.judge import judge
from tests.chaos.losses import ASYNC_TAIL_S
from tests.chaos.sample import CLASSIC, LATE, PLAIN, sample

LOST = "p.9"
BODY = f"{LOST}/0"
DIED = 20.0
TOPIC = {durability: topic for topic, durability in DURABILITY.items() if topic != STORY_TOPIC}


def _with_lost(durability: str, *, begun: float = 9, stored: float | None = 10) -> Record:
    """Return a record with an additional acknowledged message that is nowhere."""
    record = sample()
    record.sendings[LOST] = replace(
        record.sendings[PLAIN], serial=LOST, messages=[Sent(TOPIC[durability])], begun=begun, stored_at=stored
    )
    return record


def _with_lost_half(**values: Any) -> Record:
    """Return the same with a half message in a `sync` topic."""
    record = _with_lost("sync", stored=None)
    record.sendings[LOST] = replace(record.sendings[LOST], way=record.sendings[CLASSIC].way, half_at=10, **values)
    return record


def _loss(*, is_restored: bool = False, **values: Any) -> Loss:
    return Loss("", DIED, is_restored, gone=frozenset({BODY}), changed=frozenset({LOST}), **values)


def _named(record: Record) -> set[str]:
    return {each.invariant for each in judge(record)}


@pytest.mark.parametrize(("durability", "is_excused"), [("sync", True), ("async", True), ("replicated", False)])
def test_promotion_excuses_messages_without_a_second_copy(durability: str, is_excused: bool) -> None:
    record = _with_lost(durability)
    record.losses, record.crashes = [_loss()], [DIED]
    assert _named(record) == (set() if is_excused else {"I2"})


@pytest.mark.parametrize("durability", ["sync", "async", "replicated"])
def test_restore_excuses_all_messages_after_the_backup(durability: str) -> None:
    record = _with_lost(durability)
    record.losses, record.crashes = [_loss(is_restored=True)], [DIED]
    assert _named(record) == set()


def test_unacknowledged_replicated_message_can_be_lost() -> None:
    record = _with_lost("replicated", stored=None)
    record.sendings[LOST].returned_at = None
    record.losses = [_loss()]
    record.handlings.append(Handling("ledger", BODY, (TOPIC["replicated"], 0, 9), 1, "c", 11))
    assert _named(record) == set()


@pytest.mark.parametrize("durability", ["sync", "replicated"])
def test_messages_missing_from_the_dead_server_are_not_excused(durability: str) -> None:
    record = _with_lost(durability)
    record.losses, record.crashes = [replace(_loss(), gone=frozenset())], [DIED]
    assert _named(record) == {"I2"}


@pytest.mark.parametrize(
    ("stored", "is_excused"), [(DIED - ASYNC_TAIL_S - 1, False), (DIED - 0.1, True), (DIED + 5, True)]
)
def test_crash_excuses_the_last_asynchronous_messages(stored: float, is_excused: bool) -> None:
    record = _with_lost("async", stored=stored)
    record.crashes = [DIED]
    assert _named(record) == (set() if is_excused else {"I2"})


def test_transaction_is_as_durable_as_its_most_durable_topic() -> None:
    record = _with_lost("async", stored=DIED - 0.1)
    record.sendings[LOST].messages = [Sent(TOPIC["async"]), Sent(TOPIC["sync"])]
    record.crashes = [DIED]
    assert _named(record) == {"I2"}


@pytest.mark.parametrize(("begun", "is_excused"), [(1, True), (DIED + 1, False)])
def test_crash_excuses_in_memory_messages_sent_before_it(begun: float, is_excused: bool) -> None:
    record = _with_lost("memory", begun=begun, stored=DIED + 2)
    record.crashes = [DIED]
    assert _named(record) == (set() if is_excused else {"I2"})


@pytest.mark.parametrize("durability", ["sync", "async", "replicated", "memory"])
def test_messages_sent_after_a_promotion_are_not_excused(durability: str) -> None:
    record = _with_lost(durability, begun=DIED + 1, stored=DIED + 2)
    record.losses, record.crashes = [replace(_loss(), gone=frozenset())], [DIED]
    assert _named(record) == {"I2"}


def test_lost_outcome_can_change() -> None:
    """The sender tells the other outcome too, which it should not."""
    for losses, invariants in (([Loss("", DIED, False, changed=frozenset({CLASSIC}))], set()), ([], {"I6"})):
        record = sample()
        record.sendings[CLASSIC].told.append(Told("rollback", 9, 10, "ok"))
        record.losses = losses
        assert _named(record) == invariants


@pytest.mark.parametrize(
    ("is_lost", "turns", "invariants"),
    [(True, True, set()), (True, False, {"I1", "I2"}), (False, True, {"I1", "I2", "I6"})],
)
def test_lost_commit_can_become_a_rollback_while_its_half_message_exists(
    is_lost: bool, turns: bool, invariants: set[str]
) -> None:
    """The replacement server has the half message, so the next outcome counts."""
    record = _with_lost_half(told=[Told("commit", 11, 12, "ok"), *([Told("rollback", 19, 21, "ok")] if turns else [])])
    record.committed.add(LOST)
    record.losses = [Loss("", DIED, False, changed=frozenset({LOST}))] if is_lost else []
    assert _named(record) == invariants


def test_rollback_lost_with_its_half_message_is_excused() -> None:
    """The dead server had rolled it back without an answer; its replacement does not know it."""
    for losses, invariants in (([Loss("", DIED, False, undone=frozenset({"id 9"}))], set()), ([], {"I6"})):
        record = _with_lost_half(told=[Told("rollback", 19, 21, "outcome_expired")], transaction_id="id 9")
        record.losses = losses
        assert _named(record) == invariants


def test_message_delivered_before_a_loss_can_have_another_offset_after_it() -> None:
    place = ("trade", 0, 7)
    for losses, invariants in (([_loss(places=frozenset({(f"{CLASSIC}/0", place)}))], set()), ([], {"I4"})):
        record = sample()
        record.handlings.append(Handling("grumbler", f"{CLASSIC}/0", place, 1, "c", 13, 14, done=True))
        record.losses = losses
        assert _named(record) == invariants


def test_loss_is_the_difference_of_two_servers() -> None:
    before = DatabaseContents(
        rows=frozenset({("a.1/0", ("t", 0, 0)), ("a.2/0", ("t", 0, 1)), ("a.3/0", ("t", 0, 2))}),
        halves={"a.4/0": "id 4", "a.5/0": "id 5"},
        rolled_back=frozenset({"id 6"}),
    )
    after = DatabaseContents(
        rows=frozenset({("a.1/0", ("t", 0, 0))}), halves={"a.2/0": "id 2", "a.5/0": "id 5", "a.6/0": "id 6"}
    )
    loss = Loss.of(before, after, cause="", died=DIED, is_restored=False)
    assert loss.gone == {"a.3/0", "a.4/0"}
    assert loss.changed == {"a.2", "a.3", "a.4", "a.6"}
    assert loss.undone == {"id 6"}
    assert loss.places == {("a.2/0", ("t", 0, 1)), ("a.3/0", ("t", 0, 2))}


def _sought(offset: int, *, again: bool) -> Seek:
    return Seek("ledger", ("trade", 0, offset), again, begun=50, ended=51, is_sure=True)


def _deliver_again(record: Record, offset: int) -> None:
    for row in record.rows:
        if row.topic == "trade" and row.offset >= offset:
            record.handlings.append(Handling("ledger", row.body, row.place, 1, "c", 60, 61, done=True))


def test_seek_backwards_must_redeliver_messages() -> None:
    record = sample()
    record.seeks = [_sought(2, again=False)]
    assert _named(record) == {"I3"}
    _deliver_again(record, 2)
    assert _named(record) == set()
    record.effects[f"{PLAIN}/0"] = 2
    assert _named(record) == {"I3"}, "nobody asked for it"


def test_seek_with_again_excuses_repeated_effects_only_from_its_offset() -> None:
    record = sample()
    record.seeks = [_sought(3, again=True), _sought(2, again=False)]
    _deliver_again(record, 2)
    record.effects[f"{PLAIN}/0"] = 2
    assert _named(record) == set()
    record.effects[f"{CLASSIC}/0"] = 2
    assert _named(record) == {"I3"}, "a plain seek behind one that asks for more"


def test_delayed_message_can_be_early_after_a_step_of_the_database_clock() -> None:
    record = sample()
    late = next(each for each in record.handlings if each.body == f"{LATE}/0")
    late.got_at = 101.0
    assert _named(record) == {"due"}
    record.clock = [(5.0, 10.0), (7.0, 0.0)]
    assert _named(record) == set()
    record.clock = [(0.5, 10.0), (0.7, 0.0)]
    assert _named(record) == {"due"}, "it was right again"


def test_in_memory_queue_continues_above_its_lost_offsets() -> None:
    for topic, invariants in ((TOPIC["memory"], set()), ("user", {"I4"})):
        record = sample()
        record.sendings[LOST] = Sending(LOST, record.sendings[PLAIN].way, [Sent(topic)], begun=30, stored_at=31)
        row = record.rows[0]._replace(topic=topic, queue=1, offset=2**40, transaction_id="t9", body=BODY)
        record.rows.append(row)
        record.rows.sort(key=lambda each: (each.topic, each.queue, each.offset))
        record.effects[BODY] = 1
        for group, topics in GROUPS.items():
            if topics.get(topic) == "*":
                record.handlings.append(Handling(group, BODY, row.place, 1, "c", 33, 34, done=True))
            record.cursors[group, topic, 1] = replace_passed(record, 2**40 + 1)
        assert _named(record) == invariants


def replace_passed(record: Record, next_offset: int) -> Any:
    return next(iter(record.cursors.values()))._replace(next_offset=next_offset)


def test_queue_numbers_are_per_shard() -> None:
    row = sample().rows[0]._replace(queue=OTHER_SHARD + 1)
    assert row.shown_place == (row.topic, 1, row.offset)
