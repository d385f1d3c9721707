"""The event stream of a page's live part, without a server or broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import pytest

from tests.console.desk import desk_of, look_at
from txmsg.ops.console import views
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.views import STREAMS_MAX, STREAMS_OF_USER_MAX, LiveParts, View, ViewResult

_SAME = b"event: same\ndata:\n\n"


@pytest.fixture
async def look() -> AsyncIterator[PageContext]:
    made = look_at(desk_of(rates={}))
    yield made
    await made.watch.database.close()


def _render(_: ViewResult) -> str:
    return "x"


async def test_event_stream_sends_keepalives_while_data_is_awaited(
    look: PageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_TICK_S_MAX", 0.01)
    may_read = asyncio.Event()

    async def read(_: PageContext) -> Mapping[str, Any]:
        await may_read.wait()
        return {}

    view = View(path="", section="", template="", read=read, every_s=3600.0)
    live = LiveParts()
    async with asyncio.timeout(60), aclosing(live.events(("key",), view, look, _render, lambda: True)) as events:  # type: ignore[type-var]
        assert [await anext(events) for _ in range(3)] == [b"retry: 1000\n\n", _SAME, _SAME]
        may_read.set()
        while (event := await anext(events)) == _SAME:
            pass
        assert event == b"event: part\ndata: x\n\n"
        assert [await anext(events) for _ in range(3)] == [_SAME] * 3
        live.closing.set()
        assert [event async for event in events] == []


async def test_event_stream_ends_when_its_visitor_logs_out(look: PageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_TICK_S_MAX", 0.01)

    async def read(_: PageContext) -> Mapping[str, Any]:
        return {}

    is_open = True
    view = View(path="", section="", template="", read=read, every_s=0.02)
    async with asyncio.timeout(60):
        events = LiveParts().events(("key",), view, look, _render, lambda: is_open)
        assert await anext(events) == b"retry: 1000\n\n"
        assert b"data: x" in await anext(events)
        is_open = False
        assert len([event async for event in events]) <= 3


async def test_visitors_with_different_permissions_share_no_data(look: PageContext) -> None:
    reads = 0

    async def read(_: PageContext) -> Mapping[str, Any]:
        nonlocal reads
        reads += 1
        return {}

    view = View(path="", section="", template="", read=read, every_s=3600.0)
    live = LiveParts()
    async with asyncio.timeout(60):
        for key in (("a", "/"), ("a", "/"), ("b", "/")):
            events = live.events(key, view, look, _render, lambda: True)
            await anext(events)
            assert b"data: x" in await anext(events)
    assert reads == 2


def test_event_streams_are_limited_per_user_and_some_are_reserved_for_administrators() -> None:
    live = LiveParts()

    def open_streams(user: str) -> int:
        before = live.streams
        while live.has_room(user, is_admin=user == "ops"):
            live.count(user, 1)
        return live.streams - before

    assert open_streams("notify/ann") == STREAMS_OF_USER_MAX
    assert open_streams("") == STREAMS_MAX - STREAMS_OF_USER_MAX
    assert open_streams("notify/bob") == 0
    assert open_streams("ops") > 0
    live.count("notify/ann", -1)
    assert not live.has_room("notify/ann", is_admin=False)
