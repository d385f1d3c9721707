"""The writer: a poison item fails alone, a database that cannot write makes nobody's message invalid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import psycopg
import pytest
from sqlalchemy.engine import make_url

from txmsg.broker.config import BrokerConfig
from txmsg.broker.segments import Segments
from txmsg.broker.store.batch import Batch, Columns
from txmsg.broker.store.connect import open_pool
from txmsg.broker.store.topics import TopicRegistry
from txmsg.broker.writer import FAILED, Writer
from txmsg.errors import BrokerUnavailable, Overloaded
from txmsg.message import new_transaction_id


def _columns(queue: int, keys: list[str]) -> Columns:
    count = len(keys)
    return Columns(
        ids=[new_transaction_id().bytes for _ in keys],
        n=[0] * count,
        queue=[queue] * count,
        producer=[1] * count,
        key=keys,
        tag=[""] * count,
        headers=[b""] * count,
        body=[b"body"] * count,
        born_at_us=[time.time_ns() // 1000] * count,
    )


def _writable(url: str) -> str:
    """The same database for sessions that may write whatever its default is."""
    options = {"options": "-cdefault_transaction_read_only=off"}
    return make_url(url).update_query_dict(options).render_as_string(hide_password=False)


@asynccontextmanager
async def _writer(config: BrokerConfig, *, running: bool = True) -> AsyncIterator[tuple[Writer, int, dict[int, int]]]:
    """A writer, the id of a queue, and the ends it reports."""
    pool = open_pool(config.storage)
    await pool.open(wait=True)
    topic = await TopicRegistry(pool, auto_create=True, queues=1).ensure("orders")
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


def test_a_poison_item_fails_alone_in_a_batch(notify_url: str) -> None:
    async def run() -> None:
        async with _writer(BrokerConfig(storage=notify_url)) as (writer, queue, ends):
            plain = _columns(queue, ["k"] * 99 + ["poison\0"])  # the service refuses it; the database does, too
            problems = await writer.write(Batch(plain=plain), 100)
            assert problems == {plain.ids[-1]: FAILED}
            assert ends == {queue: 99}

    asyncio.run(run())


def test_a_rotation_by_another_broker_is_followed(notify_url: str) -> None:
    async def run() -> None:
        async with _writer(BrokerConfig(storage=notify_url)) as (writer, queue, ends):
            await writer.write(Batch(plain=_columns(queue, [""])), 1)
            with psycopg.connect(notify_url) as other:
                other.execute("select txmsg.rotate_1(1)")
            assert await writer.write(Batch(plain=_columns(queue, [""])), 1) == {}
            assert ends == {queue: 2}

    asyncio.run(run())


def test_a_read_only_database_is_unavailable_and_no_message_is_called_invalid(notify_url: str) -> None:
    with psycopg.connect(notify_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set default_transaction_read_only = on'.encode())

    async def run() -> None:
        config = BrokerConfig(storage=notify_url, request_timeout_s=0.5)
        pool_config = BrokerConfig(storage=_writable(notify_url))
        async with _writer(pool_config, running=False) as (_, queue, _ends):
            pool = open_pool(notify_url)
            await pool.open(wait=True)
            segments = Segments(pool, config)
            await segments.refresh()
            writer = Writer(config, segments, on_ends=lambda _: None)
            task = asyncio.create_task(writer.run())
            with pytest.raises(BrokerUnavailable, match="read-only"):
                await writer.write(Batch(plain=_columns(queue, [""])), 1)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await pool.close()

    asyncio.run(run())


def test_when_as_much_waits_as_is_kept_senders_wait_and_are_then_refused(notify_url: str) -> None:
    async def run() -> None:
        config = BrokerConfig(storage=notify_url, waiting_items_max=1, request_timeout_s=0.2)
        async with _writer(config, running=False) as (writer, queue, _):
            first = asyncio.create_task(writer.write(Batch(plain=_columns(queue, [""])), 1))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="nothing was stored"):
                await writer.write(Batch(plain=_columns(queue, [""])), 1)
            with pytest.raises(BrokerUnavailable):
                await first

    asyncio.run(run())
