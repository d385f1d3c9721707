"""The life of a message, put together from tables and journal."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from txmsg.administration.life import MessageLife, lives_of
from txmsg.broker.api.withheld import failure_of
from txmsg.broker.delivery.window import EXPIRED
from txmsg.message import us_of_datetime
from txmsg.wire.v1 import dead_letters_pb2
from txmsg.wire.v1 import messages_pb2 as pb

ID = UUID("0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01")
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
Found = pb.FoundMessage
Entry = pb.JournalEntry


def us(after_s: float) -> int:
    """Microseconds since 1970 of a moment so long after noon."""
    return us_of_datetime(NOON + timedelta(seconds=after_s))


def stored(**others: Any) -> pb.FoundMessage:
    fields: dict[str, Any] = {
        "transaction_id": ID.bytes,
        "state": Found.STORED,
        "topic": "orders",
        "queue": 2,
        "offset": 7,
        "segment": 1,
        "decided_by": Found.CHECK,
        "half_stored_at_us": us(0),
        "stored_at_us": us(9),
    }
    return pb.FoundMessage(**(fields | others))


def life(
    found: pb.FoundMessage,
    *,
    groups: Iterable[pb.GroupTrace] = (),
    entries: Iterable[pb.JournalEntry] = (),
    since_us: int = 0,
) -> MessageLife:
    journal = pb.Journal(since_us=since_us, entries=entries)
    reply = pb.TraceReply(messages=[pb.TracedMessage(message=found, groups=groups, journal=journal)])
    (one,) = lives_of(reply, str(ID)).lives
    return one


def test_without_a_journal_tables_tell_what_they_keep_and_the_rest_is_said_to_be_unknown() -> None:
    failure = dead_letters_pb2.Failure(attempt=1, at_us=us(12), error="no route")
    group = pb.GroupTrace(group="mail", state=pb.GroupTrace.DEAD, attempts=1, died_at_us=us(13), failures=[failure])
    told = life(stored(), groups=[group])
    assert [(event.what, event.group, event.by) for event in told.events] == [
        ("half", None, None),
        ("stored", None, "check-back"),
        ("refused", "mail", None),
        ("dead", "mail", None),
    ]
    assert [event.at for event in told.events] == [NOON + timedelta(seconds=s) for s in (0, 9, 12, 13)]
    assert not any(event.journaled for event in told.events)
    assert [each.partition(":")[0] for each in told.unknown] == [
        "which producer group sent it",
        "how often it was checked, and with which answers",
        "each delivery and acknowledgement, and who got it",
    ]
    assert all("`txmsg topic alter orders --journal on`" in each for each in told.unknown)


def test_a_journal_on_all_the_time_leaves_nothing_unknown() -> None:
    told = life(
        stored(),
        since_us=us(-1),
        groups=[pb.GroupTrace(group="mail", state=pb.GroupTrace.DONE)],
        entries=[
            Entry(at_us=us(0), event=Entry.HALF, group="shop"),
            Entry(at_us=us(8), event=Entry.CHECK, group="shop", by="host-1", attempt=1, detail="COMMIT"),
            Entry(at_us=us(9), event=Entry.COMMIT, by="check"),
            Entry(at_us=us(10), event=Entry.DELIVERED, group="mail", by="c1", attempt=1),
            Entry(at_us=us(11), event=Entry.ACKNOWLEDGED, group="mail", by="c1"),
        ],
    )
    assert [(event.what, event.by) for event in told.events] == [
        ("half", None),
        ("check", "host-1"),
        ("stored", "check-back"),
        ("commit", "check-back"),
        ("delivered", "c1"),
        ("acknowledged", "c1"),
    ]
    assert (told.producer_group, told.unknown) == ("shop", [])


def test_a_journal_that_was_switched_on_later_tells_from_when() -> None:
    told = life(stored(decided_by=Found.CLIENT), since_us=us(10), groups=[pb.GroupTrace(group="mail")])
    assert told.unknown == [
        "which producer group sent it, before 2026-05-01T12:00:10+00:00: the journal was off",
        "each delivery and acknowledgement, and who got it, before 2026-05-01T12:00:10+00:00: the journal was off",
    ]


def test_a_failure_in_the_journal_and_among_the_retries_is_told_once() -> None:
    failures = [
        dead_letters_pb2.Failure(attempt=1, at_us=us(12.5), error="before the journal"),
        dead_letters_pb2.Failure(attempt=2, at_us=us(200.5), error="later"),
    ]
    group = pb.GroupTrace(group="mail", state=pb.GroupTrace.RETRYING, attempts=2, failures=failures)
    entries = [
        Entry(at_us=us(200), event=Entry.REFUSED, group="mail", by="c1", attempt=2, detail="later"),
        Entry(at_us=us(201), event=Entry.REFUSED, group="other", by="c2", attempt=1, detail="another group's"),
    ]
    told = life(stored(), groups=[group], entries=entries, since_us=us(100))
    assert [(event.detail, event.by) for event in told.events if event.what == "refused"] == [
        ("before the journal", None),
        ("later", "c1"),
        ("another group's", "c2"),
    ]


def test_an_attempt_that_was_not_settled_in_time_has_expired_and_was_not_refused() -> None:
    failures = [failure_of("t", {"attempt": n, "error": error}) for n, error in ((1, "no route"), (2, EXPIRED))]
    told = life(stored(), groups=[pb.GroupTrace(group="mail", state=pb.GroupTrace.RETRYING, failures=failures)])
    assert [(event.what, event.attempt) for event in told.events if event.group == "mail"] == [
        ("refused", 1),
        ("expired", 2),
    ]


def test_entries_that_were_lost_are_told() -> None:
    told = life(stored(), entries=[Entry(at_us=us(20), event=Entry.LOST, count=12, by="broker-1")], since_us=us(-1))
    assert told.unknown == [
        "12 entries of journals, perhaps of this message: brokers could not write them in time",
    ]


def test_what_waits_is_told_with_its_time() -> None:
    delayed = life(stored(state=Found.SCHEDULED, deliver_at_us=us(3600), decided_by=Found.CLIENT))
    assert [(event.what, event.until) for event in delayed.events[1:]] == [
        ("commit", None),
        ("delayed", NOON + timedelta(hours=1)),
    ]
    assert delayed.offset is None
    half = life(
        stored(state=Found.HALF, decided_by=Found.UNDECIDED, checks=15, parked_reason="checks used up", stored_at_us=0)
    )
    assert [(event.what, event.at, event.detail) for event in half.events] == [
        ("half", NOON, None),
        ("parked", None, "checks used up"),
    ]
    assert (half.decided_by, half.checks) == (None, 15)


def test_of_a_rolled_back_transaction_what_is_remembered_is_told() -> None:
    ended = pb.EndedTransaction(
        at_us=us(6), topic="orders", half_stored_at_us=us(0), producer_group="shop", decided_by=Found.CHECK
    )
    (told,) = lives_of(pb.TraceReply(ended=ended), str(ID)).lives
    assert (told.state, told.decided_by, told.topic, told.offset) == ("rolled back", "check-back", "orders", None)
    assert [(event.what, event.group, event.by) for event in told.events] == [
        ("half", "shop", None),
        ("rollback", None, "check-back"),
    ]
    assert told.unknown[0] == "what the messages contained: they are dropped"
    assert told.unknown[1].startswith("when it was checked, by whom, and with which answer: the journal is off")
