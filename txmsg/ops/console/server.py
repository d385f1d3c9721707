"""Serves the console: the only module that knows all of its parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import chain

from txmsg.ops.console.app import Console, all_renderers, new_app
from txmsg.ops.console.logs import NamedLog
from txmsg.ops.console.operations import ConsoleOperations
from txmsg.ops.console.user_databases import UserDatabases
from txmsg.ops.console.views import LiveParts
from txmsg.ops.page.listening import PageServer, listening
from txmsg.ops.page.login import sweep
from txmsg.settings.common import TlsConfig
from txmsg.wire.address import check_reach, is_local
from txmsg.wire.listening import loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """The settings of a console: databases, logs, and the address on which it listens."""

    databases: Mapping[str, Sequence[str]]
    """Addresses of brokers by the name of their Notify database."""
    logs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """MetaQ logs of each database by name: directories or addresses of servers."""
    listen: str = f"{loopback()}:7790"
    """The HOST:PORT to listen on; port 0 takes a free one."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    insecure: bool = False
    """True if the network itself keeps strangers away."""

    def __post_init__(self) -> None:
        check_reach(
            "--listen",
            self.listen,
            "tokens and pages could be read on their way",
            "give --tls-cert and --tls-key (`txmsg cert dev` makes some to try), or listen on 127.0.0.1 and reach it "
            "through `ssh -L`, or give --insecure if only trusted clients can reach the network",
            is_guarded=self.tls.cert is not None or self.insecure,
        )

    @property
    def asks_everybody(self) -> bool:
        """True if a login is needed even if brokers ask for none, because strangers reach the console."""
        return not (is_local(self.listen) or self.tls.client_ca is not None or self.insecure)


async def serve(config: ConsoleConfig, on_ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Serve until `stop` is set; then end in order, and browsers with it.

    `on_ready` is called once with the address when it answers. Raises MisuseError when it cannot listen there.
    """
    async with AsyncExitStack() as stack:
        listener, address = stack.enter_context(listening(config.listen))
        logs = {
            database: {name: NamedLog(name, where) for name, where in of_database.items()}
            for database, of_database in config.logs.items()
        }
        for log in chain.from_iterable(each.values() for each in logs.values()):
            stack.callback(log.close)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        desks = UserDatabases(config.databases, tasks, always=config.asks_everybody)
        console = Console(
            desks=desks,
            sessions=desks.new_sessions(time.monotonic),
            logs=logs,
            operations=ConsoleOperations(),
            live=LiveParts(),
            renderers=all_renderers(),
            is_local=is_local(config.listen),
        )
        server = PageServer(new_app(console), config.tls.of_server())
        sweeping = tasks.create_task(sweep(console.sessions))
        serving = tasks.create_task(server.serve(sockets=[listener]))
        on_ready(address)  # connections are taken from here on: the socket listens
        await stop.wait()
        console.operations.stop()
        console.live.closing.set()
        server.should_exit = True
        sweeping.cancel()
        await serving  # a login that is under way opens a desk
        await desks.close()
