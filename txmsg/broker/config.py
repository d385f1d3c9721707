"""The settings of a broker: meaning, default and special values of each; relations are checked here."""

from __future__ import annotations

import math
import os
import re
import socket
from dataclasses import dataclass, field, fields
from uuid import uuid4

from txmsg.broker.delivery import DeliveryConfig
from txmsg.broker.migrate import libpq_url
from txmsg.broker.scheduler import SchedulerConfig
from txmsg.checker.loop import CheckLoopConfig
from txmsg.checker.policy import CheckPolicy
from txmsg.errors import MisuseError, shown
from txmsg.message import BODY_SIZE_BYTES_CEILING, BODY_SIZE_BYTES_MAX, QUEUES_MAX
from txmsg.metrics.http import check_loopback
from txmsg.wire.address import check_address

_BROKER_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")


def new_broker_id() -> str:
    """An id that no other broker has."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings."""

    storage: str
    """The Notify database: postgresql://user@host:5432/database. A driver, as in postgresql+psycopg://, is ignored."""
    storage_wait_s: float = 30.0
    """How long a start waits for a database that is not available yet. Default 30. 0 tries once."""
    listen: str = "127.0.0.1:7700"
    """HOST:PORT to serve on. Port 0 takes a free one."""
    advertise: str = ""
    """HOST:PORT by which clients reach this broker, if it differs from `listen`: behind a proxy, or in a container.
    Default: `listen`, with the machine's name in place of 0.0.0.0."""
    http_listen: str = ""
    """HOST:PORT on loopback for /metrics, /livez and /readyz. Default: none are served. Port 0 takes a free one."""
    broker_id: str = field(default_factory=new_broker_id)
    """Identifies this broker process. Default: host, process id and a random part."""

    connections_max: int = 16_000
    """Clients that may be connected at once. Default 16,000; fewer if the process may not open so many files. Further
    connections are closed as soon as they are made."""

    topic_auto_create: bool = True
    """Whether sending or subscribing to an unknown topic creates it. Default true; false answers UnknownTopic."""
    topic_queues: int = 4
    """Queues of a topic created that way. Default 4."""

    body_size_bytes_max: int = BODY_SIZE_BYTES_MAX
    """The largest body that is accepted. Default 4 MiB; at most 32 MiB, so that it fits one message of the protocol."""
    topic_refresh_s: float = 5.0
    """How often to look for new queues of topics. Default 5."""

    batch_items_max: int = 4096
    """Maximum of items in one call of the database function. Default 4096."""
    batch_size_bytes_max: int = 8 * 1024 * 1024
    """Maximum bytes of bodies in one batch. Default 8 MiB; a larger message is a batch of its own."""
    waiting_items_max: int = 100_000
    """Items that may wait for the writer. Default 100,000. When full, requests wait, which slows their senders."""
    waiting_size_bytes_max: int = 256 * 1024 * 1024
    """Bytes that may wait for the writer. Default 256 MiB."""
    request_timeout_s: float = 8.0
    """How long a request may wait for the writer and the database. Default 8: less than a client waits by default, so
    that it is told the reason: Overloaded or BrokerUnavailable."""
    lock_timeout_s: float = 5.0
    """How long a batch may wait for a lock in the database before it is retried. Default 5."""

    standby_wait_s: float = 5.0
    """How long a batch of topics with durability `replicated` may take, with the wait for the standby's confirmation.
    Default 5, at most 0.75 request_timeout_s. Then OutcomeUnknown."""

    outcome_memory_s: float = 600.0
    """How long outcomes are remembered at least. Default 600. No segment closes younger than this."""
    segment_age_s: float = 3600.0
    """Age at which a segment is closed. Default 3600; at least outcome_memory_s."""
    segment_size_bytes: int = 4 * 1024**3
    """Size at which a segment is closed, when older than outcome_memory_s. Default 4 GiB."""
    segment_check_s: float = 10.0
    """How often age and size are checked. Default 10."""
    segments_max: int = 120
    """Maximum of segments kept. Default 120: each costs every batch some of the server's locks. Beyond half of it,
    segments are closed older and larger; at the maximum none is closed, and the log says so."""

    retention_s: float = 7 * 86_400.0
    """Age past which a closed segment is dropped, if every group has read it. Default 7 days."""
    retention_size_bytes: int = 100 * 1024**3
    """Total size of segments beyond which the oldest that every group has read are dropped. Default 100 GiB. 0: no
    limit."""
    retention_max_s: float = 30 * 86_400.0
    """Age at which a segment is dropped although a group has not read it, if `unread` is `drop` for all its topics;
    else it is kept, and the log says so. Default 30 days; at least retention_s."""
    retention_check_s: float = 60.0
    """How often to look for segments to drop. Default 60."""

    first_check_s: float = 6.0
    """Seconds before a half message is first checked. Default 6. 0 checks at once."""
    check_interval_s: float = 30.0
    """Seconds between two checks of the same half. Default 30."""
    checks_max: int = 15
    """Checks after which a half is parked in doubt. Default 15."""
    check_timeout_s: float = 10.0
    """How long a client may take to answer a check, at most 0.9 check_interval_s. Default 10; then it is UNKNOWN."""

    no_client_park_s: float = 86_400.0
    """Seconds that a half stays due without a client that can be asked, before it is parked. Default a day."""

    delivery: DeliveryConfig = field(default_factory=DeliveryConfig)
    """How messages are delivered."""
    check_loop: CheckLoopConfig = field(default_factory=CheckLoopConfig)
    """How often due halves are looked for."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """How often delayed messages are looked for."""

    stop_timeout_s: float = 10.0
    """How long a graceful stop may wait for requests under way. Default 10."""

    def __post_init__(self) -> None:
        # Empty until the embedded database runs.
        object.__setattr__(self, "storage", libpq_url(self.storage) if self.storage else "")
        check_address("listen", self.listen)
        self._check_identity()
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise MisuseError(f"{setting.name}={value} must be a finite number of seconds")
        if self.segment_age_s < self.outcome_memory_s:
            raise MisuseError(
                f"segment_age_s={self.segment_age_s} is shorter than outcome_memory_s={self.outcome_memory_s}: "
                "outcomes are remembered by the open and the previous segment, so raise segment_age_s"
            )
        self._check_retention()
        if not 1 <= self.body_size_bytes_max <= BODY_SIZE_BYTES_CEILING:
            raise MisuseError(
                f"body_size_bytes_max={self.body_size_bytes_max} must be between 1 and {BODY_SIZE_BYTES_CEILING}: "
                "a message travels whole in one request"
            )
        for name in ("connections_max", "topic_queues", "batch_items_max", "waiting_items_max", "checks_max"):
            if getattr(self, name) < 1:
                raise MisuseError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("storage_wait_s", "first_check_s", "stop_timeout_s", "outcome_memory_s"):
            if getattr(self, name) < 0:
                raise MisuseError(f"{name}={getattr(self, name)} must not be negative")
        for name in (
            "check_interval_s",
            "check_timeout_s",
            "request_timeout_s",
            "lock_timeout_s",
            "standby_wait_s",
            "segment_check_s",
            "retention_s",
            "retention_check_s",
            "topic_refresh_s",
        ):
            if getattr(self, name) <= 0:
                raise MisuseError(f"{name}={getattr(self, name)} must be more than 0 seconds")
        if self.topic_queues > QUEUES_MAX:
            raise MisuseError(f"topic_queues={self.topic_queues} must be at most {QUEUES_MAX}")
        try:
            self.check_policy()
        except ValueError as exc:
            raise MisuseError(f"check-backs cannot work with these settings: {exc}") from exc

    def _check_retention(self) -> None:
        if self.retention_max_s < self.retention_s:
            raise MisuseError(
                f"retention_max_s={self.retention_max_s} is shorter than retention_s={self.retention_s}: what is "
                "unread is kept longer than what is read, so raise retention_max_s"
            )
        if self.retention_size_bytes < 0:
            raise MisuseError(
                f"retention_size_bytes={self.retention_size_bytes} must not be negative: 0 means unlimited"
            )
        if self.segments_max < 4:  # open, remembering outcomes, and two to come and go
            raise MisuseError(f"segments_max={self.segments_max} must be at least 4")

    def _check_identity(self) -> None:
        """The addresses and the id by which others know this broker."""
        if self.http_listen:
            check_loopback(self.http_listen)
        if self.advertise:
            check_address("advertise", self.advertise)
        if not _BROKER_ID.fullmatch(self.broker_id):
            raise MisuseError(
                f"broker_id={shown(self.broker_id)} must be 1 to 200 letters, digits, dots, dashes and underscores"
            )

    def check_policy(self) -> CheckPolicy:
        """The check policy of groups without their own."""
        return CheckPolicy(
            first_check_s=self.first_check_s,
            interval_s=self.check_interval_s,
            checks_max=self.checks_max,
            no_client_park_s=self.no_client_park_s,
            answer_timeout_s=min(self.check_timeout_s, self.check_interval_s * 0.9),
        )
