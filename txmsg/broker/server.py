"""A broker: the one place that knows all of its parts."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any

from txmsg.administration.access import Access
from txmsg.administration.alerts import Alerts
from txmsg.administration.audit import Audit
from txmsg.administration.cluster import Cluster
from txmsg.administration.dead_letters import DeadLetters
from txmsg.administration.groups import Groups
from txmsg.administration.halves import Admin
from txmsg.administration.messages import Messages as MessageService
from txmsg.administration.rules import Rules
from txmsg.administration.schemas import Schemas
from txmsg.administration.settings import Settings
from txmsg.administration.topics import Topics
from txmsg.broker import migrate
from txmsg.broker.access import LiveAccess
from txmsg.broker.admission import Admission
from txmsg.broker.alerts.alerting import Alerting
from txmsg.broker.api.access import AccessApi
from txmsg.broker.api.admin import AdminApi
from txmsg.broker.api.alerts import AlertsApi
from txmsg.broker.api.cluster import ClusterApi
from txmsg.broker.api.dead_letters import DeadLettersApi
from txmsg.broker.api.groups import GroupsApi
from txmsg.broker.api.messages import MessagesApi
from txmsg.broker.api.notify import NotifyApi
from txmsg.broker.api.rules import RulesApi
from txmsg.broker.api.schemas import SchemasApi
from txmsg.broker.api.settings import SettingsApi
from txmsg.broker.api.topics import TopicsApi
from txmsg.broker.audit import AuditUpkeep
from txmsg.broker.check_policies import GroupChecks
from txmsg.broker.clients import AttachedClients
from txmsg.broker.cluster import Leases, Membership, Notices, OwnQueues, Registry
from txmsg.broker.config import BrokerConfig
from txmsg.broker.delivery import Delivery
from txmsg.broker.erasable import ErasableBodies
from txmsg.broker.figures import DatabaseFigures, figures_of, unready
from txmsg.broker.journal import Journal, JournalWriter
from txmsg.broker.levels import Writers
from txmsg.broker.retention import Retention
from txmsg.broker.scheduler import Scheduler, Window
from txmsg.broker.segments import Segments
from txmsg.broker.service import CheckResolver, NotifyService
from txmsg.broker.settings import RunTimeSettings
from txmsg.broker.store.access_rules import AccessRules
from txmsg.broker.store.audit import AuditLog
from txmsg.broker.store.body_keys import BodyKeys
from txmsg.broker.store.check_policies import CheckPolicies as CheckPolicyStore
from txmsg.broker.store.connect import ADMIN_POOL_SIZE_MAX, Pool, open_pool
from txmsg.broker.store.dead_letters import DeadLetters as DeadLetterStore
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.halves import Halves
from txmsg.broker.store.incarnation import current_incarnation
from txmsg.broker.store.messages import Messages
from txmsg.broker.store.mirrors import Mirrors
from txmsg.broker.store.retry_administration import RetryAdministration
from txmsg.broker.store.scheduled import Scheduled
from txmsg.broker.store.schemas import TopicSchemas
from txmsg.broker.store.settings import NOTICE as SETTINGS_NOTICE
from txmsg.broker.store.settings import SettingStore
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.broker.store.topics import Topic, TopicRegistry
from txmsg.broker.store.users import NOTICE as ACCESS_NOTICE
from txmsg.broker.store.users import Users
from txmsg.broker.waits import Waits
from txmsg.checker.loop import CheckLoop
from txmsg.checker.policy import CheckPolicies
from txmsg.errors import BrokerUnavailable, StorageError, TxmsgError
from txmsg.logs import EventLog, set_log_level
from txmsg.metrics.figures import Figures
from txmsg.metrics.http import Probes, serving
from txmsg.settings.live import Given
from txmsg.settings.tracing import tracing_of_process
from txmsg.wire.handlers import Handlers
from txmsg.wire.listening import connections_allowed
from txmsg.wire.server import CLOSING_S_MAX, Server
from txmsg.wire.server_connection import ServerConnection
from txmsg.wire.shared import Shared
from txmsg.wire.users import AccessWatch
from txmsg.wire.v1 import (
    txmsg_rpc,
)

_log = EventLog(__name__)

_START_PAUSE_S = 1.0
_ADMIN_STATEMENT_S_MAX = 10.0
"""How long a statement of administration may take. Then the server cancels it, and the command reports that."""
_CLOSE_S_MAX = 3.0
"""At a stop: for writing cursors and leaving the cluster, and for closing connections."""
_WRITE_S_MIN = 1.0
"""At a stop whose time was used up by requests under way: for writing what was accepted."""


class DeliveryTopics:
    """The topic registry as delivery needs it. Implements delivery.values.Topics."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics

    async def ensure(self, topic: str) -> Sequence[tuple[int, int]]:
        return _numbered(await self._topics.ensure(topic))

    async def make_missing(self, topics: Collection[str]) -> Mapping[str, TxmsgError]:
        return await self._topics.make_missing(topics)

    async def find(self, topic: str) -> Sequence[tuple[int, int]]:
        found = await self._topics.find(topic)
        return [] if found is None else _numbered(found)

    async def is_erasable(self, topic: str) -> bool:
        found = await self._topics.find(topic)
        return found is not None and found.erasable_s is not None


