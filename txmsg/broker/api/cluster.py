"""The service Cluster over gRPC: the brokers of a database, for people. Decides nothing."""

from __future__ import annotations

from txmsg.broker.cluster import Registry
from txmsg.message import us_of_datetime
from txmsg.wire.answers import Context, answering
from txmsg.wire.v1 import cluster_pb2 as pb
from txmsg.wire.v1 import cluster_pb2_grpc as rpc


class ClusterApi(rpc.ClusterServicer):
    """The service Cluster."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @answering
    async def Show(self, request: pb.ShowClusterRequest, context: Context) -> pb.ShowClusterReply:  # noqa: N802
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

    @answering
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:  # noqa: N802
        return pb.DrainReply(queues=await self._registry.drain(request.broker))

    @answering
    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeReply:  # noqa: N802
        await self._registry.resume(request.broker)
        return pb.ResumeReply()
