"""Single messages of a Notify database, found and traced, and erased bodies, by the service Messages of any broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias
from uuid import UUID

from txmsg.administration.ask import AskBroker
from txmsg.administration.dead_letters import AttemptFailure
from txmsg.errors import MisuseError
from txmsg.message import datetime_of_us
from txmsg.wire.body_keys_query import BODY_KEYS
from txmsg.wire.method import Method
from txmsg.wire.start import Start
from txmsg.wire.values import Natural, NumberRange

Decider: TypeAlias = Literal["sender", "client", "check", "person"]
"""The decider of a delivery: sender, for a plain message; client; check, a check-back; person, an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowseStart:
    """A position among the stored messages of a topic: an offset or a time. queue None: in all queues.

    at: the first message of each queue that was stored at this time or later.
    """

    queue: Natural | None = None
    offset: Natural | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQuery:
    """A query of messages: of a key or an id, in any state; or of stored ones, from a position in a topic on.

    id: of a message (UUID.NUMBER) or a transaction (UUID). topic: of the position; with a key, only in this one.
    """

    key: str = ""
    id: str = ""
    topic: str = ""
    place: BrowseStart | None = None
    limit: Annotated[int, NumberRange(1, 10_000)] = 100
    with_bodies: bool = False
    """True: with headers and bodies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage:
    """A message. Fields that do not apply to its state are None. headers and body are empty unless asked for.

    state: half, it waits for the outcome of its transaction; decided, it is committed and waits for an earlier half
    message of its ordering key; scheduled, it is committed and waits for its time; stored, in its queue; dropped, gone
    with its segment, so that it is left as a retry or a dead letter.
    """

    transaction_id: UUID
    n: int
    state: Literal["half", "decided", "scheduled", "stored", "dropped"]
    topic: str
    queue: int
    offset: int | None = None
    """The offset of a stored or dropped message."""
    segment: int | None = None
    """The segment of a stored message."""
    decided_by: Decider | None = None
    key: str | None = None
    tag: str | None = None
    ordering_key: str | None = None
    headers: Mapping[str, str]
    body: bytes
    is_withheld: bool = False
    """True if headers and body were asked for and left out, because the caller may not read the topic."""
    body_size_bytes: int
    born_at: datetime
    """The time of sending, by the sender's clock."""
    half_stored_at: datetime | None = None
    """The time of storing the half message; None: a plain send, or unknown."""
    stored_at: datetime | None = None
    """The time of the commit of a stored or scheduled message."""
    deliver_at: datetime | None = None
    """The due time; None: at once."""
    producer_group: str | None = None
    """This and the three following fields are of a half message."""
    checks: int | None = None
    next_check_at: datetime | None = None
    parked_reason: str | None = None
    """The reason for parking; None while checks continue."""
    groups_retrying: int = 0
    """The number of groups with a retry of it."""
    groups_dead: int = 0
    """The number of groups in which it is a dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage:
    """Messages, the newest first; from a position on, the first stored one first.

    more: the limit, or 16 MiB of bodies, left some out.
    """

    messages: Sequence[FoundMessage]
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuery:
    """A query of the lives of messages, by an id or a key as in MessageQuery. limit: with a key."""

    id: str = ""
    key: str = ""
    topic: str = ""
    limit: Annotated[int, NumberRange(1, 1000)] = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeInGroup:
    """The state of a stored message in one consumer group, by the written cursors.

    state: waiting: not delivered yet, or being handled; done: acknowledged, or its tag is not subscribed to; retrying;
    dead.
    """

    group: str
    state: Literal["waiting", "done", "retrying", "dead"]
    attempts: int
    """The number of failed deliveries."""
    next_attempt_at: datetime | None = None
    """The due time of a retry; None: after an earlier message of its ordering key is done."""
    died_at: datetime | None = None
    generation: int
    failures: Sequence[AttemptFailure]


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeInMirror:
    """The state of a stored message in a mirror, under the same topic, queue and offset.

    log: None before its first run.
    """

    mirror: str
    log: str | None = None
    is_mirrored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """An entry of a topic's journal. Fields that do not apply to its event are None."""

    seq: int
    """Orders entries of one moment."""
    at: datetime
    event: Literal[
        "half",  # a half message was stored
        "check",  # a client was asked; detail: its answer, or why there is none
        "parked",  # checks have ended in doubt
        "resumed",  # an operator had checks go on
        "commit",  # until: when it is due, if it is delayed
        "rollback",
        "delivered",  # sent to a consumer
        "returned",  # the consumer did not get it, or its group is paused: it does not count as an attempt
        "acknowledged",
        "refused",
        "expired",  # not settled within its visibility timeout
        "retry",  # until: when it is delivered again
        "dead",  # a dead letter from now on
        "redriven",
        "purged",
        "lost",  # entries of any message that a broker could not write; count: how many
    ]
    group: str | None = None
    """The group of the producer or the consumer."""
    by: str | None = None
    """The client that did it, or client, check or person of an outcome; None: unknown."""
    attempt: int | None = None
    """The number of a delivery or a check."""
    detail: str | None = None
    """The reason of a failure, the answer to a check."""
    until: datetime | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageJournal:
    """A topic's journal of a message: its first 10,000 entries. since None: the journal is off."""

    since: datetime | None = None
    entries: Sequence[JournalEntry] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedMessage:
    """A message, and its state in groups, mirrors and the journal."""

    message: FoundMessage
    groups: Sequence[LifeInGroup] = ()
    mirrors: Sequence[LifeInMirror] = ()
    journal: MessageJournal = MessageJournal()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTransaction:
    """A transaction without remaining messages: it was rolled back, or taken back. None: unknown.

    topic, half_stored_at and producer_group: of its first message.
    """

    at: datetime
    taken_back: bool
    """True if it was committed, and its messages recalled, or deleted with their topic."""
    topic: str | None = None
    half_stored_at: datetime | None = None
    producer_group: str | None = None
    decided_by: Decider | None = None
    journal: MessageJournal = MessageJournal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Lives of messages, the newest first. ended: the transaction of an id without messages, while remembered."""

    messages: Sequence[TracedMessage] = ()
    ended: EndedTransaction | None = None
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """An erasure of bodies of messages (UUID.NUMBER) or transactions (UUID) of an erasable topic."""

    topic: str
    ids: Sequence[str]
    """The ids, at most 1,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedMessages:
    """The result of an erasure for an id.

    found: its messages with a key, also a deleted one; erased: those whose key this call deleted.
    """

    id: str
    found: int
    erased: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """The results of an erasure, in the order of the request."""

    results: Sequence[ErasedMessages]


class MessagesService:
    """The service Messages."""

    find: Final = Method("Messages/Find", MessageQuery, MessagePage)
    trace: Final = Method("Messages/Trace", TraceQuery, Trace)
    erase: Final = Method("Messages/Erase", Erasure, Erased)
    """Delete the keys of bodies, for good. Idempotent."""
    body_keys: Final = BODY_KEYS


def place_of(start: Start, queue: int | None) -> BrowseStart:
    """Return a position among stored messages. Raises MisuseError for `latest`, behind which nothing is stored."""
    if start.kind == "latest":
        raise MisuseError("nothing is stored behind the latest message: give earliest, an offset or a time")
    if start.kind == "time":
        return BrowseStart(queue=queue, at=datetime_of_us(start.value))
    return BrowseStart(queue=queue, offset=start.value)


def content_of(ask: AskBroker, id: str) -> FoundMessage | None:
    """Return a message (UUID.NUMBER) with headers and body; None if it is gone, or only a retry or dead letter."""
    return next(iter(ask(MessagesService.find, MessageQuery(id=id, limit=1, with_bodies=True)).messages), None)
