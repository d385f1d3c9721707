"""The values that delivery takes and returns. Knows neither the wire nor the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from txmsg.broker.delivery.offsets import Expiry
from txmsg.broker.store.rows import StoredRow
from txmsg.errors import TxmsgError
from txmsg.message import QueueNumber
from txmsg.wire.start import Start


class Receipt(NamedTuple):
    """Names one delivery of messages of one queue; valid until the visibility timeout ends.

    token: rises with each delivery under a lease, so that an old receipt of the same message is refused.
    epoch: of the lease under which the messages were delivered. Numbers are plain: clients send them, unverified.
    """

    queue_id: int
    token: int
    epoch: int
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one queue, delivered to one consumer.

    queue: its number within the topic. receipt: for all of `rows`, in the same order. attempts: how often each was
    delivered to the group, including now; None if it is the first time for all. generations: how often each was
    redelivered on request; None if none was. losses: with how many consumers each was lost; None if with none.
    """

    topic: str
    queue: QueueNumber
    receipt: Receipt
    rows: Sequence[StoredRow]
    attempts: Sequence[int] | None = None
    generations: Sequence[int] | None = None
    losses: Sequence[int] | None = None


class Refusal(NamedTuple):
    """A negative acknowledgement. delay_s: when to redeliver; None: the back-off decides. is_final: never.

    is_rejected: because of the message, not of the consumer. is_least: the back-off decides if it is longer than
    delay_s.
    """

    receipt: Receipt
    error: str
    delay_s: float | None = None
    is_final: bool = False
    is_rejected: bool = False
    is_least: bool = False


class MemberConnection(Protocol):
    """The connection over which a member gets its messages."""

    @property
    def is_full(self) -> bool:
        """The member does not take what was sent to it."""
        ...

    async def emptied(self) -> None:
        """Returns when it takes more, or is gone."""
        ...


class PollSequenceStep(NamedTuple):
    """One call after the other, over which a member gets messages: a new one follows when the one before is over.

    received: the token of the last messages that came over it, as the member says; 0: none. call: grows with each call.
    """

    id: int
    received: int
    call: int = 0


class MemberSubscription(NamedTuple):
    """What a member of a group wants: a topic, and which of its tags (`*`, or `a || b`)."""

    topic: str
    tags: str = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """A long poll: a member of a group asks for messages."""

    group: str
    client_id: str
    subscriptions: Sequence[MemberSubscription | tuple[str, str]]
    count_max: int
    """How many messages it takes."""
    size_bytes_max: int | None = None
    """Of their bodies and headers; None: what a reply may have. The first message may be larger."""
    wait_s: float
    """How long it waits for the first message. 0: not at all."""
    visibility_timeout_s: float
    expiry: Expiry = Expiry.COUNTED
    """What it means that a message is neither settled nor renewed within the visibility timeout.

    COUNTED: it is retried after the group's back-off. EXACT: at once, because the member knows the timeout. LOST: at
    once, and not counted as an attempt: the member runs suspects alone, and says so.
    """
    start: Start | None = None
    """Where the group starts in topics that are new to it. None: with the earliest message."""
    line: PollSequenceStep | None = None
    """If the member says whether it got what was sent before."""
    in_runs: bool = False
    """It may get several messages of an ordering key at once, and processes them in order."""


class NoMessages(Enum):
    """Why a member gets no messages for the moment."""

    NONE_READY = "none ready"
    """No message that it wants is ready: it is woken when one may be."""
    NONE_ALLOWED = "none allowed"
    """The group is stopped or paused, its rate is used up, or the connection is full: it asks again after a while."""
    SUPERSEDED = "superseded"
    """A later call on its line has come: this one is over."""


@dataclass(slots=True)
class DeliveryCounts:
    """What delivery has done with messages since it was made, over all groups."""

    delivered: int = 0
    acknowledged: int = 0
    refused: int = 0
    expired: int = 0
    """Not settled within their visibility timeout."""
    late: int = 0
    """Settled too late."""
    retries: int = 0
    """Failures stored for another attempt."""
    dead_letters: int = 0


class TopicQueues(Protocol):
    """The queues of topics, as delivery needs them."""

    async def ensure(self, topic: str) -> Sequence[tuple[int, int]]:
        """The readable queues of a topic, as (queue id, number). Creates the topic if allowed, else UnknownTopic."""
        ...

    async def make_missing(self, topics: Collection[str]) -> Mapping[str, TxmsgError]:
        """Creates unknown topics, if allowed. If they are too many, creates none and returns an error for each."""
        ...

    async def find_queues(self, topic: str) -> Sequence[tuple[int, int]]:
        """The same for an existing topic; empty if it does not exist."""
        ...

    async def is_erasable(self, topic: str) -> bool:
        """Whether its bodies are encrypted."""
        ...
