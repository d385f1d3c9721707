"""Brokers that answer every request with names, keys, bodies and errors that contain HTML."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest

from tests.console.conftest import csrf_in
from tests.console.served import IDLE, Asked, asked_console
from tests.methods import Part, made, parts_of
from txmsg.administration.dead_letters import DeadLettersService
from txmsg.administration.groups import GroupsService
from txmsg.message import datetime_of_us
from txmsg.ops.console.database import DatabaseBrokers
from txmsg.ops.console.identity import UserIdentity
from txmsg.ops.console.pages import ACTIONS, VIEWS
from txmsg.ops.console.user_databases import UserDatabases
from txmsg.wire.headers import pack_headers
from txmsg.wire.method import Method

HOSTILE = "\"'><img src=x onerror=alert(1)>\u202e\r{{7*7}}<script>alert(1)"
TRANSACTION_ID = UUID("0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01")
_AT_US = 1_780_000_000_000_000
_IDS = {"transaction_id", "fence_id", "held_back_by", "shard"}
_OFF = {"withheld", "is_withheld", "more"}
_VALUES: dict[str, Any] = {
    "headers": pack_headers({HOSTILE: HOSTILE}),
    "before": json.dumps({HOSTILE: HOSTILE}),
    "after": json.dumps({HOSTILE: [HOSTILE]}),
    "schema": json.dumps({HOSTILE: HOSTILE}),
    "permission": 6,
    "address": "127.0.0.1:1",
}


def hostile(reply: Any) -> Any:
    """Return a reply with a value in each field."""
    return made(reply, **{part.name: _values(part) for part in parts_of(reply).values()})


def _values(part: Part) -> Any:
    one = hostile(part.kind) if part.is_message else _value(part)
    return {HOSTILE: one} if part.is_map else [one] if part.is_list else one


def _value(part: Part) -> Any:  # noqa: PLR0911 - one for each kind
    if part.name in _VALUES and part.number:
        return _VALUES[part.name]
    if part.choices:
        return part.choices[0]
    if part.kind is str:
        return HOSTILE
    if part.kind is bytes:
        return TRANSACTION_ID.bytes if part.name in _IDS else HOSTILE.encode()
    if part.kind is bool:
        return part.name not in _OFF
    if part.kind is int:
        return _AT_US if part.name.endswith("_us") else 1
    return {float: 1.0, UUID: TRANSACTION_ID, datetime: datetime_of_us(_AT_US), Any: HOSTILE}[part.kind]


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Any], Any] = hostile) -> list[str]:
    """Make all brokers answer like this. Yields the names of the methods that are called."""
    asked: list[str] = []

    async def ask(_: DatabaseBrokers, method: Method[Any, Any], __: Any) -> Any:
        asked.append(method.name)
        reply = answer(method.reply)
        ends: dict[object, dict[str, Any]] = {  # operations that run until nothing is left
            GroupsService.retry_now: {"next": None},
            DeadLettersService.redrive: {"count": 0},
            DeadLettersService.purge: {"count": 0},
        }
        return replace(reply, **ends[method]) if method in ends else reply

    async def ask_at(database: DatabaseBrokers, _: str, method: Method[Any, Any], request: Any) -> Any:
        return await ask(database, method, request)

    monkeypatch.setattr(DatabaseBrokers, "ask_any", ask)
    monkeypatch.setattr(DatabaseBrokers, "ask_at", ask_at)
    return asked


PARAMETERS = {
    "transaction": str(TRANSACTION_ID),
    "id": f"{TRANSACTION_ID}.0",
    "as_of:int": "1",
    "silence:int": "1",
    "broker": HOSTILE,
    "name": HOSTILE,
    "group": HOSTILE,
    "topic": HOSTILE,
    "kind": "topic",
    "log": HOSTILE,
}
FORM = {
    "topic": HOSTILE,
    "group": HOSTILE,
    "id": PARAMETERS["id"],
    "reason": HOSTILE,
    "matchers": f"rule={HOSTILE!a}",
    "for": "2h",
    "to": "earliest",
    "value": HOSTILE,
    "version": "1",
    "permission": "r",
}
"""Form values with which each action reaches its call."""


def address(path: str) -> str:
    """Return the address of a page or action, with its parameters filled in."""
    filled = re.sub(r"\{([^}]*)\}", lambda parameter: quote(PARAMETERS[parameter[1]], safe=""), path)
    return f"/notify{filled}"


@asynccontextmanager
async def answered_console(who: UserIdentity | None = None) -> AsyncIterator[Asked]:
    """Run a console for a visitor with this identity, if any. At its end all operations have finished."""
    async with asked_console(UserDatabases({"notify": ["127.0.0.1:1"]}, IDLE)) as found:
        watch = found.desks.open["notify"].watch
        watch.who, watch.snapshot = who, await watch._poll()
        watch._remember(watch.snapshot)
        csrf = csrf_in((await found.client.get("/login")).text)
        found.client.headers.update({"Sec-Fetch-Site": "same-origin", "X-Txmsg-Csrf": csrf})
        yield found
        for thread in threading.enumerate():
            if thread.name == "txmsg-operation":
                await asyncio.to_thread(thread.join)


VIEW_PATHS = [view.path for view in VIEWS]
ACTION_PATHS = [action.path for action in ACTIONS]
