"""Serves the console: the one place that knows all of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from txmsg.console.app import Console, all_renderers, new_app
from txmsg.console.database import Database
from txmsg.console.logs import Log
from txmsg.console.operations import Operations
from txmsg.console.security import check_listen
from txmsg.console.views import Live
from txmsg.console.watch import Watch
from txmsg.page.listening import Server, listening


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """What a console shows and where it serves."""

    databases: Mapping[str, Sequence[str]]
    """Addresses of brokers by the name of their Notify database."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """MetaQ logs by name: directories or addresses of servers."""
    listen: str = "127.0.0.1:7790"
    """HOST:PORT on loopback; port 0 takes a free one."""


async def serve(config: ConsoleConfig, on_ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Serves until `stop` is set; then ends in order, and browsers with it.

    `on_ready` is called once with the address when it answers. Raises MisuseError when it may not or cannot listen
    there.
    """
    check_listen(config.listen)
    async with AsyncExitStack() as stack:
        listener, address = stack.enter_context(listening(config.listen))
        watches = {name: Watch(Database(name, addresses)) for name, addresses in config.databases.items()}
        for watch in watches.values():
            stack.push_async_callback(watch.database.close)
        logs = {name: Log(name, where) for name, where in config.logs.items()}
        for log in logs.values():
            stack.callback(log.close)
        console = Console(watches=watches, logs=logs, operations=Operations(), live=Live(), renderers=all_renderers())
        server = Server(new_app(console))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        polling = [tasks.create_task(watch.run(), name=f"watch {name}") for name, watch in watches.items()]
        tasks.create_task(server.serve(sockets=[listener]))
        on_ready(address)  # connections are taken from here on: the socket listens
        await stop.wait()
        console.operations.stop()
        console.live.closing.set()
        server.should_exit = True
        for each in polling:
            each.cancel()
