"""A broker that runs: waits for its database, serves until it is stopped, then ends in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from txmsg.broker import migrate
from txmsg.broker.alerts.alerting import Alerting
from txmsg.broker.config import BrokerConfig
from txmsg.broker.figures import BrokerFigures, unready
from txmsg.broker.parts import BrokerParts
from txmsg.broker.segments import Segments
from txmsg.broker.services import handlers_of
from txmsg.broker.store.connect import ADMIN_POOL_SIZE_MAX, Pool, open_pool
from txmsg.broker.store.incarnation import current_incarnation
from txmsg.errors import BrokerUnavailable, StorageError
from txmsg.metrics.http import Probes, serving
from txmsg.runtime.logs import EventLog
from txmsg.settings.live import GivenSettings
from txmsg.wire.server import CLOSING_S_MAX, WireServer

_log = EventLog(__name__)

_START_PAUSE_S = 1.0
_ADMIN_STATEMENT_S_MAX = 10.0
"""Seconds that a statement of administration may take. Then the server cancels it, and the command reports that."""
_CLOSE_S_MAX = 3.0
"""Seconds at a stop for writing cursors and leaving the cluster, and for closing connections."""
_WRITE_S_MIN = 1.0
"""Minimum seconds at a stop for writing what was accepted, when requests in progress have used up the time."""


class BrokerServer:
    """The parts of a broker, its metrics, alerts and services. `run` runs all of it."""

    def __init__(
        self, given: GivenSettings[BrokerConfig], pool: Pool, admin_pool: Pool, segments: Segments, stop: asyncio.Event
    ) -> None:
        self.parts = parts = BrokerParts(given, pool, admin_pool, segments, stop)
        self.figures = BrokerFigures(parts)
        membership = parts.delivering.membership
        self.alerting = Alerting(
            given.config, admin_pool, self.figures.read, has_joined=lambda: bool(membership.brokers)
        )
        parts.storage.settings.on_change(self.alerting.apply_settings)
        self.server = WireServer(handlers_of(parts, self.figures, self.alerting), parts.shared)

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the tasks that run until the broker stops, by name, without the writers, which end later."""
        parts = self.parts
        storage, delivering, checking, admitting = parts.storage, parts.delivering, parts.checking, parts.admitting
        access = {} if admitting.access is None else {"access": admitting.access.run()}
        return access | {
            "segments": storage.segments.run(),
            "retention": storage.retention.run(),
            "topics": storage.topics.run(parts.config.topic_refresh_s),
            "checks": checking.checks.run(),
            "check policies": checking.policies.run(),
            "settings": storage.settings.run(),
            "scheduler": parts.sending.scheduler.run(),
            "delivery": delivering.delivery.run(),
            "membership": delivering.membership.run(),
            "hints": delivering.hints.run(),
            "notices": parts.notices.run(),
            "figures": self.figures.database.run(),
            "alerts": self.alerting.run(),
            "audit log": admitting.audit.run(),
            "journal": delivering.journal_writer.run(),
            "waits": parts.waits.run(),
        }

    async def run(self, on_ready: Callable[[str], None]) -> None:
        """Serve until `stop` is set, then end in order."""
        parts, config = self.parts, self.parts.config
        address = await self.server.bind(config.listen)
        parts.delivering.membership.address = config.advertise or _reachable(address)
        probes = Probes(figures=self.figures.read, unready=partial(unready, parts))
        async with (
            serving(config.http_listen, probes, parts.shared.tls, config.http_token_file),
            asyncio.TaskGroup() as tasks,
        ):
            writing = tasks.create_task(parts.sending.writers.run(), name="writers")
            background = [tasks.create_task(running, name=name) for name, running in self.background().items()]
            try:
                if (access := parts.admitting.access) is not None:
                    with suppress(BrokerUnavailable):  # `background` keeps trying; until then all calls are refused
                        await access.refresh_once()
                await self.server.start()
                _log.info(
                    "broker.started",
                    "broker %(broker)s listens on %(listen)s, and is known as %(advertise)s",
                    broker=config.broker_id,
                    listen=address,
                    advertise=parts.delivering.membership.address,
                )
                on_ready(address)
                await parts.stop.wait()
            finally:
                await self._stop_parts(writing)
                for task in (writing, *background):
                    task.cancel()
                await asyncio.wait((writing, *background))

    async def _stop_parts(self, writing: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        config, delivering, writers = self.parts.config, self.parts.delivering, self.parts.sending.writers
        _log.info(
            "server.stopping",
            "stopping: this takes %(timeout_s)g s at most",
            timeout_s=stop_s_max(config),
        )
        deadline = loop.time() + config.stop_timeout_s
        delivering.delivery.drain()
        self.parts.storage.settings.close()
        if (access := self.parts.admitting.access) is not None:
            access.close()
        # While the server still takes acknowledgements: the queues go to other brokers with nothing in flight.
        try:
            async with asyncio.timeout(config.delivery.hand_over_s + _CLOSE_S_MAX):
                await delivering.delivery.close()
        except (BrokerUnavailable, TimeoutError) as exc:
            _log.warning(
                "broker.cursors_unwritten",
                "cursors were not written, their messages are redelivered: %(error)s",
                error=exc or "no answer in time",
            )
        # Requests in progress may still need the writers, so these end after the server.
        await self.server.stop(self.parts.config.stop_timeout_s)
        writers.close()
        await asyncio.wait([writing], timeout=max(deadline - loop.time(), _WRITE_S_MIN))
        await delivering.journal_writer.close(_WRITE_S_MIN)


def stop_s_max(config: BrokerConfig) -> float:
    """Return the maximum seconds of a graceful stop: SIGKILL must come later than that."""
    delivery_s = config.delivery.hand_over_s + _CLOSE_S_MAX
    requests_s = config.stop_timeout_s + CLOSING_S_MAX
    pools_s = 2 * _CLOSE_S_MAX
    return delivery_s + requests_s + _WRITE_S_MIN + pools_s


async def serve(
    given: GivenSettings[BrokerConfig],
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
    *,
    on_made: Callable[[BrokerServer], None] = lambda _: None,
) -> None:
    """Run a broker until `stop` is set, then end in order: accepted messages are written, cursors are flushed.

    `on_made` is called once with the broker before it serves, `on_ready` once with the address HOST:PORT when it
    answers. Raises SchemaMismatch or StorageError if the database cannot be used at the start, MisuseError if the port
    is taken; later the database may go and return.
    """
    config = given.config
    pool = open_pool(config.storage)
    # Requests of operators may take long, and must not take connections from delivery and checks.
    admin_pool = open_pool(config.storage, size_max=ADMIN_POOL_SIZE_MAX, statement_timeout_s=_ADMIN_STATEMENT_S_MAX)
    # One for both pools: when a statement of either finds that the database went back, all memory is dropped.
    admin_pool.incarnation = pool.incarnation
    await pool.open()
    await admin_pool.open()
    try:
        segments = Segments(pool, config)
        if await _wait_for_database(config, pool, segments, stop):
            broker = BrokerServer(given, pool, admin_pool, segments, stop)
            on_made(broker)
            await broker.run(on_ready)
    finally:
        await admin_pool.close(_CLOSE_S_MAX)
        await pool.close(_CLOSE_S_MAX)


async def _wait_for_database(config: BrokerConfig, pool: Pool, segments: Segments, stop: asyncio.Event) -> bool:
    """Read the state with which a broker starts. False if it was stopped meanwhile.

    Waits up to storage_wait_s for a database that is not there yet, as when both are started together. Raises the
    errors of `migrate.require`: at once if waiting cannot help, as with a wrong password.
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
    """Return the address by which others reach a broker that listens on all addresses of its machine."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in {"0.0.0.0", "[::]"} else address
