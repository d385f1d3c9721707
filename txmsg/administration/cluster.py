"""The brokers of a Notify database and what they export, by the service Cluster of any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from txmsg.administration.ask import Ask, moment
from txmsg.metrics.figures import Labels
from txmsg.wire.v1 import cluster_pb2 as pb
from txmsg.wire.v1.cluster_rpc import Cluster

Series = Mapping[tuple[str, Labels], float]
"""Values by the name of a metric and the values of its labels, in the order of the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSummary:
    """A broker. state: active, draining or dead. queues: that it delivers."""

    id: str
    address: str
    state: str
    queues: int
    release: str
    schema_revision: str
    started_at: datetime | None
    heartbeat_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLease:
    """Which broker delivers a queue. broker: None while none does. wanted_by: the one that it is handed over to."""

    topic: str
    queue: int
    broker: str | None
    epoch: int
    wanted_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The brokers of a Notify database, dead ones for a day."""

    shard: UUID
    schema_revision: str
    brokers: Sequence[BrokerSummary]
    queues: int
    queues_unassigned: int
    leases: Sequence[QueueLease] | None
    """None unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures:
    """What one broker exports, without histograms. now_s: by its clock, since 1970."""

    broker: str
    now_s: float
    series: Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client as it said when it attached. A group is None if it produces, or consumes, nothing.

    So is a producer group that its user has no right on.
    """

    id: str
    producer_group: str | None
    consumer_group: str | None
    host: str
    pid: int
    release: str
    since: datetime | None
    answers_checks: bool
    unanswered: int
    """Checks since its last answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorQueue:
    """A queue of a mirror: what comes next in the log, and where the table ends."""

    topic: str
    queue: int
    next_offset: int
    end: int
    stopped: str | None
    """Why it is no longer mirrored; None: it is mirrored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """A mirror in a log, as its tailer noted last, and its replication slot."""

    name: str
    include: Sequence[str]
    exclude: Sequence[str]
    log: str | None
    """A directory or an address; None: its tailer has not run yet."""
    seen_at: datetime | None
    is_tailing: bool
    behind_s: float
    """How long ago the oldest message was stored that is not in the log."""
    behind_messages: int
    queues: int
    stopped_queues: int
    behind: Sequence[MirrorQueue]
    """Stopped queues, then those furthest behind; 100 at most."""
    slot_state: str | None
    """reserved, extended, unreserved (it will be lost soon) or lost; None: there is no slot."""
    kept_bytes: int
    """Write-ahead log that is kept for it."""
    behind_bytes: int
    safe_bytes: int | None
    """What may be written before the slot is in danger; None: no limit."""


class ClusterAdministration:
    """What `txmsg cluster` does. Calls block. Raises the errors of errors.py."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def show(self, *, with_queues: bool = False) -> ClusterState:
        """The brokers; with_queues: and who delivers each queue."""
        reply = self._ask(Cluster.show, pb.ShowClusterRequest(with_queues=with_queues))
        return cluster_state(reply, with_queues=with_queues)

    def drain(self, broker: str) -> int:
        """Has a broker hand its queues over and take no messages; how many queues it still delivers. Idempotent."""
        return self._ask(Cluster.drain, pb.DrainRequest(broker=broker)).queues

    def clients(self, limit: int, *, contains: str = "") -> tuple[Sequence[Client], bool]:
        """The clients attached to the broker that is asked, by group and host, and whether there are more.

        contains: in group or host, whatever the case.
        """
        reply = self._ask(Cluster.clients, pb.ClientsRequest(limit=limit, contains=contains))
        found = [
            Client(
                id=client.id,
                producer_group=client.producer_group or None,
                consumer_group=client.consumer_group or None,
                host=client.host,
                pid=client.pid,
                release=client.release,
                since=moment(client.since_us),
                answers_checks=client.answers_checks,
                unanswered=client.unanswered,
            )
            for client in reply.clients
        ]
        return found, reply.more

    def resume(self, broker: str) -> None:
        """Lets a draining broker work again. Idempotent."""
        self._ask(Cluster.resume, pb.ResumeRequest(broker=broker))

    def forget(self, broker: str) -> None:
        """Forgets a broker that died and is not coming back. Raises MisuseError."""
        self._ask(Cluster.forget, pb.ForgetRequest(broker=broker))

    def mirrors(self) -> Sequence[Mirror]:
        """The mirrors of the Notify database, by name."""
        return [
            Mirror(
                name=mirror.name,
                include=list(mirror.include),
                exclude=list(mirror.exclude),
                log=mirror.log or None,
                seen_at=moment(mirror.seen_at_us),
                is_tailing=mirror.tailing,
                behind_s=mirror.behind_s,
                behind_messages=mirror.behind_messages,
                queues=mirror.queues,
                stopped_queues=mirror.stopped_queues,
                behind=[
                    MirrorQueue(
                        topic=queue.topic,
                        queue=queue.queue,
                        next_offset=queue.next_offset,
                        end=queue.end,
                        stopped=queue.stopped or None,
                    )
                    for queue in mirror.behind
                ],
                slot_state=mirror.slot_state or None,
                kept_bytes=mirror.kept_bytes,
                behind_bytes=mirror.behind_bytes,
                safe_bytes=mirror.safe_bytes if mirror.HasField("safe_bytes") else None,
            )
            for mirror in self._ask(Cluster.mirrors, pb.MirrorsRequest()).mirrors
        ]

    def figures(self, *, with_database: bool) -> BrokerFigures:
        """What the broker that answers exports; with_database: and what is the same from each broker."""
        return broker_figures(self._ask(Cluster.figures, pb.FiguresRequest(with_database=with_database)))


def cluster_state(reply: pb.ShowClusterReply, *, with_queues: bool) -> ClusterState:
    """What a broker says of all."""
    return ClusterState(
        shard=UUID(bytes=reply.shard),
        schema_revision=reply.schema_revision,
        brokers=[
            BrokerSummary(
                id=broker.id,
                address=broker.address,
                state=broker.state,
                queues=broker.queues,
                release=broker.release,
                schema_revision=broker.schema_revision,
                started_at=moment(broker.started_at_us),
                heartbeat_at=moment(broker.heartbeat_at_us),
            )
            for broker in reply.brokers
        ],
        queues=reply.queues,
        queues_unassigned=reply.queues_unassigned,
        leases=[
            QueueLease(
                topic=lease.topic,
                queue=lease.queue,
                broker=lease.broker or None,
                epoch=lease.epoch,
                wanted_by=lease.wanted_by or None,
            )
            for lease in reply.leases
        ]
        if with_queues
        else None,
    )


def broker_figures(reply: pb.FiguresReply) -> BrokerFigures:
    """What a broker says of itself."""
    return BrokerFigures(
        broker=reply.broker,
        now_s=reply.now_us / 1_000_000,
        series={(each.name, tuple(each.labels)): each.value for each in reply.figures},
    )
