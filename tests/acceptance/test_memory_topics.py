"""A crash of PostgreSQL with topics of durability memory: they may lose their messages, nothing else, and continue."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import psycopg
import pytest

from tests.broker_process import running_broker
from txmsg.administration.topics import TopicChange
from txmsg.broker import migrate
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.broker.store.connect import open_pool
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.broker.store.topics import TopicRegistry
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.message import Message, ReceivedMessage, TransactionState

TOPICS = ("orders", "quotes")
"""The second one is in memory."""
COUNT = 30


class Reader:
    """A group that reads both topics, with the messages received from each."""

    def __init__(self, address: str, group: str) -> None:
        self.got: defaultdict[str, list[bytes]] = defaultdict(list)
        self._news = asyncio.Event()
        self.consumer = AsyncConsumer(address, group=group)
        for topic in TOPICS:
            self.consumer.subscribe(topic)(self._note)

    async def _note(self, message: ReceivedMessage) -> None:
        self.got[message.topic].append(message.body)
        self._news.set()

    async def until(self, topic: str, wanted: set[bytes]) -> None:
        async with asyncio.timeout(60):
            while not wanted <= set(self.got[topic]):
                self._news.clear()
                await self._news.wait()


async def create_topics(url: str) -> None:
    async with open_pool(url) as pool:
        registry = TopicRegistry(pool, auto_create=True, queues=3)
        for topic in TOPICS:
            await registry.ensure(topic)
        await TopicAdministration(pool).alter("quotes", TopicChange(durability="memory"))


async def send(producer: AsyncProducer, when: str) -> dict[str, set[bytes]]:
    """Send COUNT messages into each topic, half plain, half in transactions of both topics, and return their bodies."""
    bodies = [f"{when} {number}".encode() for number in range(COUNT)]
    await producer.send_many([Message(topic, body) for topic in TOPICS for body in bodies[::2]])
    for body in bodies[1::2]:
        half = await producer.half([Message(topic, body) for topic in TOPICS])
        await producer.end(half, TransactionState.COMMIT)
    return {topic: set(bodies) for topic in TOPICS}


def cursors_beyond_their_queues(url: str) -> list[tuple[object, ...]]:
    """Return cursors outside the current range of their queue."""
    with psycopg.connect(url, connect_timeout=10) as connection:
        return connection.execute(
            """
            select c.group_id, t.name, q.number, c.next_offset, m.first, m.after from txmsg.cursor c
              join txmsg.queue q on q.id = c.queue_id join txmsg.topic t on t.id = q.topic_id
              join (select queue, min(queue_offset) as first, max(queue_offset) + 1 as after, count(*)
                      from txmsg.message group by queue) m on m.queue = q.id
             where c.next_offset not between m.first and m.after or m.after - m.first <> m.count
            """
        ).fetchall()


@pytest.mark.takes_long
@pytest.mark.parametrize("crash", [True, False], ids=["killed", "stopped"])
async def test_only_memory_messages_are_lost_and_only_by_a_crash(tmp_path: Path, crash: bool) -> None:
    with EmbeddedPostgres(tmp_path / "data") as server:
        url = server.create_database("notify")
        migrate.upgrade(url)
        with running_broker(url, log=tmp_path / "broker.log") as broker:
            await create_topics(url)
            always = Reader(broker.address, "always")
            async with AsyncProducer(broker.address, group="shop", timeout_s=60) as producer, always.consumer:
                before = await send(producer, "before")
                for topic in TOPICS:
                    await always.until(topic, before[topic])
                await asyncio.to_thread(server.restart, crash=crash)
                after = await send(producer, "after")
                for topic in TOPICS:
                    await always.until(topic, after[topic])
            later = Reader(broker.address, "later")
            async with later.consumer:
                await later.until("orders", before["orders"] | after["orders"])
                await later.until("quotes", after["quotes"] if crash else before["quotes"] | after["quotes"])
                assert before["quotes"].isdisjoint(later.got["quotes"]) is crash
        # Its end has written the cursors.
        assert cursors_beyond_their_queues(url) == []
