"""The brokers of a Notify database and their figures, by the service Cluster of any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from txmsg.administration.ask import Nothing
from txmsg.metrics.figures import Labels
from txmsg.wire.method import Method
from txmsg.wire.values import NumberRange

Series = Mapping[tuple[str, Labels], float]
"""Values by the name of a metric and the values of its labels, in the order of the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowCluster:
    """A query of the cluster's state. with_queues: with the broker that delivers each queue."""

    with_queues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSummary:
    """A broker. queues: the number that it delivers. schema_revision: the newest that it knows."""

    id: str
    address: str
    state: Literal["active", "draining", "dead"]
    queues: int
    release: str
    schema_revision: str
    started_at: datetime
    heartbeat_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLease:
    """The lease of a queue. broker: delivers it; None: none does. wanted_by: the broker that takes it over."""

    topic: str
    queue: int
    broker: str | None = None
    epoch: int
    wanted_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The brokers of a Notify database by id, dead ones for a day. schema_revision: of the database."""

    shard: UUID
    schema_revision: str
    brokers: Sequence[BrokerSummary]
    queues: int
    queues_unassigned: int
    """Queues that no broker delivers now."""
    leases: Sequence[QueueLease] | None = None
    """The leases by topic and queue; None unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerId:
    """A broker, by its id."""

    broker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """A draining broker. queues: the number that it still delivers."""

    queues: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFigures:
    """A query of figures. with_database: also those of the Notify database, which are the same from each broker."""

    with_database: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The value of one series. name: of its metric. labels: the labels' values, in the order of the catalogue."""

    name: str
    labels: Sequence[str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFigures:
    """The figures of one broker, without histograms. broker: its id. now: by the clock of its machine."""

    broker: str
    now: datetime
    figures: Sequence[Figure]

    @property
    def series(self) -> Series:
        """The figures by metric and labels."""
        return {(each.name, tuple(each.labels)): each.value for each in self.figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuery:
    """A query of clients. contains: a part of group or host, case-insensitive."""

    limit: Annotated[int, NumberRange(1, 10_000)] = 1000
    contains: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSummary:
    """A client, by its own description when it attached. A group is None if it does not produce, or consume.

    A producer group that its user has no right on is None, too.
    """

    id: str
    producer_group: str | None = None
    consumer_group: str | None = None
    host: str
    pid: int
    release: str
    since: datetime
    answers_checks: bool
    unanswered: int
    """Checks since its last answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPage:
    """Clients attached to the broker that answers, by group, host and process. more: the limit left some out.

    Clients attach to every broker.
    """

    clients: Sequence[ClientSummary]
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorQueue:
    """A queue of a mirror. next_offset: the next one of the log. end: of the table."""

    topic: str
    queue: int
    next_offset: int
    end: int
    stopped: str | None = None
    """The reason why mirroring has stopped; None: it is mirrored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorState:
    """A mirror in a log, as its tailer last recorded it, and its replication slot."""

    name: str
    include: Sequence[str]
    exclude: Sequence[str]
    log: str | None = None
    """A directory or an address; None: its tailer has not run yet."""
    seen_at: datetime | None = None
    """The time of its tailer's last write; None: never."""
    is_tailing: bool
    """True if a tailer reads its slot."""
    behind_s: float
    """The age in seconds of the oldest message that is not in the log; 0 without one."""
    stopped_queues: int
    slot_state: str | None = None
    """reserved, extended, unreserved (it will be lost soon) or lost; None without a slot."""
    kept_bytes: int
    """Bytes of write-ahead log that are kept for it."""
    behind_bytes: int
    """Bytes of these that are not confirmed."""
    safe_bytes: int | None = None
    """Bytes that can be written before the slot is in danger; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorProgress(MirrorState):
    """A mirror with the progress of its queues."""

    behind_messages: int
    queues: int
    behind: Sequence[MirrorQueue]
    """Stopped queues, then those furthest behind; 100 at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorList:
    """The mirrors of the Notify database, by name."""

    mirrors: Sequence[MirrorProgress]


class ClusterService:
    """The service Cluster."""

    show: Final = Method("Cluster/Show", ShowCluster, ClusterState)
    drain: Final = Method("Cluster/Drain", BrokerId, Drained)
    """Let a broker hand over its queues and accept no messages, until it is resumed or ends. Idempotent.

    Refused when no other broker could take its place.
    """
    resume: Final = Method("Cluster/Resume", BrokerId, Nothing)
    """Let a draining broker work again. Idempotent."""
    forget: Final = Method("Cluster/Forget", BrokerId, Nothing)
    """Forget a broker that died for good. Refused while it lives."""
    figures: Final = Method("Cluster/Figures", ReadFigures, ExportedFigures)
    clients: Final = Method("Cluster/Clients", ClientQuery, ClientPage)
    mirrors: Final = Method("Cluster/Mirrors", Nothing, MirrorList)
