"""A broker process put together: the one place that knows all of its parts."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from importlib.metadata import version

from txmsg.broker import migrate
from txmsg.broker.admission import Admission
from txmsg.broker.api.admin import AdminApi
from txmsg.broker.api.cluster import ClusterApi
from txmsg.broker.api.dead_letters import DeadLettersApi
from txmsg.broker.api.groups import GroupsApi
from txmsg.broker.api.messages import MessagesApi
from txmsg.broker.api.notify import NotifyApi
from txmsg.broker.api.topics import TopicsApi
from txmsg.broker.check_policies import GroupChecks
from txmsg.broker.cluster import Leases, Membership, Notices, OwnQueues, Registry
from txmsg.broker.config import BrokerConfig
from txmsg.broker.delivery import Delivery
from txmsg.broker.levels import Writers
from txmsg.broker.presence import Presence
from txmsg.broker.retention import Retention
from txmsg.broker.scheduler import Scheduler
from txmsg.broker.segments import Segments
from txmsg.broker.service import CheckResolver, NotifyService
from txmsg.broker.store.check_policies import CheckPolicies as CheckPolicyStore
from txmsg.broker.store.connect import Pool, open_pool
from txmsg.broker.store.dead_letters import DeadLetters
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.halves import Halves
from txmsg.broker.store.incarnation import current_incarnation
from txmsg.broker.store.messages import Messages
from txmsg.broker.store.scheduled import Scheduled
from txmsg.broker.store.topic_settings import TopicSettings
from txmsg.broker.store.topics import Topic, TopicRegistry
from txmsg.checker.loop import CheckLoop
from txmsg.checker.policy import CheckPolicies
from txmsg.errors import BrokerUnavailable, StorageError, UnknownTopic
from txmsg.wire.server import bind, connections_allowed, new_server
from txmsg.wire.v1 import txmsg_pb2_grpc as rpc
from txmsg.wire.v1.cluster_pb2_grpc import add_ClusterServicer_to_server
from txmsg.wire.v1.dead_letters_pb2_grpc import add_DeadLettersServicer_to_server
from txmsg.wire.v1.groups_pb2_grpc import add_GroupsServicer_to_server
from txmsg.wire.v1.messages_pb2_grpc import add_MessagesServicer_to_server
from txmsg.wire.v1.topics_pb2_grpc import add_TopicsServicer_to_server

__all__ = ["serve"]

logger = logging.getLogger(__name__)

_START_PAUSE_S = 1.0
_PEOPLE_MAX = 4
"""Connections for what people ask in their commands, and for Stats; more requests wait for one."""
_PEOPLE_S_MAX = 10.0
"""What one of their statements may take. The server ends it then, and the command says so."""
_CLOSE_S_MAX = 3.0
"""For writing cursors and leaving the cluster, and for closing connections, at a stop."""
_WRITE_S_MIN = 1.0
"""For writing what was accepted, at a stop that has used up its time on requests under way."""


class DeliveryTopics:
    """The topic registry as delivery wants to see it."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics

    async def ensure(self, topic: str) -> Sequence[tuple[int, int]]:
        return _numbered(await self._topics.ensure(topic))

    async def make_missing(self, topics: Collection[str]) -> Mapping[str, UnknownTopic]:
        return await self._topics.make_missing(topics)

    async def find(self, topic: str) -> Sequence[tuple[int, int]]:
        found = await self._topics.find(topic)
        return [] if found is None else _numbered(found)


def _numbered(topic: Topic) -> list[tuple[int, int]]:
    return [(queue_id, number) for number, queue_id in enumerate(topic.readable_queue_ids)]


