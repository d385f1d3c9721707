"""The life of a message, composed of the tables of a Notify database and of its topic's journal.

Asks the service Messages. `unknown` lists missing facts, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from txmsg.administration.ask import AskBroker
from txmsg.administration.dead_letters import AttemptFailure
from txmsg.administration.messages import (
    EndedTransaction,
    JournalEntry,
    LifeInGroup,
    LifeInMirror,
    MessageQuery,
    MessagesService,
    Trace,
    TracedMessage,
    TraceQuery,
    place_of,
)
from txmsg.errors import InvalidMessage, OutcomeExpired, shown
from txmsg.message import TransactionId, message_id, parse_id
from txmsg.wire.start import Start

_DECIDERS: Final = {"sender": "sender", "client": "client", "check": "check-back", "person": "operator"}
_FAILURES: Final = {"refused", "expired"}
_SAME_FAILURE: Final = timedelta(minutes=1)
"""The time by which journal and table may differ: a failure is journaled at once, and its retry written later."""
_ANY_TIME: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeEvent:
    """An event in the life of a message.

    what: half, check, parked, resumed, commit, rollback, taken back, delayed, stored, delivered, returned,
    acknowledged, refused, expired, retry, dead, redriven, purged or lost, as `JournalEntry` says. at: None if the time
    is not known.
    """

    at: datetime | None
    what: str
    group: str | None = None
    """The producer group of a half message, else the consumer group."""
    by: str | None = None
    """The client that did it; of an outcome sender, client, check-back or operator."""
    attempt: int | None = None
    detail: str | None = None
    """The reason of a failure, the answer to a check."""
    until: datetime | None = None
    """The time at which it is due, or retried."""
    count: int | None = None
    """The number of journal entries of a `lost` event."""
    journaled: bool = False
    """True if it comes from the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLife:
    """The state of a message, its history, and its progress in each group.

    id: UUID.NUMBER; only the UUID of a transaction without messages. state: half, decided, scheduled, stored, dropped,
    rolled back or taken back, as in `FoundMessage`. A field is None if it does not apply, or is unknown.
    """

    id: str
    state: str
    topic: str | None
    queue: int | None
    offset: int | None
    segment: int | None
    key: str | None
    tag: str | None
    ordering_key: str | None
    body_size_bytes: int | None
    born_at: datetime | None
    """The sender's clock."""
    half_stored_at: datetime | None
    stored_at: datetime | None
    """The time it entered its queue: that of the commit, unless it waited for its time or its ordering key. For a
    scheduled message: the time of the commit."""
    deliver_at: datetime | None
    decided_by: str | None
    """sender (it was sent plain), client, check-back or operator."""
    producer_group: str | None
    checks: int | None
    next_check_at: datetime | None
    parked_reason: str | None
    groups: Sequence[LifeInGroup]
    mirrors: Sequence[LifeInMirror]
    journal_since: datetime | None
    """The time at which its topic's journal was switched on; None: it is off."""
    events: Sequence[LifeEvent]
    """The events in order."""
    unknown: Sequence[str]
    """Missing facts and the reason, a sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLives:
    """The messages of an id or a key, the newest first. more: the limit left some out."""

    lives: Sequence[MessageLife]
    more: bool


def message_life(ask: AskBroker, which: str, *, topic: str = "", limit: int = 20) -> MessageLives:
    """Return the life of a message (UUID.NUMBER), of a transaction's messages (UUID), or of the newest with a key.

    A text in the form of an id is also tried as a key if nothing has that id. topic: of messages with a key. Raises
    OutcomeExpired if nothing is found.
    """
    if not topic and _is_id(which):
        trace = ask(MessagesService.trace, TraceQuery(id=which))
        if trace.messages or trace.ended is not None:
            return lives_of(trace, which)
    trace = ask(MessagesService.trace, TraceQuery(key=which, topic=topic, limit=limit))
    if not trace.messages:
        what = f"{shown(which)} in topic {topic}" if topic else shown(which)
        raise OutcomeExpired(
            f"{what} is unknown: it was never stored here, or its segment was dropped; messages of transactions "
            "that were rolled back are found by id only"
        )
    return lives_of(trace, which)


def _is_id(text: str) -> bool:
    try:
        parse_id(text)
    except InvalidMessage:
        return False
    return True


def messages_from(
    ask: AskBroker, topic: str, start: Start, *, queue: int | None = None, limit: int = 20
) -> MessageLives:
    """Return the stored messages of a topic, or of one queue, from `start` on, the first stored one first.

    Without their progress in groups and mirrors. start: not `latest`. Raises UnknownTopic.
    """
    found = ask(MessagesService.find, MessageQuery(topic=topic, place=place_of(start, queue), limit=limit))
    return lives_of(Trace(messages=[TracedMessage(message=each) for each in found.messages], more=found.more), "")


def lives_of(trace: Trace, id_: str) -> MessageLives:
    """Return the life of each message of a reply, or of the transaction `id_` that has none left."""
    lives = [_life_of(traced) for traced in trace.messages]
    if trace.ended is not None:
        lives.append(_life_of_ended(trace.ended, id_))
    return MessageLives(lives=lives, more=trace.more)


def _life_of(traced: TracedMessage) -> MessageLife:
    found = traced.message
    journal = [_journaled(entry) for entry in traced.journal.entries]
    halves = [event for event in journal if event.what == "half"]
    commits = [event for event in journal if event.what == "commit"]
    life = MessageLife(
        id=message_id(TransactionId(found.transaction_id), found.n),
        state=found.state,
        topic=found.topic,
        queue=found.queue,
        offset=found.offset,
        segment=found.segment,
        key=found.key,
        tag=found.tag,
        ordering_key=found.ordering_key,
        body_size_bytes=found.body_size_bytes,
        born_at=found.born_at,
        half_stored_at=found.half_stored_at or next((event.at for event in halves), None),
        stored_at=found.stored_at,
        deliver_at=found.deliver_at or next((event.until for event in commits), None),
        decided_by=_decider(found.decided_by),
        producer_group=found.producer_group or next((event.group for event in halves), None),
        checks=found.checks if found.state == "half" else None,
        next_check_at=found.next_check_at,
        parked_reason=found.parked_reason,
        groups=traced.groups,
        mirrors=traced.mirrors,
        journal_since=traced.journal.since,
        events=(),
        unknown=(),
    )
    told = _in_order([*_told_by_tables(life, journal), *journal])
    return replace(life, events=told, unknown=list(_not_known(life, journal)))


def _decider(by: str | None) -> str | None:
    return None if by is None else _DECIDERS.get(by)


def _life_of_ended(ended: EndedTransaction, id_: str) -> MessageLife:
    journal = [_journaled(entry) for entry in ended.journal.entries]
    decided_by = _decider(ended.decided_by)
    life = MessageLife(
        id=id_,
        state="taken back" if ended.taken_back else "rolled back",
        topic=ended.topic,
        queue=None,
        offset=None,
        segment=None,
        key=None,
        tag=None,
        ordering_key=None,
        body_size_bytes=None,
        born_at=None,
        half_stored_at=ended.half_stored_at,
        stored_at=None,
        deliver_at=None,
        decided_by=decided_by,
        producer_group=ended.producer_group,
        checks=None,
        next_check_at=None,
        parked_reason=None,
        groups=(),
        mirrors=(),
        journal_since=ended.journal.since,
        events=(),
        unknown=(),
    )
    told = [*_half_of(life, journal), *journal]
    what = "taken back" if ended.taken_back else "rollback"
    if what not in {event.what for event in journal}:
        told.append(LifeEvent(at=ended.at, what=what, by=None if ended.taken_back else decided_by))
    unknown = ["what the messages contained: they are dropped"]
    if not ended.taken_back and not any(event.what == "check" for event in journal):
        unknown += _without_journal(life, "when it was checked, by whom, and with which answer", life.half_stored_at)
    return replace(life, events=_in_order(told), unknown=unknown)


# ---- events


def _journaled(entry: JournalEntry) -> LifeEvent:
    return LifeEvent(
        at=entry.at,
        what=entry.event,
        group=entry.group,
        by=_decider(entry.by) if entry.event in {"commit", "rollback"} else entry.by,
        attempt=entry.attempt,
        detail=entry.detail,
        until=entry.until,
        count=entry.count,
        journaled=True,
    )


def _half_of(life: MessageLife, journal: Sequence[LifeEvent]) -> Iterator[LifeEvent]:
    if life.half_stored_at and not any(event.what == "half" for event in journal):
        yield LifeEvent(at=life.half_stored_at, what="half", group=life.producer_group)


def _told_by_tables(life: MessageLife, journal: Sequence[LifeEvent]) -> Iterator[LifeEvent]:
    """Yield the events that tables tell and the journal lacks."""
    journaled = {event.what for event in journal}
    yield from _half_of(life, journal)
    if life.parked_reason and "parked" not in journaled:
        yield LifeEvent(at=None, what="parked", detail=life.parked_reason)
    match life.state:
        case "decided" if "commit" not in journaled:
            yield LifeEvent(at=None, what="commit", by=life.decided_by)
        case "scheduled":
            if "commit" not in journaled:
                yield LifeEvent(at=life.stored_at, what="commit", by=life.decided_by)
            yield LifeEvent(at=life.stored_at, what="delayed", until=life.deliver_at)
        case "stored" | "dropped":
            yield LifeEvent(at=life.stored_at, what="stored", by=life.decided_by)
        case _:
            pass
    for group in life.groups:
        yield from _failures_of(group, journal)
        if group.died_at and not any(_is_of(event, "dead", group.group) for event in journal):
            yield LifeEvent(at=group.died_at, what="dead", group=group.group, attempt=group.attempts)


def _failures_of(group: LifeInGroup, journal: Sequence[LifeEvent]) -> Iterator[LifeEvent]:
    """Yield the failures in the table of retries or dead letters that the journal lacks."""
    known = [event for event in journal if event.what in _FAILURES and event.group == group.group]
    for failure in group.failures:
        same = next((event for event in known if _is_same(event, failure)), None)
        if same is not None:
            # Each journal entry accounts for one failure only.
            known.remove(same)
        else:
            what = "expired" if failure.is_expired else "refused"
            yield LifeEvent(at=failure.at, what=what, group=group.group, attempt=failure.attempt, detail=failure.error)


def _is_same(event: LifeEvent, failure: AttemptFailure) -> bool:
    is_near = event.at is None or failure.at is None or abs(event.at - failure.at) < _SAME_FAILURE
    return is_near and event.attempt in {None, failure.attempt}


def _is_of(event: LifeEvent, what: str, group: str) -> bool:
    return (event.what, event.group) == (what, group)


def _in_order(events: Iterable[LifeEvent]) -> list[LifeEvent]:
    """Return the events by time; those of one moment in the given order, the journal's; those without a time last."""
    return sorted(events, key=lambda event: (event.at is None, event.at or _ANY_TIME))


