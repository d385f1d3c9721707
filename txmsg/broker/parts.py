"""The parts of a broker, made in the order in which they need each other: each is complete when it is made.

A part gets all that it needs as arguments, made before. Changes while a broker runs reach it by registering: for new
settings with `RunTimeSettings.on_change`, for the end of an incarnation with `Incarnation.on_end`, for a clock that was
set with `Membership.on_clock_set`. Knows neither the answers to calls (services.py) nor the metrics (figures.py), which
are made of these parts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from importlib.metadata import version

from txmsg.broker import migrate
from txmsg.broker.access import LiveAccess
from txmsg.broker.admission import Admission
from txmsg.broker.audit import AuditUpkeep
from txmsg.broker.check_policies import GroupChecks
from txmsg.broker.clients import AttachedClients
from txmsg.broker.cluster import Hints, Leases, Membership, Notices, OwnQueues
from txmsg.broker.config import BrokerConfig
from txmsg.broker.delivery import Delivery
from txmsg.broker.delivery.topics import DeliveryTopics
from txmsg.broker.erasable import ErasableBodies
from txmsg.broker.journal import JournalBuffer, JournalWriter
from txmsg.broker.levels import Writers
from txmsg.broker.retention import Retention
from txmsg.broker.scheduler import DueWindow, Scheduler
from txmsg.broker.segments import Segments
from txmsg.broker.service import CheckResolver, NotifyService, OutcomeCounts
from txmsg.broker.settings import RunTimeSettings
from txmsg.broker.store.audit import AuditLog
from txmsg.broker.store.body_keys import BodyKeyStore
from txmsg.broker.store.check_policies import CheckPolicyStore
from txmsg.broker.store.connect import Pool
from txmsg.broker.store.halves import HalfMessages
from txmsg.broker.store.scheduled import Scheduled
from txmsg.broker.store.settings import NOTICE as SETTINGS_NOTICE
from txmsg.broker.store.settings import SettingStore
from txmsg.broker.store.topics import TopicRegistry
from txmsg.broker.store.users import NOTICE as ACCESS_NOTICE
from txmsg.broker.store.users import Users
from txmsg.broker.waits import Waits
from txmsg.checker.loop import CheckLoop
from txmsg.checker.policy import CheckPolicies
from txmsg.settings.live import GivenSettings
from txmsg.settings.tracing import tracing_of_process
from txmsg.wire.listening import connections_allowed
from txmsg.wire.server_connection import ServerConnection
from txmsg.wire.shared import Shared


class StorageParts:
    """The database and the parts that the whole broker shares: settings, segments, topics.

    admin_pool: for requests of operators, whose statements have a timeout.
    """

    def __init__(self, given: GivenSettings[BrokerConfig], pool: Pool, admin_pool: Pool, segments: Segments) -> None:
        config = given.config
        self.pool = pool
        self.admin_pool = admin_pool
        self.settings = RunTimeSettings(given, SettingStore(pool), SettingStore(admin_pool))
        pool.incarnation.on_end(self.settings.forget_settings)
        self.segments = segments
        self.settings.on_change(segments.apply_settings)
        self.retention = Retention(config)
        self.settings.on_change(self.retention.apply_settings)
        self.topics = topics = TopicRegistry(pool, auto_create=config.topic_auto_create, queues=config.topic_queues)
        self.settings.on_change(
            lambda new: topics.apply_settings(auto_create=new.topic_auto_create, queues=new.topic_queues)
        )

    @property
    def config(self) -> BrokerConfig:
        """The present settings."""
        return self.settings.config


class DeliveryParts:
    """The cluster, and delivery of this broker's queues."""

    def __init__(self, storage: StorageParts) -> None:
        config, pool = storage.config, storage.pool
        self.membership = Membership(
            pool,
            Leases(config.broker_id, config.delivery.lease_ttl_s, time.monotonic),
            release=version("txmsg"),
            schema_revision=migrate.REVISIONS[-1],
            heartbeat_s=config.delivery.heartbeat_s,
        )
        self.journal = JournalBuffer()
        self.journal_writer = JournalWriter(pool, self.journal)
        self.delivery = delivery = Delivery(
            pool, self.membership, config.delivery, topics=DeliveryTopics(storage.topics), journal=self.journal
        )
        storage.settings.on_change(lambda new: delivery.apply_settings(new.delivery))
        self.hints = Hints(pool)

    def on_ends(self, ends: Mapping[int, int]) -> None:
        """Note that queues (by id) now end before these offsets."""
        self.delivery.wake(ends)
        self.hints.hint(self.membership.of_others(ends))


class WritingParts:
    """The writers, the scheduler of delayed messages, and the counts of outcomes."""

    def __init__(self, storage: StorageParts, delivering: DeliveryParts) -> None:
        config, pool, segments = storage.config, storage.pool, storage.segments
        self.bodies = ErasableBodies(BodyKeyStore(pool))
        self.window = DueWindow()
        pool.incarnation.on_end(self.window.forget_window)
        self.writers = Writers(pool, config, segments, on_ends=delivering.on_ends, on_due=self.window.note)
        storage.settings.on_change(self.writers.apply_settings)
        self.scheduled = Scheduled(pool, segments)
        self.scheduler = Scheduler(
            self.scheduled,
            self.window,
            on_ends=delivering.on_ends,
            look_again=self.writers.look_again,
            config=config.scheduler,
        )
        self.counts = OutcomeCounts()


