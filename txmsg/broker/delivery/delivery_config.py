"""Every setting of delivery, with its meaning and default; and the settings of one group."""

from __future__ import annotations

from dataclasses import dataclass, field

from txmsg.errors import MisuseError
from txmsg.runtime.backoff import Backoff
from txmsg.settings.catalogue import COUNT_MAX, DURATION_S_MAX, SIZE_BYTES_MAX, check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig:
    """The settings of delivery. Relations between fields are checked by the constructor (MisuseError)."""

    window_count_max: int = setting(
        10_000,
        "Messages read but not yet acknowledged, per group and queue. When full, reading waits.",
        least=1,
    )

    window_size_bytes_max: int = setting(
        32 * 1024 * 1024,
        "Bodies and headers held ready in memory, per group and queue. A single message may be larger.",
        least=1,
    )

    memory_size_bytes_max: int = setting(
        512 * 1024 * 1024,
        "Memory of all messages held ready, over all windows. When full, only queues with no message "
        "ready are read, a few messages at a time.",
        least=1,
        most=SIZE_BYTES_MAX,
        live=True,
    )

    read_count_max: int = setting(
        1000,
        "Messages read from a queue at a time. Reading continues when half of them are left.",
        least=1,
    )

    readers: int = setting(
        2,
        "Queues read at the same time. Each takes a connection of the pool while it reads.",
        least=1,
    )

    reply_size_bytes_max: int = setting(
        8 * 1024 * 1024,
        "Bodies and headers delivered by one receive. A single message may be larger.",
        least=1,
    )

    retry_count_max: int = setting(
        1000,
        "Retries in memory (ready or in flight) per group. The rest waits in its table.",
        least=1,
    )

    retry_poll_s: float = setting(
        0.25,
        "Time between polls for due retries.",
        least=0,
        is_open=True,
    )

    backoff: Backoff = field(default_factory=Backoff)
    """The delays of retries, and the number of retries before a message is a dead letter."""

    pause_failures: int = setting(
        200,
        "Consecutive failures after which delivery to a group (or to one of its members, if others succeed) pauses "
        "and probes with single messages. Failures before the pause become retries; messages that fail during it "
        "return to the queue.",
        least=1,
        most=COUNT_MAX,
        live=True,
    )

    pause_retries: int = setting(
        1000,
        "Number of a group's messages in retry from which on it also pauses if most, not all, of its messages fail. "
        "A group whose messages mostly succeed may have any number.",
        least=1,
        most=COUNT_MAX,
        live=True,
    )

    held_s_max: float = setting(
        12 * 3600.0,
        "Time for which a handler may hold a message, however often its client renews it.",
        least=0,
        most=DURATION_S_MAX,
        is_open=True,
        live=True,
    )

    broadcast_expires_s: float = setting(
        86_400.0,
        "Time without use after which the group of a broadcasting member (GROUP%INSTANCE) is deleted.",
        least=0,
        is_open=True,
    )

    upkeep_s: float = setting(
        60.0,
        "Time between two rounds that record which groups are used and delete unused ones.",
        least=0,
        is_open=True,
    )

    settings_s: float = setting(
        1.0,
        "Time between polls for changed settings of groups, and for ordering keys that an operator has unblocked.",
        least=0,
        is_open=True,
    )

    lease_ttl_s: float = setting(
        5.0,
        "Time without a heartbeat after which other brokers take over a broker's queues.",
        least=0,
        is_open=True,
    )

    heartbeat_s: float = setting(
        1.0,
        "Time between heartbeats. Must leave time for two attempts within lease_ttl_s.",
        least=0,
        is_open=True,
    )

    hand_over_s: float = setting(
        3.0,
        "Time that the hand-over of a queue waits for its messages in flight, also when the broker stops.",
        least=0,
        most=3600,
        is_open=True,
        live=True,
    )

    flush_s: float = setting(
        0.25,
        "Time between writes of the cursors. Acknowledgements that are not written are lost in a crash, and their "
        "messages are redelivered.",
        least=0,
        is_open=True,
    )

    expire_s: float = setting(
        0.2,
        "Time between checks for messages whose visibility timeout has ended.",
        least=0,
        is_open=True,
    )

    poll_s: float = setting(
        0.5,
        "Time between polls for messages that other brokers wrote. This broker's writes wake at once.",
        least=0,
        is_open=True,
    )

    statement_timeout_s: float = setting(
        10.0,
        "Time that one step in the database may take. After that its connection is closed.",
        least=0,
        is_open=True,
    )

    member_ttl_s: float = setting(
        600.0,
        "Time for which the tags of a silent member still belong to its group's subscription. This matters only if "
        "members of a group subscribe to different tags of a topic: messages for a silent member alone wait this "
        "long.",
        least=0,
        is_open=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        # Leases are valid for lease_ttl_s from the last heartbeat (decision 3): there must be time for a second one.
        if self.heartbeat_s * 2 >= self.lease_ttl_s:
            raise MisuseError(
                f"heartbeat_s={self.heartbeat_s} must be less than half of lease_ttl_s={self.lease_ttl_s}: "
                "one lost heartbeat would stop delivery"
            )
        if not 1 <= self.read_count_max <= self.window_count_max:
            raise MisuseError(
                f"read_count_max={self.read_count_max} must be between 1 and window_count_max={self.window_count_max}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeliverySettings:
    """The settings of one group; `txmsg group alter` writes them."""

    backoff: Backoff = field(default_factory=Backoff)
    parks_keys: bool = False
    """True if a dead letter blocks its ordering key until an operator acts."""
    deliver_rate_max: float | None = None
    """Messages per second that this broker delivers to the group; None: no limit."""
    stopped: bool = False
    """True if an operator has stopped delivery to the group."""
    version: int = 0
