"""The life of a message, assembled from tables and journal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from tests.methods import made
from txmsg.administration.dead_letters import AttemptFailure
from txmsg.administration.life import MessageLife, lives_of
from txmsg.administration.messages import (
    EndedTransaction,
    FoundMessage,
    JournalEntry,
    LifeInGroup,
    MessageJournal,
    Trace,
    TracedMessage,
)
from txmsg.broker.store.failures import EXPIRED, failure_of

ID = UUID("0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01")
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
Entry = partial(made, JournalEntry)


def at(after_s: float) -> datetime:
    """Return the time so many seconds after noon."""
    return NOON + timedelta(seconds=after_s)


def stored(**others: Any) -> FoundMessage:
    fields: dict[str, Any] = {
        "transaction_id": ID,
        "state": "stored",
        "topic": "orders",
        "queue": 2,
        "offset": 7,
        "segment": 1,
        "decided_by": "check",
        "born_at": NOON,
        "half_stored_at": at(0),
        "stored_at": at(9),
    }
    found: FoundMessage = made(FoundMessage, **fields | others)
    return found


def in_group(state: str = "waiting", **others: Any) -> LifeInGroup:
    life: LifeInGroup = made(LifeInGroup, group="mail", state=state, **others)
    return life


def life(
    found: FoundMessage,
    *,
    groups: Sequence[LifeInGroup] = (),
    entries: Sequence[JournalEntry] = (),
    since: datetime | None = None,
) -> MessageLife:
    traced = TracedMessage(message=found, groups=groups, journal=MessageJournal(since=since, entries=entries))
    (one,) = lives_of(Trace(messages=[traced]), str(ID)).lives
    return one


def test_without_a_journal_the_tables_give_known_events_and_the_rest_is_listed_as_unknown() -> None:
    failure = AttemptFailure(attempt=1, at=at(12), error="no route")
    group = in_group("dead", attempts=1, died_at=at(13), failures=[failure])
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


def test_a_complete_journal_leaves_nothing_unknown() -> None:
    told = life(
        stored(),
        since=at(-1),
        groups=[in_group("done")],
        entries=[
            Entry(at=at(0), event="half", group="shop"),
            Entry(at=at(8), event="check", group="shop", by="host-1", attempt=1, detail="COMMIT"),
            Entry(at=at(9), event="commit", by="check"),
            Entry(at=at(10), event="delivered", group="mail", by="c1", attempt=1),
            Entry(at=at(11), event="acknowledged", group="mail", by="c1"),
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


def test_a_journal_enabled_later_shows_since_when() -> None:
    told = life(stored(decided_by="client"), since=at(10), groups=[in_group()])
    assert told.unknown == [
        "which producer group sent it, before 2026-05-01T12:00:10+00:00: the journal was off",
        "each delivery and acknowledgement, and who got it, before 2026-05-01T12:00:10+00:00: the journal was off",
    ]


def test_a_failure_in_both_journal_and_retries_is_shown_once() -> None:
    failures = [
        AttemptFailure(attempt=1, at=at(12.5), error="before the journal"),
        AttemptFailure(attempt=2, at=at(200.5), error="later"),
    ]
    group = in_group("retrying", attempts=2, failures=failures)
    entries = [
        Entry(at=at(200), event="refused", group="mail", by="c1", attempt=2, detail="later"),
        Entry(at=at(201), event="refused", group="other", by="c2", attempt=1, detail="another group's"),
    ]
    told = life(stored(), groups=[group], entries=entries, since=at(100))
    assert [(event.detail, event.by) for event in told.events if event.what == "refused"] == [
        ("before the journal", None),
        ("later", "c1"),
        ("another group's", "c2"),
    ]


def test_an_attempt_not_settled_in_time_is_shown_as_expired() -> None:
    failures = [failure_of({"attempt": n, "error": error}) for n, error in ((1, "no route"), (2, EXPIRED))]
    told = life(stored(), groups=[in_group("retrying", failures=failures)])
    assert [(event.what, event.attempt) for event in told.events if event.group == "mail"] == [
        ("refused", 1),
        ("expired", 2),
    ]


def test_lost_journal_entries_are_shown() -> None:
    told = life(stored(), entries=[Entry(at=at(20), event="lost", count=12, by="broker-1")], since=at(-1))
    assert told.unknown == [
        "12 entries of journals, perhaps of this message: brokers could not write them in time",
    ]


def test_waiting_messages_are_shown_with_their_time() -> None:
    delayed = life(stored(state="scheduled", offset=None, deliver_at=at(3600), decided_by="client"))
    assert [(event.what, event.until) for event in delayed.events[1:]] == [
        ("commit", None),
        ("delayed", NOON + timedelta(hours=1)),
    ]
    assert delayed.offset is None
    half = life(
        stored(state="half", offset=None, decided_by=None, checks=15, parked_reason="checks used up", stored_at=None)
    )
    assert [(event.what, event.at, event.detail) for event in half.events] == [
        ("half", NOON, None),
        ("parked", None, "checks used up"),
    ]
    assert (half.decided_by, half.checks) == (None, 15)


def test_a_rolled_back_transaction_is_shown_as_far_as_it_is_remembered() -> None:
    ended = EndedTransaction(
        at=at(6), taken_back=False, topic="orders", half_stored_at=at(0), producer_group="shop", decided_by="check"
    )
    (told,) = lives_of(Trace(ended=ended), str(ID)).lives
    assert (told.state, told.decided_by, told.topic, told.offset) == ("rolled back", "check-back", "orders", None)
    assert [(event.what, event.group, event.by) for event in told.events] == [
        ("half", "shop", None),
        ("rollback", None, "check-back"),
    ]
    assert told.unknown[0] == "what the messages contained: they are dropped"
    assert told.unknown[1].startswith("when it was checked, by whom, and with which answer: the journal is off")
