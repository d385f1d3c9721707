"""Serves RocketMQ's clients: the only module that knows all parts of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

from txmsg.client.attach import AttachedStreams
from txmsg.client.channel import Brokers, knock
from txmsg.errors import MisuseError, TxmsgError
from txmsg.metrics.figures import Figures
from txmsg.metrics.http import Probes, serving
from txmsg.rocketmq.admission import CallAdmission
from txmsg.rocketmq.agreements import Agreements
from txmsg.rocketmq.api import Api
from txmsg.rocketmq.clients import GatewayClients
from txmsg.rocketmq.config import GatewayConfig
from txmsg.rocketmq.figures import figures_of, unready
from txmsg.rocketmq.grpc.port import HTTP2, Port
from txmsg.rocketmq.guarded_admission import GuardedCallAdmission
from txmsg.rocketmq.parts import GatewayParts
from txmsg.rocketmq.receivers import Receivers
from txmsg.rocketmq.requests import REQUEST_SIZE_BYTES_MAX
from txmsg.rocketmq.routes import TopicRoutes
from txmsg.rocketmq.senders import Senders
from txmsg.rocketmq.tasks import Tasks
from txmsg.runtime.logs import EventLog, set_log_level
from txmsg.settings.live import GivenSettings
from txmsg.wire.access.keys import KeyFile
from txmsg.wire.address import host_and_port
from txmsg.wire.listening import connections_allowed
from txmsg.wire.tls import ServerTls
from txmsg.wire.users import UsersOfBrokers
from txmsg.wire.v1.txmsg_pb2 import RouteChanged, RouteRequest
from txmsg.wire.v1.txmsg_rpc import Notify

_log = EventLog(__name__)

_CLOSE_S_MAX = 5.0
"""Maximum seconds for running calls at the end."""
_RETURN_S_MAX = 1.0
"""Maximum seconds after that for giving back messages that did not reach their clients."""
_LOOK_S = 1.0
"""Seconds between two checks of the TLS files."""
_READINESS_S = 5.0
"""Seconds between two checks of readiness."""
_USERS_AGE_S_MAX = 300.0
"""Maximum seconds that users and rules hold while no broker answers. After that, all callers are refused."""
_CONNECTIONS_MAX = 16_000
"""Maximum connections; fewer if the process may not open that many files."""
_RESERVE = 16
"""Connections of administrators beyond them, if calls are signed."""
_CALLS_MAX = 16_384
"""Maximum concurrent calls: for 1,000 clients with a stream each, and receives on 5 topics at 3 brokers."""
_CALLS_OF_CONNECTION_MAX = 1024
"""Maximum concurrent calls of a connection; a client waits before it makes more."""
_REQUESTS_SIZE_BYTES_MAX = 1024**3
"""Maximum bytes of requests in memory, half of it of one client, which could begin 1,024 sends of 8 MiB each. Beyond
it, requests of more than 64 KiB fail."""
_TIMEOUT_S = 2.5
"""Seconds of a send at brokers: clients wait for 3 s by default."""


async def serve(given: GivenSettings[GatewayConfig], on_ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then shut down in order.

    `on_ready` is called once with the address when it accepts clients. Raises MisuseError if it cannot listen there, or
    a file cannot be used; Unauthenticated and PermissionDenied if brokers do not admit it, or do not give it users.
    """
    config = given.config
    set_log_level("info", of="hpack")  # at debug it logs each header, and so access keys and signatures
    given.use = lambda changed: set_log_level(changed.log_level)
    await knock(Brokers(config.brokers()))
    brokers = Brokers(config.brokers())
    # Two parents, because the stack ends them in turn: messages are given back after all other tasks have ended, and
    # while brokers can still be reached.
    standing, returning = Tasks(), Tasks()
    senders = Senders(brokers, timeout_s=_TIMEOUT_S)
    receivers, clients = Receivers(brokers, returning), GatewayClients(brokers, standing)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(brokers.close)
        await learn(brokers)
        stack.push_async_callback(returning.close, _RETURN_S_MAX)
        stack.push_async_callback(standing.close)
        door = (
            CallAdmission() if config.access_key_file is None else await _door(config, config.access_key_file, standing)
        )
        api = Api(senders, receivers, clients, TopicRoutes(brokers), Agreements(brokers), door=door)
        port = made_port(api, reserve=0 if config.access_key_file is None else _RESERVE)
        presence = AttachedStreams(brokers, client_id=uuid4().hex)
        standing.start(presence.run(), name="rocketmq-routes")
        standing.start(receivers.renew(), name="rocketmq-renewals")
        parts = GatewayParts(config, brokers, presence, clients, receivers, door, api, port, stop)
        tls = config.tls.of_server()
        if tls is not None:
            standing.start(_renewed(tls), name="rocketmq-tls")
        standing.start(_tell_readiness(parts), name="rocketmq-readiness")
        async with serving(config.http_listen, _probes(parts), tls, config.http_token_file):
            on_ready(await _listening(parts, tls))
            await stop.wait()
            _log.info("server.stopping", "stopping: calls under way have %(timeout_s)g s", timeout_s=_CLOSE_S_MAX)
            # In this order: waiting receives return, running calls end, and senders store what they have accepted.
            api.stop()
            await parts.port.stop(_CLOSE_S_MAX)
            await senders.drain()


