"""Every setting of delivery, with its meaning and default; and the settings of one group."""

from __future__ import annotations

from dataclasses import dataclass, field

from txmsg.runtime.backoff import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig:
    """How messages are delivered. Relations between fields are checked when it is made (ValueError)."""

    window_count_max: int = 10_000
    """Messages read but not yet acknowledged, per group and queue. Default 10,000. When full, reading waits."""

    window_size_bytes_max: int = 32 * 1024 * 1024
    """Bodies and headers held ready in memory, per group and queue. Default 32 MiB. A message alone may be larger."""

    memory_size_bytes_max: int = 512 * 1024 * 1024
    """Memory of all messages held ready, over all windows. Default 512 MiB. When full, only queues with no message
    ready are read, a few messages at a time."""

    read_count_max: int = 1000
    """Messages read from a queue at a time. Default 1000. Reading goes on when half of it is left."""

    readers: int = 2
    """Queues read at the same time. Default 2. Each takes a connection of the pool while it reads."""

    reply_size_bytes_max: int = 8 * 1024 * 1024
    """Bodies and headers delivered by one receive. Default 8 MiB; a message alone may be larger."""

    retry_count_max: int = 1000
    """Retries in memory (ready or in flight) per group. Default 1000. The rest waits in its table."""

    retry_poll_s: float = 0.25
    """Seconds between polls for due retries. Default 0.25."""

    backoff: Backoff = field(default_factory=Backoff)
    """When a failed message is tried again, and how often before it is a dead letter."""

    pause_failures: int = 200
    """Failures in a row after which delivery to a group (or to one of its members, when others succeed) pauses and
    probes with single messages. Default 200. Failures before the pause become retries; what fails during it returns to
    the queue."""

    pause_retries: int = 1000
    """Messages of a group in `retry` from which on it also pauses when most, not all, of its messages fail.
    Default 1000. A group whose messages mostly succeed may have any number."""

    held_s_max: float = 12 * 3600.0
    """Seconds for which a handler may hold a message, however often its client renews it. Default 12 h."""

    broadcast_expires_s: float = 86_400.0
    """Seconds without use after which the group of a broadcasting member (GROUP%INSTANCE) is deleted. Default a day."""

    upkeep_s: float = 60.0
    """Seconds between two rounds that record which groups are used and delete unused ones. Default 60."""

    settings_s: float = 1.0
    """Seconds between polls for changed settings of groups, and for ordering keys that an operator has unblocked.
    Default 1."""

    lease_ttl_s: float = 5.0
    """Seconds without a heartbeat after which other brokers take over a broker's queues. Default 5."""

    heartbeat_s: float = 1.0
    """Seconds between heartbeats. Default 1. Must leave time for two attempts within lease_ttl_s."""

    hand_over_s: float = 3.0
    """Seconds for which the handover of a queue waits for its messages in flight. Default 3."""

    flush_s: float = 0.25
    """Seconds between writes of the cursors. Default 0.25. Acknowledgements not written at a crash are lost: their
    messages are redelivered."""

    expire_s: float = 0.2
    """Seconds between checks for messages whose visibility timeout has ended. Default 0.2."""

    poll_s: float = 0.5
    """Seconds between polls for messages that other brokers wrote. Default 0.5; this broker's writes wake at once."""

    statement_timeout_s: float = 10.0
    """Seconds one step in the database may take. Default 10. Then its connection is cut."""

    member_ttl_s: float = 600.0
    """Seconds for which the tags of a silent member still count as wanted by its group. Default 600.

    Matters only when members of a group want different tags of a topic: messages that only a silent member wants wait
    this long.
    """

    def __post_init__(self) -> None:
        if self.heartbeat_s * 2 >= self.lease_ttl_s:
            raise ValueError(
                f"heartbeat_s={self.heartbeat_s} must be less than half of lease_ttl_s={self.lease_ttl_s}: "
                "one lost heartbeat would stop delivery"
            )
        if not 1 <= self.read_count_max <= self.window_count_max:
            raise ValueError(
                f"read_count_max={self.read_count_max} must be between 1 and window_count_max={self.window_count_max}"
            )
        for name in ("pause_failures", "pause_retries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.readers < 1:
            raise ValueError(f"readers={self.readers} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The settings of one group; `txmsg group alter` writes them."""

    backoff: Backoff = field(default_factory=Backoff)
    parks_keys: bool = False
    """Whether a dead letter blocks its ordering key until an operator acts."""
    deliver_rate_max: float | None = None
    """Messages per second that this broker delivers to the group; None: no limit."""
    version: int = 0
