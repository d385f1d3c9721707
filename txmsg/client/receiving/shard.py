"""The state that a consumer's links to the brokers of one Notify database share."""

from __future__ import annotations

from dataclasses import dataclass, field

from txmsg.client.channel import Brokers
from txmsg.client.receiving.epochs import Epochs
from txmsg.client.receiving.queues_held import QueuesHeld


@dataclass(frozen=True, slots=True)
class Shard:
    """The brokers of a Notify database, and what is known of its queues, whatever broker told it."""

    brokers: Brokers
    queues: QueuesHeld = field(default_factory=QueuesHeld)
    epochs: Epochs = field(default_factory=Epochs)