async def serve(config: BrokerConfig, on_ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Runs a broker until `stop` is set, then ends in order: what was accepted is written, cursors are flushed.

    `on_ready` is called once with the address HOST:PORT when the broker answers. Raises SchemaMismatch or StorageError
    when the database cannot be used at start, MisuseError when the port is taken; later the database may go and come.
    """
    pool = open_pool(config.storage)
    # What people ask may take long, and must keep neither delivery nor checks from a connection.
    people = open_pool(config.storage, size_max=_PEOPLE_MAX, statement_timeout_s=_PEOPLE_S_MAX)
    people.incarnation = pool.incarnation
    await pool.open()
    await people.open()
    try:
        segments = Segments(pool, config)
        if await _find(config, pool, segments, stop):
            await _serve(config, pool, segments, on_ready, stop, people=people)
    finally:
        await people.close(_CLOSE_S_MAX)
        await pool.close(_CLOSE_S_MAX)


async def _find(config: BrokerConfig, pool: Pool, segments: Segments, stop: asyncio.Event) -> bool:
    """Whether what a broker begins with was read from the database; not when it was stopped meanwhile.

    Waits for one that is not there yet, as when both are started together, or goes away again. Raises what
    `migrate.require` raises: at once when waiting helps nothing, as with a wrong password.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + config.storage_wait_s
    while not stop.is_set():
        try:
            await asyncio.to_thread(migrate.require, config.storage)
            await current_incarnation(pool)
            await segments.refresh()
            return True
        except (StorageError, BrokerUnavailable) as exc:
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise
            if isinstance(exc, StorageError) and not await asyncio.to_thread(migrate.may_pass, exc, config.storage):
                raise
            logger.warning("%s; trying for %.0f s more", " ".join(str(exc).split()), left_s)
        try:
            async with asyncio.timeout(min(left_s, _START_PAUSE_S)):
                await stop.wait()
        except TimeoutError:
            continue
    return False


async def _serve(
    config: BrokerConfig,
    pool: Pool,
    segments: Segments,
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
    *,
    people: Pool,
) -> None:
    topics = TopicRegistry(pool, auto_create=config.topic_auto_create, queues=config.topic_queues)
    retention = Retention(config)
    membership = Membership(
        pool,
        Leases(config.broker_id, config.delivery.lease_ttl_s, time.monotonic),
        release=version("txmsg"),
        schema_revision=migrate.REVISIONS[-1],
        heartbeat_s=config.delivery.heartbeat_s,
    )
    delivery = Delivery(pool, membership, config.delivery, topics=DeliveryTopics(topics))
    notices = Notices(
        config.storage,
        pool,
        {
            "leases": lambda _: membership.look_soon(),
            "brokers": lambda _: membership.look_soon(),
            "topics": lambda _: topics.look_soon(),
            "groups": lambda _: delivery.look_soon(),
            "checks": lambda _: group_checks.look_soon(),
        },
        on_ends=delivery.wake,
        on_connect=membership.look_soon,
    )

    def on_ends(ends: Mapping[int, int]) -> None:
        delivery.wake(ends)
        notices.hint(membership.of_others(ends))

    writers = Writers(pool, config, segments, on_ends=on_ends)
    await writers.refresh()
    scheduled = Scheduled(pool, segments)
    scheduler = Scheduler(scheduled, on_ends=on_ends, look_again=writers.look_again, config=config.scheduler)
    writers.on_due(scheduler.note)
    service = NotifyService(
        topics,
        writers.half,
        writers.other,
        body_size_bytes_max=config.body_size_bytes_max,
        admission=Admission(config.request_timeout_s),
        own_queues=OwnQueues(membership.leases),
    )
    presence = Presence()
    halves = Halves(pool)
    checks = CheckLoop(
        halves,
        presence,
        CheckResolver(writers.other, service.counts),
        policies=CheckPolicies(default=config.check_policy()),
        config=config.check_loop,
    )
    service.on_unknown = checks.wake
    group_checks = GroupChecks(config, CheckPolicyStore(pool), CheckPolicyStore(people), checks.use)
    for each in (scheduler, checks):  # the others know the pool
        pool.incarnation.on_end(each.forget)
    api = NotifyApi(
        service, delivery, halves, presence, scheduled, routes=membership, incarnation=pool.incarnation, stopping=stop
    )

    connections_max = connections_allowed(config.connections_max)
    groups = GroupAdministration(people)
    admin = AdminApi(
        service, delivery, Halves(people), groups, drops=retention.counts, on_resume=partial(checks.wake, sweep=True)
    )
    server = new_server(
        partial(rpc.add_NotifyServicer_to_server, api),
        partial(rpc.add_AdminServicer_to_server, admin),
        partial(add_ClusterServicer_to_server, ClusterApi(Registry(people))),
        partial(add_DeadLettersServicer_to_server, DeadLettersApi(DeadLetters(people))),
        partial(add_MessagesServicer_to_server, MessagesApi(Messages(people))),
        partial(add_GroupsServicer_to_server, GroupsApi(groups, delivery, group_checks)),
        partial(add_TopicsServicer_to_server, TopicsApi(TopicSettings(people))),
        connections_max=connections_max,
    )
    address = bind(server, config.listen)
    api.address = membership.address = config.advertise or _reachable(address)

    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(writers.run(), name="writers")
        background = [
            tasks.create_task(segments.run(), name="segments"),
            tasks.create_task(retention.run(), name="retention"),
            tasks.create_task(topics.run(config.topic_refresh_s), name="topics"),
            tasks.create_task(checks.run(), name="checks"),
            tasks.create_task(group_checks.run(), name="check policies"),
            tasks.create_task(scheduler.run(), name="scheduler"),
            tasks.create_task(delivery.run(), name="delivery"),
            tasks.create_task(membership.run(), name="membership"),
            tasks.create_task(notices.run(), name="notices"),
        ]
        try:
            await server.start()
            logger.info("broker %s listens on %s, and is known as %s", config.broker_id, address, api.address)
            on_ready(address)
            await stop.wait()
        finally:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + config.stop_timeout_s
            delivery.drain()
            # While the server still takes acknowledgements: the queues go to other brokers with nothing in flight.
            try:
                async with asyncio.timeout(config.delivery.hand_over_s + _CLOSE_S_MAX):
                    await delivery.close()
            except (BrokerUnavailable, TimeoutError) as exc:
                logger.warning("cursors were not written, their messages come again: %s", exc or "no answer in time")
            # Requests under way may still need the writer, so it ends after the server.
            await server.stop(config.stop_timeout_s)
            writers.close()
            await asyncio.wait([writing], timeout=max(deadline - loop.time(), _WRITE_S_MIN))
            for task in (writing, *background):
                task.cancel()
            await asyncio.wait((writing, *background))


def _reachable(address: str) -> str:
    """The address under which others find a broker that listens on all addresses of its machine."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in {"0.0.0.0", "[::]"} else address
