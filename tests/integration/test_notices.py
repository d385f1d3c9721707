"""Notices between brokers, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import psycopg

from txmsg.broker.cluster import Hints, Notices
from txmsg.broker.store.connect import notify, open_pool, session

WAIT_S = 60.0


class ReceivedNotices:
    """The notices received by one broker."""

    def __init__(self) -> None:
        self.ends: list[Mapping[int, int]] = []
        self.said: list[str] = []
        self.connects = 0
        self.changed = asyncio.Condition()

    def _note(self) -> None:
        async def notify() -> None:
            async with self.changed:
                self.changed.notify_all()

        self.task = asyncio.create_task(notify())

    def on_ends(self, ends: Mapping[int, int]) -> None:
        self.ends.append(ends)
        self._note()

    def on_said(self, text: str) -> None:
        self.said.append(text)
        self._note()

    def on_connect(self) -> None:
        self.connects += 1
        self._note()

    async def hears(self, text: str) -> None:
        """Return when this is the latest notice."""
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(lambda: self.said[-1:] == [text])

    def all_ends(self) -> dict[int, int]:
        return {queue_id: end for each in self.ends for queue_id, end in each.items()}


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[tuple[Hints, ReceivedNotices]]:
    heard = ReceivedNotices()
    async with open_pool(url) as pool:
        hints = Hints(pool)
        notices = Notices(url, {"topic": heard.on_said}, on_ends=heard.on_ends, on_connect=heard.on_connect)
        tasks = {asyncio.create_task(hints.run()), asyncio.create_task(notices.run())}
        try:
            async with asyncio.timeout(WAIT_S), heard.changed:
                await heard.changed.wait_for(lambda: heard.connects > 0)
            yield hints, heard
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def say(url: str, text: str) -> None:
    async with open_pool(url) as pool, session(pool) as connection:
        await notify(connection, text)


async def test_ends_of_queues_are_notified_together_and_the_last_one_counts(notify_url: str) -> None:
    async with listening(notify_url) as (teller, _), listening(notify_url) as (_, heard):
        for n in range(3000):
            teller.hint({n % 1500: n, 77: n})
        async with asyncio.timeout(WAIT_S), heard.changed:
            await heard.changed.wait_for(lambda: len(heard.all_ends()) == 1500 and heard.all_ends()[77] == 2999)
        assert heard.all_ends()[1499] == 2999
        assert len(heard.ends) < 20, "a few notices for 6,000 ends"


async def test_a_notice_reaches_every_listener_and_invalid_ones_are_ignored(notify_url: str) -> None:
    async with listening(notify_url) as (_, first), listening(notify_url) as (_, second):
        with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:
            for nonsense in ("", "ends", "ends x:y 1 :", "unheard-of 1"):
                connection.execute("select pg_notify('txmsg', %s)", (nonsense,))
        await say(notify_url, "topic user.registered")
        for heard in (first, second):
            await heard.hears("user.registered")
            assert heard.all_ends() == {}


async def test_a_cut_listener_reconnects_and_is_told_that_notices_may_be_missing(notify_url: str) -> None:
    async with listening(notify_url) as (_, heard):
        with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'txmsg listener' "
                "and datname = current_database()"
            )
        async with asyncio.timeout(WAIT_S), heard.changed:
            await heard.changed.wait_for(lambda: heard.connects == 2)
        await say(notify_url, "topic t")
        await heard.hears("t")