class CheckingParts:
    """Check-backs: the clients that can be asked, and the loop that asks them."""

    def __init__(self, storage: StorageParts, delivering: DeliveryParts, sending: WritingParts) -> None:
        config, pool = storage.config, storage.pool
        tracing = tracing_of_process() if config.tracing else None
        self.clients = AttachedClients(delivering.journal, tracing=tracing)
        self.halves = HalfMessages(pool)
        self.checks = checks = CheckLoop(
            self.halves,
            self.clients,
            CheckResolver(sending.writers.other, sending.counts),
            policies=CheckPolicies(default=config.check_policy()),
            config=config.check_loop,
        )
        pool.incarnation.on_end(checks.forget_window)
        self.policies = GroupChecks(
            config, CheckPolicyStore(pool), CheckPolicyStore(storage.admin_pool), checks.apply_policies
        )
        storage.settings.on_change(self.policies.apply_settings)
        storage.settings.on_change(lambda new: checks.pace(new.check_loop))


class AccessParts:
    """Users, and the audit log. access: None without authentication."""

    def __init__(self, storage: StorageParts) -> None:
        config, pool = storage.config, storage.pool
        self.audit_log = AuditLog(storage.admin_pool)
        self.audit = AuditUpkeep(config, self.audit_log)
        storage.settings.on_change(self.audit.apply_settings)
        self.access: LiveAccess | None = None
        if config.authentication:
            self.access = access = LiveAccess(Users(pool), config.user.limits())
            access.guard.on_refused = self.audit.refused
            access.guard.on_denied = self.audit.denied
            pool.incarnation.on_end(access.forget_users)
            storage.settings.on_change(lambda new: access.guard.use_limits(new.user.limits()))


class BrokerParts:
    """All parts of a broker. Nothing runs yet, and no statement was executed. stop: set when the broker is to stop."""

    def __init__(
        self, given: GivenSettings[BrokerConfig], pool: Pool, admin_pool: Pool, segments: Segments, stop: asyncio.Event
    ) -> None:
        config = given.config
        self.stop = stop
        self.storage = storage = StorageParts(given, pool, admin_pool, segments)
        self.delivering = DeliveryParts(storage)
        self.sending = WritingParts(storage, self.delivering)
        self.checking = CheckingParts(storage, self.delivering, self.sending)
        self.service = _service(storage, self.delivering, self.sending, self.checking)
        self.waits = _waits(storage, self.delivering, self.sending, self.checking)
        self.admitting = AccessParts(storage)
        self.shared = Shared[ServerConnection](
            connections_max=connections_allowed(config.connections_max),
            tls=config.tls.of_server(),
            guard=None if self.admitting.access is None else self.admitting.access.guard,
        )
        self.notices = _notices(storage, self.delivering, self.checking, self.admitting)

    @property
    def config(self) -> BrokerConfig:
        """The present settings."""
        return self.storage.config


def _service(
    storage: StorageParts, delivering: DeliveryParts, sending: WritingParts, checking: CheckingParts
) -> NotifyService:
    config = storage.config
    service = NotifyService(
        storage.topics,
        sending.writers.half,
        sending.writers.other,
        body_size_bytes_max=config.body_size_bytes_max,
        admission=Admission(config.request_timeout_s),
        counts=sending.counts,
        own_queues=OwnQueues(delivering.membership.leases),
        bodies=sending.bodies,
        on_unknown=checking.checks.wake,
        on_decided=checking.clients.decided,
    )
    storage.settings.on_change(service.apply_settings)
    return service


def _waits(storage: StorageParts, delivering: DeliveryParts, sending: WritingParts, checking: CheckingParts) -> Waits:
    def look_at_all() -> None:
        """Search for due work from the start: due times have changed."""
        sending.window.forget_window("")
        checking.checks.forget_window("")
        delivering.delivery.look_for_retries()

    waits = Waits(storage.pool, storage.config, on_renewed=look_at_all)
    delivering.membership.on_clock_set(waits.clock_set)
    # Halves may seem long overdue after a step of the clock, which must not park them.
    delivering.membership.on_clock_set(lambda _: checking.checks.restart_grace())
    return waits


def _notices(
    storage: StorageParts, delivering: DeliveryParts, checking: CheckingParts, admitting: AccessParts
) -> Notices:
    def topics_changed(_: str) -> None:
        storage.topics.look_soon()
        delivering.journal_writer.look_soon()

    def access_changed(_: str) -> None:
        if admitting.access is not None:
            admitting.access.look_soon()

    membership = delivering.membership
    return Notices(
        storage.config.storage,
        {
            "leases": lambda _: membership.look_soon(),
            "brokers": lambda _: membership.look_soon(),
            "topics": topics_changed,
            "groups": lambda _: delivering.delivery.look_soon(),
            "checks": lambda _: checking.policies.look_soon(),
            SETTINGS_NOTICE: lambda _: storage.settings.look_soon(),
            ACCESS_NOTICE: access_changed,
        },
        on_ends=delivering.delivery.wake,
        on_connect=membership.look_soon,
    )
