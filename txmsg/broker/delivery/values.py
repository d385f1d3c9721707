"""What crosses the border between delivery and the service. Knows neither the wire nor the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txmsg.broker.store.rows import GroupLag

__all__ = ["DeliveredMessage", "GroupLag", "Receipt", "Refusal", "Subscription", "Topics"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """A message in the hand of one consumer; good until the invisible time ends.

    token: rises with each delivery under a lease, so an old receipt of the same message is refused.
    epoch: of the delivery lease under which the message was given.
    """

    queue_id: int
    offset: int
    token: int
    epoch: int


@dataclass(frozen=True, slots=True)
class DeliveredMessage:
    """One message on its way to a consumer. Times are microseconds since 1970, UTC.

    queue: its number within the topic. transaction_id: 16 bytes. headers: as stored (a packed `Headers`), or
    empty. attempt: deliveries of it to this group, this one included, from 1.
    """

    receipt: Receipt
    topic: str
    queue: int
    transaction_id: bytes
    n: int
    body: bytes
    key: str | None
    tag: str | None
    headers: bytes | None
    born_at_us: int
    stored_at_us: int
    attempt: int


class Refusal(NamedTuple):
    """A consumer could not process a message. delay_s: when to try again; None leaves it to the back-off."""

    receipt: Receipt
    error: str
    delay_s: float | None = None


class Subscription(NamedTuple):
    """What a member of a group wants: a topic, and which of its tags (`*`, or `a || b`)."""

    topic: str
    tags: str = "*"


class Topics(Protocol):
    """Where delivery learns the queues of a topic."""

    async def ensure(self, topic: str) -> Sequence[tuple[int, int]]:
        """The (queue id, number) pairs of a topic, created if unknown and that is allowed; else UnknownTopic."""
        ...
