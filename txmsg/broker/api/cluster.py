"""The service Cluster: the brokers of a database, for people. Decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from txmsg.access.permissions import DESCRIBE_GROUP, DESCRIBE_TOPIC
from txmsg.broker.clients import AttachedClients
from txmsg.broker.cluster import Registry
from txmsg.broker.store.mirrors import MirrorQueueRow, MirrorRow, Mirrors
from txmsg.message import now_us, us_of_datetime
from txmsg.metrics.counts import Histogram
from txmsg.metrics.figures import Figures
from txmsg.wire.caller import may
from txmsg.wire.v1 import cluster_pb2 as pb

Read = Callable[[bool], Awaitable[Figures]]
"""The figures of this broker; if asked for, with those of the database."""
_QUEUES_BEHIND_MAX: Final = 100


class ClusterApi:
    """The service Cluster. broker: the id of the one that `read` reads."""

    def __init__(self, registry: Registry, mirrors: Mirrors, clients: AttachedClients, broker: str, read: Read) -> None:
        self._registry = registry
        self._mirrors = mirrors
        self._clients = clients
        self._broker = broker
        self._read = read

    async def show(self, request: pb.ShowClusterRequest) -> pb.ShowClusterReply:
        state = await self._registry.show(with_queues=request.with_queues)
        return pb.ShowClusterReply(
            shard=state.shard.bytes,
            schema_revision=state.schema_revision,
            brokers=[
                pb.ClusterBroker(
                    id=broker.id,
                    address=broker.address,
                    state=broker.state,
                    release=broker.release,
                    schema_revision=broker.schema_revision,
                    started_at_us=us_of_datetime(broker.started_at),
                    heartbeat_at_us=us_of_datetime(broker.heartbeat_at),
                    queues=state.queue_counts.get(broker.id, 0),
                )
                for broker in state.brokers
            ],
            queues=state.queue_count,
            queues_unassigned=state.queue_count - sum(state.queue_counts.values()),
            leases=[
                pb.QueueLease(
                    topic=lease.topic,
                    queue=lease.number,
                    broker=lease.broker_id or "",
                    epoch=lease.epoch,
                    wanted_by=lease.wanted_by or "",
                )
                for lease in state.leases or ()
            ],
        )

    async def clients(self, request: pb.ClientsRequest) -> pb.ClientsReply:
        limit, contains = min(request.limit or 1000, 10_000), request.contains.lower()
        found = [
            client
            for client in self._clients.all()
            if contains in f"{client.group} {client.host}".lower() and may(DESCRIBE_GROUP, client.group)
        ]
        return pb.ClientsReply(
            clients=[
                pb.Client(
                    id=client.client_id,
                    producer_group=client.producer_group,
                    consumer_group=client.consumer_group,
                    host=client.host,
                    pid=client.pid,
                    release=client.release,
                    since_us=us_of_datetime(client.since),
                    answers_checks=bool(client.fences),
                    unanswered=client.unanswered,
                )
                for client in found[:limit]
            ],
            more=len(found) > limit,
        )

    async def drain(self, request: pb.DrainRequest) -> pb.DrainReply:
        return pb.DrainReply(queues=await self._registry.drain(request.broker))

    async def resume(self, request: pb.ResumeRequest) -> pb.ResumeReply:
        await self._registry.resume(request.broker)
        return pb.ResumeReply()

    async def forget(self, request: pb.ForgetRequest) -> pb.ForgetReply:
        await self._registry.forget(request.broker)
        return pb.ForgetReply()

    async def figures(self, request: pb.FiguresRequest) -> pb.FiguresReply:
        figures = await self._read(request.with_database)
        return pb.FiguresReply(
            broker=self._broker,
            now_us=now_us(),
            figures=[
                pb.Figure(name=metric.name, labels=labels, value=value)
                for metric, values in figures.series()
                for labels, value in values.items()
                if not isinstance(value, Histogram)
            ],
        )

    async def mirrors(self, request: pb.MirrorsRequest) -> pb.MirrorsReply:
        found, queues = await self._mirrors.all()
        return pb.MirrorsReply(
            mirrors=[_mirror(each, [queue for queue in queues if queue.mirror == each.name]) for each in found]
        )


def _mirror(mirror: MirrorRow, queues: Sequence[MirrorQueueRow]) -> pb.Mirror:
    unfinished = sorted(
        (queue for queue in queues if queue.stopped or queue.next_offset < queue.end),
        key=lambda queue: (queue.stopped is None, queue.next_offset - queue.end),
    )
    return pb.Mirror(
        name=mirror.name,
        include=mirror.include,
        exclude=mirror.exclude,
        log=mirror.log,
        seen_at_us=us_of_datetime(mirror.seen_at) if mirror.seen_at else 0,
        tailing=mirror.is_tailing,
        behind_s=mirror.behind_s,
        behind_messages=sum(queue.end - queue.next_offset for queue in queues),
        queues=len(queues),
        stopped_queues=mirror.stopped_queues,
        behind=[
            pb.MirrorQueue(
                topic=queue.topic,
                queue=queue.number,
                next_offset=queue.next_offset,
                end=queue.end,
                stopped=queue.stopped or "",
            )
            for queue in unfinished[:_QUEUES_BEHIND_MAX]
            if may(DESCRIBE_TOPIC, queue.topic)
        ],
        slot_state=mirror.slot_state or "",
        kept_bytes=mirror.kept_bytes,
        behind_bytes=mirror.behind_bytes,
        safe_bytes=mirror.safe_bytes,
    )
