"""The brokers of a Notify database and what they export, by the service Cluster of any of them."""

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
    """What to tell of. with_queues: also who delivers each queue."""

    with_queues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSummary:
    """A broker. queues: that it delivers. schema_revision: the newest that it knows."""

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
    """Which broker delivers a queue. broker: None while none does. wanted_by: the one that it is handed over to."""

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
    """That no broker delivers at this moment."""
    leases: Sequence[QueueLease] | None = None
    """By topic and queue; None unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerId:
    """A broker, by its id."""

    broker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """A broker that drains. queues: that it still delivers."""

    queues: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFigures:
    """Which figures. with_database: and those of the Notify database, which are the same from each broker."""

    with_database: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The value of one series. name: of its metric. labels: their values, in the order of the catalogue."""

    name: str
    labels: Sequence[str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFigures:
    """What one broker exports, without histograms. broker: its id. now: by the clock of its machine."""

    broker: str
    now: datetime
    figures: Sequence[Figure]

    @property
    def series(self) -> Series:
        """The figures by metric and labels."""
        return {(each.name, tuple(each.labels)): each.value for each in self.figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuery:
    """Which clients. contains: in group or host, whatever the case."""

    limit: Annotated[int, NumberRange(1, 10_000)] = 1000
    contains: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSummary:
    """A client as it said when it attached. A group is None if it produces, or consumes, nothing.

    So is a producer group that its user has no right on.
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
    """Clients attached to the broker that answers, by group, host and process. more: there are others.

    Clients attach to every broker.
    """

    clients: Sequence[ClientSummary]
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorQueue:
    """A queue of a mirror: what comes next in the log, and where the table ends."""

    topic: str
    queue: int
    next_offset: int
    end: int
    stopped: str | None = None
    """Why it is no longer mirrored; None: it is mirrored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorState:
    """A mirror in a log, as its tailer noted last, and its replication slot."""

    name: str
    include: Sequence[str]
    exclude: Sequence[str]
    log: str | None = None
    """A directory or an address; None: its tailer has not run yet."""
    seen_at: datetime | None = None
    """When its tailer wrote last; None: never."""
    is_tailing: bool
    """A tailer reads its slot."""
    behind_s: float
    """How long ago the oldest message was stored that is not in the log; 0: there is none."""
    stopped_queues: int
    slot_state: str | None = None
    """reserved, extended, unreserved (it will be lost soon) or lost; None: there is no slot."""
    kept_bytes: int
    """Write-ahead log that is kept for it."""
    behind_bytes: int
    """Of these, not confirmed."""
    safe_bytes: int | None = None
    """What may be written before the slot is in danger; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorProgress(MirrorState):
    """The same, with how far its queues are mirrored."""

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
    """Has a broker hand its queues over and take no more messages, until it is resumed or ends. Idempotent.

    Refused when no other broker could take its place.
    """
    resume: Final = Method("Cluster/Resume", BrokerId, Nothing)
    """Lets a draining broker work again. Idempotent."""
    forget: Final = Method("Cluster/Forget", BrokerId, Nothing)
    """Forgets a broker that died and is not coming back. Refused while it lives."""
    figures: Final = Method("Cluster/Figures", ReadFigures, ExportedFigures)
    clients: Final = Method("Cluster/Clients", ClientQuery, ClientPage)
    mirrors: Final = Method("Cluster/Mirrors", Nothing, MirrorList)
