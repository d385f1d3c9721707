"""A console in the test's own event loop, without a socket and without polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from txmsg.ops.console.app import Console, all_renderers, new_app
from txmsg.ops.console.logs import NamedLog
from txmsg.ops.console.operations import ConsoleOperations
from txmsg.ops.console.user_databases import UserDatabase, UserDatabases
from txmsg.ops.console.views import LiveParts
from txmsg.ops.page.sessions import LoginSessions


class _Idle(asyncio.TaskGroup):
    """Parents of tasks that end at once."""

    def create_task(self, coro: Any, **_: Any) -> asyncio.Task[Any]:
        coro.close()
        return asyncio.create_task(asyncio.sleep(0))


IDLE = _Idle()


class Clock:
    """A clock set by the test, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Asked:
    """A console and a browser."""

    client: httpx2.AsyncClient
    desks: UserDatabases
    sessions: LoginSessions[UserDatabase]
    console: Console


@asynccontextmanager
async def asked_console(
    desks: UserDatabases,
    *,
    clock: Clock | None = None,
    origin: str = "http://127.0.0.1:7790",
    is_local: bool = True,
    logs: Mapping[str, Mapping[str, NamedLog]] | None = None,
) -> AsyncIterator[Asked]:
    sessions = desks.new_sessions(clock or Clock())
    console = Console(
        desks=desks,
        sessions=sessions,
        logs=logs or {},
        operations=ConsoleOperations(),
        live=LiveParts(),
        renderers=all_renderers(),
        is_local=is_local,
    )
    transport = httpx2.ASGITransport(app=new_app(console))
    async with httpx2.AsyncClient(transport=transport, base_url=origin) as client:
        yield Asked(client, desks, sessions, console)
    await desks.close()
