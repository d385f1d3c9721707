"""The parameters and results of delivery. Knows neither the wire nor the database."""

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
    """The name of one delivery of messages of one queue; valid until the visibility timeout ends.

    token: rises with each delivery under a lease, so that an old receipt of the same message is refused. epoch: of the
    lease under which the messages were delivered. Numbers are plain: clients send them, unverified.
    """

    queue_id: int
    token: int
    epoch: int
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one queue, delivered to one consumer.

    queue: its number within the topic. receipt: for all of `rows`, in the same order. attempts: the number of
    deliveries of each to the group, including this one; None if it is the first for all. generations: how often each
    was redelivered on request; None if none was. losses: the number of consumers with which each was lost; None if none
    was.
    """

    topic: str
    queue: QueueNumber
    receipt: Receipt
    rows: Sequence[StoredRow]
    attempts: Sequence[int] | None = None
    generations: Sequence[int] | None = None
    losses: Sequence[int] | None = None


class Refusal(NamedTuple):
    """A negative acknowledgement.

    delay_s: seconds until the redelivery; None: the back-off decides. is_final: no redelivery. is_rejected: because of
    the message, not of the consumer. is_least: the back-off decides if it is longer than delay_s.
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
        """True while the member does not read the messages that were sent to it."""
        ...

    async def emptied(self) -> None:
        """Return when the member reads again, or is gone."""
        ...


class PollSequenceStep(NamedTuple):
    """One call in a sequence of calls by which a member gets messages (a line): each follows the one before.

    id: of the line. received: the token of the last messages that arrived over it, as the member says; 0: none. call:
    grows with each call.
    """

    id: int
    received: int
    call: int = 0


class MemberSubscription(NamedTuple):
    """A topic that a member of a group subscribes to, and its wanted tags (`*`, or `a || b`)."""

    topic: str
    tags: str = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """A long poll: a member of a group asks for messages."""

    group: str
    client_id: str
    subscriptions: Sequence[MemberSubscription | tuple[str, str]]
    count_max: int
    """Maximum number of messages."""
    size_bytes_max: int | None = None
    """Maximum bytes of bodies and headers; None: the limit of a reply. The first message may be larger."""
    wait_s: float
    """Seconds to wait for the first message. 0: do not wait."""
    visibility_timeout_s: float
    expiry: Expiry = Expiry.COUNTED
    """The consequence for a message that is neither settled nor renewed within the visibility timeout. COUNTED: it is
    retried after the group's back-off. EXACT: at once, because the member knows the timeout. LOST: at once, and not
    counted as an attempt: the member runs suspects alone, and says so."""
    start: Start | None = None
    """The start of the group in topics that are new to it. None: the earliest message."""
    line: PollSequenceStep | None = None
    """Given if the member says which messages it received."""
    in_runs: bool = False
    """True if it may get several messages of an ordering key at once; it processes them in order."""


class NoMessages(Enum):
    """The reason why a member gets no messages at the moment."""

    NONE_READY = "none ready"
    """No message that it wants is ready: it is woken when one may be."""
    NONE_ALLOWED = "none allowed"
    """The group is stopped or paused, its rate is used up, or the connection is full: the member retries after a
    while."""
    SUPERSEDED = "superseded"
    """A later call on its line has come: this one is over."""


@dataclass(slots=True)
class DeliveryCounts:
    """Counts of messages over all groups, since the start."""

    delivered: int = 0
    acknowledged: int = 0
    refused: int = 0
    expired: int = 0
    """Messages that were not settled within their visibility timeout."""
    late: int = 0
    """Messages that were settled too late."""
    retries: int = 0
    """Failures stored for another attempt."""
    dead_letters: int = 0


class TopicQueues(Protocol):
    """The queues of topics, as delivery needs them."""

    async def ensure(self, topic: str) -> Sequence[tuple[int, int]]:
        """Return the readable queues of a topic, as (queue id, number).

        Creates the topic if allowed, else raises UnknownTopic.
        """
        ...

    async def make_missing(self, topics: Collection[str]) -> Mapping[str, TxmsgError]:
        """Create unknown topics, if allowed. If they are too many, create none and return an error for each."""
        ...

    async def find_queues(self, topic: str) -> Sequence[tuple[int, int]]:
        """Return the readable queues of an existing topic, as (queue id, number); empty if it does not exist."""
        ...

    async def is_erasable(self, topic: str) -> bool:
        """Return True if its bodies are encrypted."""
        ...
