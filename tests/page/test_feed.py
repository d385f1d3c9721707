"""The newest bulletin goes to all subscribers, and no subscriber waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from txmsg.ops.page.feed import BulletinFeed

_WAIT_S = 30.0


async def next_of(bulletins: AsyncIterator[bytes]) -> bytes:
    return await asyncio.wait_for(anext(bulletins), _WAIT_S)


async def test_late_subscriber_starts_with_the_newest_bulletin() -> None:
    feed = BulletinFeed()
    feed.put_bulletin(b"old")
    feed.put_bulletin(b"new")
    assert feed.newest == b"new"
    assert await next_of(feed.bulletins()) == b"new"


async def test_slow_subscriber_skips_bulletins_and_gets_the_newest_once() -> None:
    feed = BulletinFeed()
    slow, quick = feed.bulletins(), feed.bulletins()
    feed.put_bulletin(b"1")
    assert await next_of(slow) == b"1"
    for bulletin in (b"2", b"3", b"4"):
        feed.put_bulletin(bulletin)
        assert await next_of(quick) == bulletin
    assert await next_of(slow) == b"4"
    waiting = asyncio.ensure_future(anext(slow))
    await asyncio.sleep(0)
    assert not waiting.done(), "a bulletin came twice"
    feed.put_bulletin(b"5")
    assert await asyncio.wait_for(waiting, _WAIT_S) == b"5"


async def test_close_ends_waiting_and_later_subscribers() -> None:
    feed = BulletinFeed()
    waiting = asyncio.ensure_future(_all(feed.bulletins()))
    await asyncio.sleep(0)
    feed.close()
    assert await asyncio.wait_for(waiting, _WAIT_S) == []
    feed.put_bulletin(b"late")
    assert await _all(feed.bulletins()) == []


async def _all(bulletins: AsyncIterator[bytes]) -> list[bytes]:
    return [bulletin async for bulletin in bulletins]