def _numbered(topic: Topic) -> list[tuple[int, int]]:
    return [(queue_id, number) for number, queue_id in enumerate(topic.readable_queue_ids)]


class Broker:
    """All parts of a broker, in the order in which they need each other."""

    def __init__(
        self,
        given: Given[BrokerConfig],
        pool: Pool,
        admin_pool: Pool,
        segments: Segments,
        stop: asyncio.Event,
    ) -> None:
        config = self.config = given.config
        self.pool = pool
        self.admin_pool = admin_pool
        self.database_figures = DatabaseFigures(admin_pool)
        self.stop = stop
        # storage
        self.segments = segments
        self.retention = Retention(config)
        self.topics = TopicRegistry(pool, auto_create=config.topic_auto_create, queues=config.topic_queues)
        # the cluster, and delivery of this broker's queues
        self.membership = Membership(
            pool,
            Leases(config.broker_id, config.delivery.lease_ttl_s, time.monotonic),
            release=version("txmsg"),
            schema_revision=migrate.REVISIONS[-1],
            heartbeat_s=config.delivery.heartbeat_s,
        )
        self.waits = Waits(pool, config, on_renewed=self._look_at_all)
        self.membership.on_clock_set = self._clock_set
        self.journal = Journal()
        self.journal_writer = JournalWriter(pool, self.journal)
        self.delivery = Delivery(
            pool, self.membership, config.delivery, topics=DeliveryTopics(self.topics), journal=self.journal
        )
        self.notices = Notices(
            config.storage,
            pool,
            {
                "leases": lambda _: self.membership.look_soon(),
                "brokers": lambda _: self.membership.look_soon(),
                "topics": lambda _: self._topics_changed(),
                "groups": lambda _: self.delivery.look_soon(),
                "checks": lambda _: self.check_policies.look_soon(),
                SETTINGS_NOTICE: lambda _: self.settings.look_soon(),
                ACCESS_NOTICE: lambda _: self._access_changed(),
            },
            on_ends=self.delivery.wake,
            on_connect=self.membership.look_soon,
        )
        # sending
        self.bodies = bodies = ErasableBodies(BodyKeys(pool))
        self.window = Window()
        self.writers = Writers(pool, config, segments, on_ends=self._on_ends, on_due=self.window.note)
        self.service = service = NotifyService(
            self.topics,
            self.writers.half,
            self.writers.other,
            body_size_bytes_max=config.body_size_bytes_max,
            admission=Admission(config.request_timeout_s),
            own_queues=OwnQueues(self.membership.leases),
            bodies=bodies,
        )
        # delayed messages
        scheduled = Scheduled(pool, segments)
        self.scheduler = Scheduler(
            scheduled, self.window, on_ends=self._on_ends, look_again=self.writers.look_again, config=config.scheduler
        )
        pool.incarnation.on_end(self.window.forget)
        # check-backs
        tracing = tracing_of_process() if config.tracing else None
        self.clients = clients = AttachedClients(self.journal, tracing=tracing)
        halves = Halves(pool)
        self.checks = CheckLoop(
            halves,
            clients,
            CheckResolver(self.writers.other, service.counts),
            policies=CheckPolicies(default=config.check_policy()),
            config=config.check_loop,
        )
        self.check_policies = GroupChecks(config, CheckPolicyStore(pool), CheckPolicyStore(admin_pool), self.checks.use)
        service.on_unknown = self.checks.wake
        service.on_decided = clients.decided
        pool.incarnation.on_end(self.checks.forget)
        # settings at run time
        self.settings = RunTimeSettings(given, SettingStore(pool), SettingStore(admin_pool), self.use)
        pool.incarnation.on_end(self.settings.forget)
        audit_log = AuditLog(admin_pool)
        self.audit = AuditUpkeep(config, audit_log)
        # users
        self.access = LiveAccess(Users(pool), config.user.limits()) if config.authentication else None
        if self.access is not None:
            pool.incarnation.on_end(self.access.forget)
            self.access.guard.on_refused = self.audit.refused
            self.access.guard.on_denied = self.audit.denied
        self.alerting = Alerting(config, admin_pool, self.figures, has_joined=lambda: bool(self.membership.brokers))
        # the API
        self.api = NotifyApi(
            service,
            self.delivery,
            halves,
            clients,
            scheduled,
            bodies=bodies,
            routes=self.membership,
            incarnation=pool.incarnation,
            stopping=stop,
            authenticates=config.authentication,
        )
        groups = GroupAdministration(admin_pool)
        admin = AdminApi(
            service,
            self.delivery,
            Halves(admin_pool),
            groups,
            clients,
            audit=audit_log,
            drops=self.retention.counts,
            on_resume=partial(self.checks.wake, sweep=True),
        )
        access = AccessApi(Users(admin_pool), self.access)
        handlers = Handlers(
            {
                txmsg_rpc.Notify: self.api,
                Admin: admin,
                Access: access,
                AccessWatch: access,
                Rules: RulesApi(AccessRules(admin_pool), self.access),
                Alerts: AlertsApi(admin_pool, self.alerting),
                Audit: audit_log,
                Cluster: ClusterApi(Registry(admin_pool), Mirrors(admin_pool), clients, config.broker_id, self.figures),
                DeadLetters: DeadLettersApi(DeadLetterStore(admin_pool)),
                MessageService: MessagesApi(Messages(admin_pool), BodyKeys(admin_pool)),
                Groups: GroupsApi(groups, RetryAdministration(admin_pool), self.delivery, self.check_policies, clients),
                Settings: SettingsApi(self.settings),
                Schemas: SchemasApi(TopicSchemas(admin_pool), self.topics.ensure),
                Topics: TopicsApi(self.topics, TopicAdministration(admin_pool), lambda: self.config.retention_s),
            }
        )
        self.shared = Shared[ServerConnection](
            connections_max=connections_allowed(config.connections_max),
            tls=config.tls.of_server(),
            guard=None if self.access is None else self.access.guard,
        )
        self.server = Server(handlers, self.shared)

    def use(self, config: BrokerConfig) -> None:
        """Takes the live settings of a configuration, while everything runs."""
        if config.log_level != self.config.log_level:
            set_log_level(config.log_level)
        self.config = config
        self.segments.use(config)
        self.retention.use(config)
        self.writers.use(config)
        self.topics.use(auto_create=config.topic_auto_create, queues=config.topic_queues)
        self.service.body_size_bytes_max = config.body_size_bytes_max
        self.check_policies.use(config)
        self.checks.pace(config.check_loop)
        self.delivery.use(config.delivery)
        self.alerting.use(config)
        self.audit.use(config)
        if self.access is not None:
            self.access.guard.use_limits(config.user.limits())

    def _topics_changed(self) -> None:
        self.topics.look_soon()
        self.journal_writer.look_soon()

    def _access_changed(self) -> None:
        if self.access is not None:
            self.access.look_soon()

    def _clock_set(self, step_s: float) -> None:
        self.waits.clock_set(step_s)
        self.checks.restart_grace()  # halves may seem to be overdue for long

    def _look_at_all(self) -> None:
        """Due times have changed: all that looks for what is due begins from the start."""
        self.window.forget("")
        self.checks.forget("")
        self.delivery.look_for_retries()

    def _on_ends(self, ends: Mapping[int, int]) -> None:
        """Queues (by id) now end before these offsets."""
        self.delivery.wake(ends)
        self.notices.hint(self.membership.of_others(ends))

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What runs until the broker stops, by name; the writers, which end after the server, are not among them."""
        access = {} if self.access is None else {"access": self.access.run()}
        return access | {
            "segments": self.segments.run(),
            "retention": self.retention.run(),
            "topics": self.topics.run(self.config.topic_refresh_s),
            "checks": self.checks.run(),
            "check policies": self.check_policies.run(),
            "settings": self.settings.run(),
            "scheduler": self.scheduler.run(),
            "delivery": self.delivery.run(),
            "membership": self.membership.run(),
            "notices": self.notices.run(),
            "figures": self.database_figures.run(),
            "alerts": self.alerting.run(),
            "audit log": self.audit.run(),
            "journal": self.journal_writer.run(),
            "waits": self.waits.run(),
        }

    async def figures(self, with_database: bool = True) -> Figures:
        """What this broker exports; if asked for, with the figures of the database, which take it a while."""
        if with_database:
            await self.database_figures.look()
        return figures_of(self, self.database_figures if with_database else None)

    async def run(self, on_ready: Callable[[str], None]) -> None:
        """Serves until `stop` is set, then ends in order."""
        address = await self.server.bind(self.config.listen)
        self.api.address = self.membership.address = self.config.advertise or _reachable(address)
        async with (
            serving(self.config.http_listen, self._probes(), self.shared.tls, self.config.http_token_file),
            asyncio.TaskGroup() as tasks,
        ):
            writing = tasks.create_task(self.writers.run(), name="writers")
            background = [tasks.create_task(running, name=name) for name, running in self.background().items()]
            try:
                if self.access is not None:
                    with suppress(BrokerUnavailable):  # `background` goes on trying; until then nobody is let in
                        await self.access.refresh_once()
                await self.server.start()
                _log.info(
                    "broker.started",
                    "broker %(broker)s listens on %(listen)s, and is known as %(advertise)s",
                    broker=self.config.broker_id,
                    listen=address,
                    advertise=self.api.address,
                )
                on_ready(address)
                await self.stop.wait()
            finally:
                await self._end(writing)
                for task in (writing, *background):
                    task.cancel()
                await asyncio.wait((writing, *background))

    def _probes(self) -> Probes:
        return Probes(figures=self.figures, unready=partial(unready, self))

    async def _end(self, writing: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        _log.info(
            "server.stopping",
            "stopping: this takes %(timeout_s)g s at most",
            timeout_s=stop_s_max(self.config),
        )
        deadline = loop.time() + self.config.stop_timeout_s
        self.delivery.drain()
        self.settings.close()
        if self.access is not None:
            self.access.close()
        # While the server still takes acknowledgements: the queues go to other brokers with nothing in flight.
        try:
            async with asyncio.timeout(self.config.delivery.hand_over_s + _CLOSE_S_MAX):
                await self.delivery.close()
        except (BrokerUnavailable, TimeoutError) as exc:
            _log.warning(
                "broker.cursors_unwritten",
                "cursors were not written, their messages are redelivered: %(error)s",
                error=exc or "no answer in time",
            )
        # Requests under way may still need the writers, so these end after the server.
        await self.server.stop(self.config.stop_timeout_s)
        self.writers.close()
        await asyncio.wait([writing], timeout=max(deadline - loop.time(), _WRITE_S_MIN))
        await self.journal_writer.close(_WRITE_S_MIN)


def stop_s_max(config: BrokerConfig) -> float:
    """How long a graceful stop may take: what sends SIGKILL has to wait for longer."""
    delivery_s = config.delivery.hand_over_s + _CLOSE_S_MAX
    requests_s = config.stop_timeout_s + CLOSING_S_MAX
    pools_s = 2 * _CLOSE_S_MAX
    return delivery_s + requests_s + _WRITE_S_MIN + pools_s


async def serve(
    given: Given[BrokerConfig],
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
    *,
    on_made: Callable[[Broker], None] = lambda _: None,
) -> None:
    """Runs a broker until `stop` is set, then ends in order: what was accepted is written, cursors are flushed.

    `on_made` is called once with the broker before it serves, `on_ready` once with the address HOST:PORT when it
    answers. Raises SchemaMismatch or StorageError
    if the database cannot be used at the start, MisuseError if the port is taken; later the database may go and return.
    """
    config = given.config
    pool = open_pool(config.storage)
    # Requests of operators may take long, and must not take connections from delivery and checks.
    admin_pool = open_pool(config.storage, size_max=ADMIN_POOL_SIZE_MAX, statement_timeout_s=_ADMIN_STATEMENT_S_MAX)
    admin_pool.incarnation = pool.incarnation
    await pool.open()
    await admin_pool.open()
    try:
        segments = Segments(pool, config)
        if await _wait_for_database(config, pool, segments, stop):
            broker = Broker(given, pool, admin_pool, segments, stop)
            on_made(broker)
            await broker.run(on_ready)
    finally:
        await admin_pool.close(_CLOSE_S_MAX)
        await pool.close(_CLOSE_S_MAX)


async def _wait_for_database(config: BrokerConfig, pool: Pool, segments: Segments, stop: asyncio.Event) -> bool:
    """Reads what a broker starts with. False if it was stopped meanwhile.

    Waits up to storage_wait_s for a database that is not there yet, as when both are started together. Raises what
    `migrate.require` raises: at once if waiting cannot help, as with a wrong password.
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
            _log.warning(
                "broker.waiting_for_database",
                "%(error)s; trying for %(left_s).0f s more",
                error=" ".join(str(exc).split()),
                left_s=left_s,
            )
        try:
            async with asyncio.timeout(min(left_s, _START_PAUSE_S)):
                await stop.wait()
        except TimeoutError:
            continue
    return False


def _reachable(address: str) -> str:
    """The address by which others reach a broker that listens on all addresses of its machine."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in {"0.0.0.0", "[::]"} else address
