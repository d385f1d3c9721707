"""The service Cluster: the brokers of a database, for people. Decides which clients and topics a caller may see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime

from txmsg.administration.ask import Nothing
from txmsg.administration.cluster import (
    BrokerId,
    ClientPage,
    ClientQuery,
    ClientSummary,
    ClusterState,
    Drained,
    ExportedFigures,
    Figure,
    MirrorList,
    ReadFigures,
    ShowCluster,
)
from txmsg.broker.clients import AttachedClients
from txmsg.broker.cluster import Registry
from txmsg.broker.store.mirrors import Mirrors
from txmsg.metrics.counts import Histogram
from txmsg.metrics.figures import Figures
from txmsg.wire.access.permissions import DESCRIBE_GROUP, DESCRIBE_TOPIC
from txmsg.wire.caller import may

Read = Callable[[bool], Awaitable[Figures]]
"""Returns the metrics of this broker; with True, including those of the database."""


class ClusterApi:
    """The service Cluster. broker: the id of the broker of `read`."""

    def __init__(self, registry: Registry, mirrors: Mirrors, clients: AttachedClients, broker: str, read: Read) -> None:
        self._registry = registry
        self._mirrors = mirrors
        self._clients = clients
        self._broker = broker
        self._read = read

    async def show(self, request: ShowCluster) -> ClusterState:
        return await self._registry.show(with_queues=request.with_queues)

    async def clients(self, request: ClientQuery) -> ClientPage:
        contains = request.contains.lower()
        # The clients of this broker only: each broker knows those that are attached to it.
        found = [
            client
            for client in self._clients.all()
            if contains in f"{client.group} {client.host}".lower() and may(DESCRIBE_GROUP, client.group)
        ]
        return ClientPage(
            clients=[
                ClientSummary(
                    id=client.client_id,
                    producer_group=client.producer_group or None,
                    consumer_group=client.consumer_group or None,
                    host=client.host,
                    pid=client.pid,
                    release=client.release,
                    since=client.since,
                    answers_checks=bool(client.fences),
                    unanswered=client.unanswered,
                )
                for client in found[: request.limit]
            ],
            more=len(found) > request.limit,
        )

    async def drain(self, request: BrokerId) -> Drained:
        return Drained(queues=await self._registry.drain(request.broker))

    async def resume(self, request: BrokerId) -> Nothing:
        await self._registry.resume(request.broker)
        return Nothing()

    async def forget(self, request: BrokerId) -> Nothing:
        await self._registry.forget_broker(request.broker)
        return Nothing()

    async def figures(self, request: ReadFigures) -> ExportedFigures:
        figures = await self._read(request.with_database)
        return ExportedFigures(
            broker=self._broker,
            now=datetime.now(UTC),
            figures=[
                Figure(name=metric.name, labels=labels, value=float(value))
                for metric, values in figures.series()
                for labels, value in values.items()
                if not isinstance(value, Histogram)
            ],
        )

    async def mirrors(self, request: Nothing) -> MirrorList:
        return MirrorList(
            mirrors=[
                replace(mirror, behind=[queue for queue in mirror.behind if may(DESCRIBE_TOPIC, queue.topic)])
                for mirror in await self._mirrors.all()
            ]
        )
