"""Servers of the console and of pages stop although a login is in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import httpx2
import psycopg
import pytest

from examples.trade_dashboard.page import PAGE
from tests.console.conftest import csrf_in
from txmsg.administration import access
from txmsg.ops.console import server as console_server
from txmsg.ops.console.identity import UserIdentity
from txmsg.ops.console.user_databases import UserDatabases
from txmsg.ops.page import server as page_server
from txmsg.ops.page.board import BoardSnapshot

WAIT_S = 60.0
_AWAY = "127.0.0.1:1"
Serve = Callable[[Callable[[str], None], asyncio.Event], Coroutine[Any, Any, None]]


class SlowBrokers:
    """Brokers that accept a token when the server is already stopping."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.asked = asyncio.Event()

    async def who_am_i(self, _: object = None) -> UserIdentity:
        self.asked.set()
        await self.stop.wait()
        for _round in range(100):  # the server stops as far as it can meanwhile
            await asyncio.sleep(0)
        return UserIdentity(name="ann")

    async def ask(self, _: str) -> access.ConnectionIdentity:
        await self.who_am_i()
        return access.ConnectionIdentity(name="ann", authentication=True)


async def end_while_logging_in(serve: Serve, brokers: SlowBrokers) -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(WAIT_S):
        serving = asyncio.create_task(serve(ready.set_result, brokers.stop))
        address = await ready
        async with httpx2.AsyncClient(
            base_url=f"http://{address}", headers={"Sec-Fetch-Site": "same-origin"}
        ) as client:
            form = {"token": "txmsg_of_ann", "csrf": csrf_in((await client.get("/login")).text)}
            logging_in = asyncio.create_task(client.post("/login", data=form))
            await brokers.asked.wait()
            brokers.stop.set()
            assert (await logging_in).status_code == 303
        await serving


async def test_console_stops_during_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = SlowBrokers()
    monkeypatch.setattr(console_server, "UserDatabases", partial(UserDatabases, who_am_i=brokers.who_am_i))
    config = console_server.ConsoleConfig(databases={"notify": [_AWAY]}, listen="127.0.0.1:0")
    await end_while_logging_in(partial(console_server.serve, config), brokers)


async def test_page_server_stops_during_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: psycopg.Connection[Any]) -> BoardSnapshot:
        raise AssertionError("there is no database")

    brokers = SlowBrokers()
    monkeypatch.setattr(page_server, "asking", lambda _: brokers.ask)
    config = page_server.PageConfig(
        database="postgresql://127.0.0.1:1/nothing", channel="news", listen="127.0.0.1:0", login=[_AWAY]
    )
    await end_while_logging_in(partial(page_server.serve, config, PAGE, read), brokers)
