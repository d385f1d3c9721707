"""Fixtures for tests of the batch function: a Notify database and a writer session as in a broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from txmsg.broker.config import BrokerConfig
from txmsg.broker.segments import Segments
from txmsg.broker.store.batch import AppliedBatch, WriteBatch, apply
from txmsg.broker.store.connect import connect_writer, open_pool
from txmsg.broker.store.prepared import PreparedConnection
from txmsg.broker.store.topics import TopicRegistry
from txmsg.broker.writer import Writer
from txmsg.message import QueueId, new_transaction_id_bytes
from txmsg.message.columns import Columns


def columns_of(queues: Sequence[int], *, ids: list[bytes] | None = None, producer: int = 1) -> Columns:
    """Return columns with one message per named queue, under new ids unless given."""
    count = len(queues)
    return Columns(
        transaction_id=ids or [new_transaction_id_bytes() for _ in queues],
        n=[0] * count,
        queue=[QueueId(queue) for queue in queues],
        producer=[producer] * count,
        key=[""] * count,
        tag=[""] * count,
        headers=[b""] * count,
        body=[b"body"] * count,
        born_at_us=[time.time_ns() // 1000] * count,
        ordering_key=[""] * count,
        deliver_at_us=[0] * count,
    )


@dataclass
class Notify:
    """A Notify database with a topic of four queues, a producer, and one writer session."""

    url: str
    queues: tuple[QueueId, ...]
    producer: int
    connection: PreparedConnection

    def columns(self, count: int, *, ids: list[bytes] | None = None) -> Columns:
        ids = ids or [new_transaction_id_bytes() for _ in range(count)]
        return columns_of(
            [self.queues[transaction_id[-1] % 4] for transaction_id in ids], ids=ids, producer=self.producer
        )

    async def apply(self, batch: WriteBatch, *, segment: int = 1, previous: int = 0) -> AppliedBatch:
        return await apply(self.connection, batch, segment=segment, previous=previous, first_check_s=6)

    async def assert_dense(self) -> None:
        """Check I4: offsets of every queue are 0, 1, 2, ... without a gap or a repeat."""
        bad = await self.rows(
            "select queue from txmsg.message group by queue having min(queue_offset) <> 0 "
            "or max(queue_offset) <> count(*) - 1 or count(distinct queue_offset) <> count(*)"
        )
        assert bad == []

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = await self.connection.execute(statement.encode())
        return await cursor.fetchall()


@asynccontextmanager
async def notify(url: str) -> AsyncIterator[Notify]:
    pool = open_pool(url)
    await pool.open(wait=True)
    topics = TopicRegistry(pool, auto_create=True, queues=4)
    topic = await topics.ensure("orders")
    producer = await topics.producer("shop", b"")
    async with await connect_writer(url, lock_timeout_s=60, transaction_timeout_s=120) as connection:
        yield Notify(url, topic.queue_ids, producer, connection)
    await pool.close()


@asynccontextmanager
async def running_writer(
    config: BrokerConfig, *, running: bool = True
) -> AsyncIterator[tuple[Writer, int, dict[int, int]]]:
    """Yield a running writer, the id of a queue, and the ends that it reports."""
    pool = open_pool(config.storage)
    await pool.open(wait=True)
    topics = TopicRegistry(pool, auto_create=True, queues=1)
    topic = await topics.ensure("orders")
    assert await topics.producer("shop", b"") == 1, "what columns_of names"
    segments = Segments(pool, config)
    await segments.refresh()
    ends: dict[int, int] = {}

    def note(grown: Mapping[int, int]) -> None:
        ends.update(grown)

    writer = Writer(config, segments, on_ends=note)
    task = asyncio.create_task(writer.run()) if running else None
    yield writer, topic.queue_ids[0], ends
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await pool.close()
