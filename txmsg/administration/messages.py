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
"""Who decided that a message is delivered: sender, of one that was sent plain; client; check, a check-back; person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowseStart:
    """Where to begin among the stored messages of a topic: at either an offset or a time. queue: None: in all of them.

    at: at the first message of each queue that was stored then, or later.
    """

    queue: Natural | None = None
    offset: Natural | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQuery:
    """Which messages: either of a key or of an id, in any state; or stored ones, from a place in a topic on.

    id: of a message (UUID.NUMBER) or a transaction (UUID). topic: of the place; with a key only in this one.
    """

    key: str = ""
    id: str = ""
    topic: str = ""
    place: BrowseStart | None = None
    limit: Annotated[int, NumberRange(1, 10_000)] = 100
    with_bodies: bool = False
    """And headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage:
    """A message. What does not apply to its state is None. headers and body are empty unless they were asked for.

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
    """Of a stored or dropped one."""
    segment: int | None = None
    """Of a stored one."""
    decided_by: Decider | None = None
    key: str | None = None
    tag: str | None = None
    ordering_key: str | None = None
    headers: Mapping[str, str]
    body: bytes
    is_withheld: bool = False
    """They were asked for, and left out: the caller may not read the topic."""
    body_size_bytes: int
    born_at: datetime
    """The sender's clock."""
    half_stored_at: datetime | None = None
    """None: a plain send, or not known."""
    stored_at: datetime | None = None
    """When it was committed, of a stored or scheduled one."""
    deliver_at: datetime | None = None
    """None: at once."""
    producer_group: str | None = None
    """From here on: of a half message."""
    checks: int | None = None
    next_check_at: datetime | None = None
    parked_reason: str | None = None
    """None while checks go on."""
    groups_retrying: int = 0
    """How many groups are to try it again."""
    groups_dead: int = 0
    """Of how many it is a dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage:
    """Messages: the newest first; from a place on, the first stored one first.

    more: there are others, behind the limit, or behind 16 MiB of bodies.
    """

    messages: Sequence[FoundMessage]
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuery:
    """Whose life: of the messages of either an id or a key, as in MessageQuery. limit: with a key."""

    id: str = ""
    key: str = ""
    topic: str = ""
    limit: Annotated[int, NumberRange(1, 1000)] = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeInGroup:
    """What became of a stored message in one consumer group, by the cursors as written.

    state: waiting, or in the hands of a consumer at this moment; done, acknowledged, or of a tag that the group does
    not want; retrying; dead.
    """

    group: str
    state: Literal["waiting", "done", "retrying", "dead"]
    attempts: int
    """Deliveries that failed."""
    next_attempt_at: datetime | None = None
    """Of a retry; None: when an earlier message of its ordering key is done."""
    died_at: datetime | None = None
    generation: int
    failures: Sequence[AttemptFailure]


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeInMirror:
    """Whether a mirror has a stored message, under the same topic, queue and offset. log: None before its first run."""

    mirror: str
    log: str | None = None
    is_mirrored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """An entry of a topic's journal. What does not apply to its event is None."""

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
    """Of the producer or the consumer."""
    by: str | None = None
    """The client that did it, or client, check or person of an outcome; None: not known."""
    attempt: int | None = None
    """Of a delivery or a check."""
    detail: str | None = None
    """The reason of a failure, the answer to a check."""
    until: datetime | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageJournal:
    """What a topic's journal has on a message: its first 10,000 entries. since: None: it is off."""

    since: datetime | None = None
    entries: Sequence[JournalEntry] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedMessage:
    """A message, and what is known of it."""

    message: FoundMessage
    groups: Sequence[LifeInGroup] = ()
    mirrors: Sequence[LifeInMirror] = ()
    journal: MessageJournal = MessageJournal()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTransaction:
    """A transaction of which no message is left: it was rolled back, or taken back. None: not known.

    topic, half_stored_at and producer_group: of its first message.
    """

    at: datetime
    taken_back: bool
    """It was committed, and its messages recalled, or deleted with their topic."""
    topic: str | None = None
    half_stored_at: datetime | None = None
    producer_group: str | None = None
    decided_by: Decider | None = None
    journal: MessageJournal = MessageJournal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What is known of messages, the newest first. ended: of an id without messages, as long as that is remembered."""

    messages: Sequence[TracedMessage] = ()
    ended: EndedTransaction | None = None
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """Whose bodies become unreadable: of messages (UUID.NUMBER) or transactions (UUID) of an erasable topic."""

    topic: str
    ids: Sequence[str]
    """At most 1,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedMessages:
    """What an erasure did with an id. found: messages with a key; erased: of these, those that had one until now."""

    id: str
    found: int
    erased: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """By id, in the order of the request."""

    results: Sequence[ErasedMessages]


class MessagesService:
    """The service Messages."""

    find: Final = Method("Messages/Find", MessageQuery, MessagePage)
    trace: Final = Method("Messages/Trace", TraceQuery, Trace)
    erase: Final = Method("Messages/Erase", Erasure, Erased)
    """Forgets the keys of bodies, for good. Idempotent."""
    body_keys: Final = BODY_KEYS


def place_of(start: Start, queue: int | None) -> BrowseStart:
    """Where to begin among stored messages. Raises MisuseError for `latest`, behind which nothing is stored."""
    if start.kind == "latest":
        raise MisuseError("nothing is stored behind the latest message: give earliest, an offset or a time")
    if start.kind == "time":
        return BrowseStart(queue=queue, at=datetime_of_us(start.value))
    return BrowseStart(queue=queue, offset=start.value)


def content_of(ask: AskBroker, id: str) -> FoundMessage | None:
    """A message (UUID.NUMBER) with headers and body; None if it is only a retry or dead letter any more, or gone."""
    return next(iter(ask(MessagesService.find, MessageQuery(id=id, limit=1, with_bodies=True)).messages), None)
