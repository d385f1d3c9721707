"""The settings of a broker: their entries of the catalogue. Relations between them are checked here."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from txmsg.broker.alerts.alerts_config import AlertsConfig
from txmsg.broker.delivery import DeliveryConfig
from txmsg.broker.migrate import libpq_url
from txmsg.broker.scheduler import SchedulerConfig
from txmsg.checker.loop import CheckLoopConfig
from txmsg.checker.policy import CheckPolicy
from txmsg.errors import MisuseError, shown
from txmsg.message import BODY_SIZE_BYTES_CEILING, BODY_SIZE_BYTES_MAX, QUEUES_MAX
from txmsg.settings.catalogue import COUNT_MAX, DURATION_S_MAX, SIZE_BYTES_MAX, SettingKind, check_settings, setting
from txmsg.settings.common import (
    TlsConfig,
    UserConfig,
    authentication_setting,
    http_listen_setting,
    http_token_file_setting,
    insecure_setting,
    log_format_setting,
    log_level_setting,
)
from txmsg.settings.tracing import tracing_setting
from txmsg.wire.access.limits import UserLimits
from txmsg.wire.address import check_address
from txmsg.wire.listening import loopback

_DROPS = "Messages that every group has read and that are {} go for good within a minute, a segment at a time."
_BROKER_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUserConfig(UserConfig):
    """The limits of a user at a broker, including the topics and groups that it may create."""

    topics_max: int = setting(
        0, "Topics that one user may have created. 0: no limit.", least=0, most=COUNT_MAX, live=True
    )
    groups_max: int = setting(
        0, "Consumer groups that one user may have created. 0: no limit.", least=0, most=COUNT_MAX, live=True
    )

    def limits(self) -> UserLimits:
        return replace(UserConfig.limits(self), topics=self.topics_max, groups=self.groups_max)


def new_broker_id() -> str:
    """Return an id that no other broker has."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings."""

    storage: str = setting(
        "",
        "The Notify database; run `txmsg db upgrade` first.",
        metavar="URL",
        option="--storage",
        variable="TXMSG_STORAGE",
        shown="the embedded PostgreSQL, which the broker upgrades itself",
    )
    listen: str = setting(
        f"{loopback()}:7700",
        "Address to listen on. Port 0 picks a free port.",
        metavar="HOST:PORT",
        option="--listen",
    )
    advertise: str = setting(
        "",
        "Address at which clients reach this broker, if not --listen: behind a proxy, or in a container.",
        metavar="HOST:PORT",
        option="--advertise",
        shown="--listen, with the host name in place of 0.0.0.0",
    )
    http_listen: str = http_listen_setting()
    http_token_file: Path | None = http_token_file_setting()
    tls: TlsConfig = field(default_factory=TlsConfig)
    """TLS of `listen` and `http_listen`."""
    authentication: bool = authentication_setting("(`txmsg user`, `txmsg acl`)")
    insecure: bool = insecure_setting()
    tracing: bool = tracing_setting("check-backs")
    broker_id: str = setting(
        "",
        "Name of this broker, unique in its database.",
        metavar="NAME",
        option="--id",
        made=new_broker_id,
        shown="host, process id and a random part",
    )
    storage_wait_s: float = setting(
        30.0,
        "Time to wait for the database at the start. 0 tries once.",
        least=0,
        option="--storage-wait-s",
    )
    data_dir: Path | None = setting(
        None,
        "Directory of the embedded PostgreSQL (in DIR/pg).",
        kind=SettingKind.PATH,
        option="--data-dir",
        shown="the user's data directory",
    )
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()

    first_check_s: float = setting(
        6.0,
        "Time after which a stored half message is first checked. 0 checks at once.",
        least=0,
        most=DURATION_S_MAX,
        live=True,
        option="--first-check-s",
    )
    check_interval_s: float = setting(
        30.0,
        "Time between checks of a half message; less than no_client_park_s.",
        least=0,
        most=DURATION_S_MAX,
        is_open=True,
        live=True,
        option="--check-interval-s",
    )
    checks_max: int = setting(
        15,
        "Number of checks after which a half message is parked.",
        least=1,
        most=COUNT_MAX,
        live=True,
        option="--checks-max",
    )
    check_timeout_s: float = setting(
        10.0,
        "Time that a client has to answer a check, at most 0.9 of the interval. After that the answer is UNKNOWN.",
        least=0,
        most=DURATION_S_MAX,
        is_open=True,
        live=True,
        option="--check-timeout-s",
    )
    no_client_park_s: float = setting(
        86_400.0,
        "Time after which a half message is parked if its group has no client.",
        least=0,
        most=DURATION_S_MAX,
        is_open=True,
        live=True,
        option="--no-client-park-s",
    )

    topic_auto_create: bool = setting(
        True,
        "Create unknown topics on the first send or subscription. Otherwise use `txmsg topic create`.",
        live=True,
        option="--topic-auto-create",
    )
    topic_queues: int = setting(
        4,
        "Number of queues of a new topic, unless it is set at creation.",
        least=1,
        most=QUEUES_MAX,
        live=True,
        option="--topic-queues",
    )
    body_size_bytes_max: int = setting(
        BODY_SIZE_BYTES_MAX,
        "Largest body accepted; a message is sent in one request. Use the same value for all brokers of a database.",
        least=1,
        most=BODY_SIZE_BYTES_CEILING,
        live=True,
        option="--body-size-max",
    )

    retention_s: float = setting(
        7 * 86_400.0,
        "Time to keep messages that every group has read.",
        least=0,
        most=DURATION_S_MAX,
        is_open=True,
        live=True,
        option="--retention",
        loses=_DROPS.format("older"),
    )
    retention_size_bytes: int = setting(
        100 * 1024**3,
        "Total size above which the oldest messages that every group has read are dropped. 0: unlimited.",
        least=0,
        most=SIZE_BYTES_MAX,
        live=True,
        option="--retention-size",
        loses=_DROPS.format("beyond this size"),
    )
    retention_max_s: float = setting(
        30 * 86_400.0,
        "Time to keep messages that a group has not read, in topics with unread=drop; at least the retention.",
        least=0,
        most=DURATION_S_MAX,
        is_open=True,
        live=True,
        option="--retention-max",
        loses="Messages that are older go, although a group has not read them, in topics with unread=drop.",
    )
    retention_check_s: float = setting(60.0, "Time between checks for segments to drop.", least=0, is_open=True)

    user: BrokerUserConfig = field(default_factory=BrokerUserConfig)
    """The limits of each user."""
    audit_retention_s: float = setting(
        90 * 86_400.0,
        "Time to keep entries of the audit log.",
        least=86_400,
        most=DURATION_S_MAX,
        live=True,
    )
    connections_max: int = setting(
        16_000,
        "Maximum number of connected clients; fewer if the limit of open files is lower. Further connections are "
        "closed at once.",
        least=1,
    )
    topic_refresh_s: float = setting(5.0, "Time between checks for new queues of topics.", least=0, is_open=True)
    batch_items_max: int = setting(
        4096, "Items in one call of the database function.", least=1, most=COUNT_MAX, live=True
    )
    batch_size_bytes_max: int = setting(
        8 * 1024**2,
        "Bytes of bodies in one batch; a larger message is a separate batch.",
        least=1,
        most=SIZE_BYTES_MAX,
        live=True,
    )
    waiting_items_max: int = setting(
        100_000,
        "Items that may wait for the writer. When full, requests wait, which slows their senders.",
        least=1,
        most=COUNT_MAX,
        live=True,
    )
    waiting_size_bytes_max: int = setting(
        256 * 1024**2, "Bytes that may wait for the writer.", least=1, most=SIZE_BYTES_MAX, live=True
    )
    request_timeout_s: float = setting(
        8.0,
        "Time that a request may wait for the writer and the database. Must be less than a client waits, so that the "
        "client gets the reason, Overloaded or BrokerUnavailable.",
        least=0,
        is_open=True,
    )
    lock_timeout_s: float = setting(
        5.0,
        "Time that a batch may wait for a lock in the database before it is retried.",
        least=0,
        is_open=True,
    )
    standby_wait_s: float = setting(
        5.0,
        "Time that a batch of topics with durability `replicated` may take, including the standby's confirmation; at "
        "most 0.75 request_timeout_s. After that it fails with OutcomeUnknown.",
        least=0,
        is_open=True,
    )

    outcome_memory_s: float = setting(
        600.0,
        "Minimum time for which outcomes are remembered. A broker closes a segment only after it has seen it open for "
        "this time.",
        least=0,
        most=DURATION_S_MAX,
        live=True,
    )
    segment_age_s: float = setting(
        3600.0, "Age at which a segment is closed; at least outcome_memory_s.", least=0, most=DURATION_S_MAX, live=True
    )
    segment_size_bytes: int = setting(
        4 * 1024**3,
        "Size at which a segment is closed, when older than outcome_memory_s.",
        least=1,
        most=SIZE_BYTES_MAX,
        live=True,
    )
    segment_check_s: float = setting(
        10.0, "Time between checks of the age and size of the open segment.", least=0, is_open=True
    )
    segments_max: int = setting(
        120,
        "Maximum number of segments: each costs every batch some of the server's locks. Above half of it, segments "
        "are closed later and larger; at the maximum none is closed, which is logged.",
        least=4,  # open, remembering outcomes, and two to come and go
        most=COUNT_MAX,
        live=True,
    )

    delivery: DeliveryConfig = field(default_factory=DeliveryConfig)
    """The settings of delivery."""
    check_loop: CheckLoopConfig = field(default_factory=CheckLoopConfig)
    """The pace of searching for due halves."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """The pace of searching for due delayed messages."""
    alerts: AlertsConfig = field(default_factory=AlertsConfig)
    """The rules of alerts and their receivers."""

    stop_timeout_s: float = setting(
        10.0,
        "Time that a graceful stop waits for requests in progress. The whole stop takes up to delivery.hand_over_s "
        "and 12s more; send SIGKILL only after that.",
        least=0,
        most=3600,
        live=True,
    )

    def __post_init__(self) -> None:
        # Through object, as the class is frozen. Empty until the embedded database runs.
        object.__setattr__(self, "storage", libpq_url(self.storage) if self.storage else "")
        check_address("listen", self.listen)
        self._check_identity()
        check_settings(self)
        if self.segment_age_s < self.outcome_memory_s:
            raise MisuseError(
                f"segment_age_s={self.segment_age_s} is shorter than outcome_memory_s={self.outcome_memory_s}: "
                "outcomes are remembered by the open and the previous segment, so raise segment_age_s"
            )
        if self.retention_max_s < self.retention_s:
            raise MisuseError(
                f"retention_max_s={self.retention_max_s} is shorter than retention_s={self.retention_s}: what is "
                "unread is kept longer than what is read, so raise retention_max_s"
            )
        try:
            self.check_policy()
        except ValueError as exc:
            raise MisuseError(f"check-backs cannot work with these settings: {exc}") from exc

    def _check_identity(self) -> None:
        """Raise MisuseError for invalid addresses, or an invalid broker id."""
        self.tls.check_listen(self.listen, authentication=self.authentication, insecure=self.insecure)
        self.tls.check_http_listen(self.http_listen, self.http_token_file, insecure=self.insecure)
        if self.advertise:
            check_address("advertise", self.advertise)
        if not _BROKER_ID.fullmatch(self.broker_id):
            raise MisuseError(
                f"broker_id={shown(self.broker_id)} must be 1 to 200 letters, digits, dots, dashes and underscores"
            )

    def check_policy(self) -> CheckPolicy:
        """Return the check policy of groups without their own."""
        return CheckPolicy(
            first_check_s=self.first_check_s,
            interval_s=self.check_interval_s,
            checks_max=self.checks_max,
            no_client_park_s=self.no_client_park_s,
            answer_timeout_s=min(self.check_timeout_s, self.check_interval_s * 0.9),
        )
