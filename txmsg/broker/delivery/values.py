"""What crosses the border between delivery and the service. Knows neither the wire nor the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txmsg.broker.store.rows import GroupLag, Row
from txmsg.errors import UnknownTopic

__all__ = ["GroupLag", "Handout", "Receipt", "Refusal", "Start", "Subscription", "Topics"]


class Receipt(NamedTuple):
    """Messages of one queue in the hand of one consumer; good until the visibility timeout ends.

    token: rises with each delivery under a lease, so an old receipt of the same message is refused.
    epoch: of the delivery lease under which the messages were given.
    """

    queue_id: int
    token: int
    epoch: int
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Handout:
    """Messages of one queue on their way to one consumer.

    queue: its number within the topic. receipt: for all of `rows`, in their order. attempts: deliveries of each to
    this group, this one included; None when it is the first of all. generations: how often each was redelivered on
    request; None when none was.
    """

    topic: str
    queue: int
    receipt: Receipt
    rows: Sequence[Row]
    attempts: Sequence[int] | None = None
    generations: Sequence[int] | None = None


class Refusal(NamedTuple):
    """A consumer could not process these messages. delay_s: when to try again; None leaves it to the back-off."""

    receipt: Receipt
    error: str
    delay_s: float | None = None


class Subscription(NamedTuple):
    """What a member of a group wants: a topic, and which of its tags (`*`, or `a || b`)."""

    topic: str
    tags: str = "*"


class Start(NamedTuple):
    """Where a group begins that is new to a topic: at the first message stored at a time, in us since 1970, or later;
    None: after all that there are. The earliest message kept is where it begins without a Start."""

    at_us: int | None = None


class Topics(Protocol):
    """Where delivery learns the queues of a topic."""

    async def ensure(self, topic: str) -> Sequence[tuple[int, int]]:
        """The (queue id, number) pairs of a topic that may be read. It is created if unknown and that is allowed; else
        UnknownTopic."""
        ...

    async def make_missing(self, topics: Collection[str]) -> Mapping[str, UnknownTopic]:
        """Creates those that are unknown, if that is allowed. None when they are too many: then one error for each."""
        ...

    async def find(self, topic: str) -> Sequence[tuple[int, int]]:
        """The same of a topic that is there; nothing of one that is not."""
        ...
