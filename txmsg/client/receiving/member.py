"""The properties that all links of a consumer share."""

from __future__ import annotations

from dataclasses import dataclass, field

from txmsg.consumer.counts import ConsumerCounts
from txmsg.wire.v1.txmsg_pb2 import Subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member of a consumer group, as it introduces itself to each broker. counts: of all its links together."""

    group: str
    client_id: str
    subscriptions: tuple[Subscription, ...]
    start: str = ""
    counts: ConsumerCounts = field(default_factory=ConsumerCounts)