async def _tell_readiness(parts: GatewayParts) -> None:
    """Log why clients cannot be served, when that begins, and when it is over."""
    told = ""
    while True:
        await asyncio.sleep(_READINESS_S)
        reason = unready(parts)
        if reason and not told:
            _log.warning("rocketmq.not_ready", "clients cannot be served: %(reason)s", reason=reason)
        elif told and not reason:
            _log.info("rocketmq.ready", "clients can be served again")
        told = reason


def _probes(parts: GatewayParts) -> Probes:
    async def read() -> Figures:
        return figures_of(parts)

    return Probes(figures=read, unready=partial(unready, parts))


def made_port(api: Api, *, reserve: int = 0) -> Port:
    """Return a port with these methods, and with bounds on concurrent calls, above which calls fail."""
    return Port(
        api.methods(),
        connections_max=connections_allowed(_CONNECTIONS_MAX),
        reserve=reserve,
        calls_max=_CALLS_MAX,
        calls_of_connection_max=_CALLS_OF_CONNECTION_MAX,
        request_size_bytes_max=REQUEST_SIZE_BYTES_MAX,
        requests_size_bytes_max=_REQUESTS_SIZE_BYTES_MAX,
    )


async def _door(config: GatewayConfig, access_key_file: Path, standing: Tasks) -> GuardedCallAdmission:
    users = UsersOfBrokers(config.brokers(), age_s_max=_USERS_AGE_S_MAX, access_keys=True)
    door = GuardedCallAdmission(users.guard, KeyFile(access_key_file), window_s=config.signature_window_s)
    await users.knock()
    standing.start(users.run(), name="rocketmq-users")
    return door


async def learn(brokers: Brokers) -> None:
    """Ask each given broker for its name and the other brokers, because clients may have handles of any of them.

    A broker that does not answer is learned as soon as it does.
    """
    await asyncio.gather(*(_learn_from(brokers, address) for address in brokers.addresses))


async def _learn_from(brokers: Brokers, address: str) -> None:
    with suppress(TxmsgError):
        told = await brokers.channel(address).call(Notify.route, RouteRequest(), timeout_s=_TIMEOUT_S)
        route = RouteChanged(
            brokers=told.brokers, this=told.this, draining=told.draining, shard=told.shard, is_cut_off=told.is_cut_off
        )
        brokers.learn(address, route)


async def _listening(parts: GatewayParts, tls: ServerTls | None) -> str:
    """Accept clients from now on. Returns the address. Raises MisuseError."""
    listen = parts.config.listen
    try:
        number = await parts.port.start(listen, None if tls is None else tls.for_web(HTTP2))
    except (OSError, UnicodeError) as exc:
        why = getattr(exc, "strerror", None) or exc
        raise MisuseError(
            f"cannot listen on {listen} ({why}): look with `ss -ltnp`, or give another --listen HOST:PORT "
            "(port 0: a free one)"
        ) from None
    host, _ = host_and_port(listen)
    address = f"{host}:{number}"
    _log.info(
        "rocketmq.started",
        "the gateway listens on %(listen)s, and uses the brokers %(brokers)s",
        listen=address,
        brokers=", ".join(parts.brokers.addresses),
    )
    return address


async def _renewed(tls: ServerTls) -> None:
    """Check the TLS files for changes, even while no client connects, so that an expiring certificate is logged."""
    while True:
        await asyncio.sleep(_LOOK_S)
        tls.renew()
