"""The leases of this broker: the queues it may deliver, with their epochs. In memory; the clock is an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from txmsg.broker.cluster.clock import DatabaseClock
from txmsg.broker.store.leases import LeaseRow
from txmsg.broker.store.topics import StoredTopic
from txmsg.errors import BrokerUnavailable
from txmsg.message import QueueId


class LeaseChange(NamedTuple):
    """Changes of this broker's queues: gained, lost, and to be handed over."""

    gained: set[QueueId]
    lost: set[QueueId]
    wanted: dict[QueueId, int]
    """Epochs by queue id."""


class Leases:
    """The leases of one broker, valid until a deadline that only its heartbeats move.

    The deadline counts from before the heartbeat was sent, so it is never later than the database's.
    """

    def __init__(self, broker_id: str, ttl_s: float, monotonic: Callable[[], float]) -> None:
        self.broker_id = broker_id
        self.ttl_s = ttl_s
        self.monotonic = monotonic
        self.clock = DatabaseClock()
        """The database's clock, as heartbeats read it."""
        self.incarnation: UUID | None = None
        """The incarnation of the database that this broker has joined, and from which all that it delivers was read."""
        self._epochs: dict[QueueId, int] = {}
        self._is_member = False
        self._deadline = 0.0
        self._why = "delivery has not started yet"
        self.losses = 0
        """The number of times that all leases were lost."""
        self.version = 0
        """Rises with each change of the queues."""

    def is_held(self) -> bool:
        """Return True if this broker may deliver now."""
        return self._is_member and self.monotonic() < self._deadline

    def require(self) -> None:
        """Raise BrokerUnavailable with the reason if this broker may not deliver now."""
        if self.is_held():
            return
        why = "its leases expired while the database was away" if self._is_member else self._why
        raise BrokerUnavailable(f"broker {self.broker_id} does not deliver now: {why}; retry")

    @property
    def is_member(self) -> bool:
        """True if the leases were not lost since the last heartbeat; they may have expired."""
        return self._is_member

    def epochs(self) -> Mapping[QueueId, int]:
        """Return the epoch of each queue that this broker delivers."""
        return self._epochs

    def renew(self, asked_at: float) -> None:
        """Extend the leases: a heartbeat sent at `asked_at` has succeeded."""
        self._is_member, self._deadline = True, asked_at + self.ttl_s

    def set(self, rows: Iterable[LeaseRow]) -> LeaseChange:
        """Replace the leases. A queue with another epoch than before is both lost and gained."""
        rows = list(rows)
        before, self._epochs = self._epochs, {row.queue_id: row.epoch for row in rows}
        self.version += 1
        lost = {queue_id for queue_id, epoch in before.items() if self._epochs.get(queue_id) != epoch}
        gained = {queue_id for queue_id, epoch in self._epochs.items() if before.get(queue_id) != epoch}
        return LeaseChange(gained, lost, {row.queue_id: row.epoch for row in rows if row.wanted_by is not None})

    def give_up(self, queue_ids: Iterable[QueueId]) -> None:
        """Stop delivering these queues, before others may begin."""
        for queue_id in queue_ids:
            self._epochs.pop(queue_id, None)
        self.version += 1

    def lose(self, why: str) -> None:
        """Drop all leases: nothing is delivered until the broker has joined again."""
        self._is_member, self._why, self._epochs = False, why, {}
        self.version += 1
        self.losses += 1


class OwnQueues:
    """The writable queues of a topic that this broker delivers. Looked up once per topic and change."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._version = -1
        self._found: dict[str, tuple[StoredTopic, tuple[QueueId, ...]]] = {}

    def __call__(self, topic: StoredTopic) -> Sequence[QueueId]:
        """Return their ids; empty if there are none."""
        if self._version != self._leases.version:
            self._version = self._leases.version
            self._found.clear()
        found = self._found.get(topic.name)
        if found is None or found[0] is not topic:
            epochs = self._leases.epochs()
            own = tuple(queue_id for queue_id in topic.queue_ids[: topic.write_queues] if queue_id in epochs)
            found = self._found[topic.name] = (topic, own)
        return found[1]