# ---- what is not known


def _not_known(life: MessageLife, journal: Sequence[LifeEvent]) -> Iterator[str]:
    began_at = life.half_stored_at or life.stored_at
    if life.state == "dropped":
        yield "who decided it, and what groups did that are done with it: its segment was dropped"
    if life.half_stored_at and not life.producer_group:
        yield from _without_journal(life, "which producer group sent it", began_at)
    if life.half_stored_at and not any(event.what == "check" for event in journal):
        asked = "how often it was checked, and" if life.checks is None else "when it was checked, and"
        if life.checks != 0 and life.decided_by != "client":
            yield from _without_journal(life, f"{asked} with which answers", began_at)
    if life.state in {"stored", "dropped"} and life.groups:
        yield from _without_journal(life, "each delivery and acknowledgement, and who got it", began_at)
    lost = sum(event.count or 0 for event in journal if event.what == "lost")
    if lost:
        yield f"{lost} entries of journals, perhaps of this message: brokers could not write them in time"


def _without_journal(life: MessageLife, what: str, began_at: datetime | None) -> Iterator[str]:
    """Yield a sentence that `what` is unknown, if the topic had no journal the whole time."""
    if life.topic is None:
        yield f"{what}: its topic is not known"
    elif life.journal_since is None:
        yield f"{what}: the journal is off (`txmsg topic alter {life.topic} --journal on` keeps them from then on)"
    elif began_at is not None and life.journal_since > began_at:
        yield f"{what}, before {life.journal_since.isoformat(timespec='seconds')}: the journal was off"
