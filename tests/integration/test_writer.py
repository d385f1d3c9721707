"""The writer: a poison item fails alone, and a read-only database does not make messages invalid."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from tests.integration.batch_harness import columns_of, notify, running_writer
from tests.raw_client import RawClient
from tests.waiting import until_async
from tests.wire.services import Answers, Echo
from txmsg.broker.config import BrokerConfig
from txmsg.broker.segments import Segments
from txmsg.broker.store.batch import AppliedBatch, WriteBatch, apply, try_to_write
from txmsg.broker.store.connect import open_pool
from txmsg.broker.writer import FAILED, Writer
from txmsg.errors import BrokerUnavailable, OutcomeUnknown, Overloaded
from txmsg.wire.handlers import Handlers
from txmsg.wire.server import WireServer
from txmsg.wire.shared import ConnectionLimits, Shared
from txmsg.wire.v1.txmsg_pb2 import HeldReply, HeldRequest


def _writable(url: str) -> str:
    """Return the same database with sessions that may write whatever its default is."""
    options = {"options": "-cdefault_transaction_read_only=off"}
    return make_url(url).update_query_dict(options).render_as_string(hide_password=False)


async def test_a_poison_item_in_a_batch_fails_alone(notify_url: str) -> None:
    async with running_writer(BrokerConfig(storage=notify_url)) as (writer, queue, ends):
        plain = columns_of([queue] * 100)
        plain.key[-1] = "poison\0"  # the service refuses it, and so does the database
        problems = await writer.write(WriteBatch(plain=plain), 100)
        assert problems == {plain.transaction_id[-1]: FAILED}
        assert ends == {queue: 99}


async def test_a_rotation_by_another_broker_is_followed(notify_url: str) -> None:
    async with running_writer(BrokerConfig(storage=notify_url)) as (writer, queue, ends):
        await writer.write(WriteBatch(plain=columns_of([queue])), 1)
        with psycopg.connect(notify_url) as other:
            other.execute("select txmsg.rotate(1)")
        assert await writer.write(WriteBatch(plain=columns_of([queue])), 1) == {}
        assert ends == {queue: 2}


async def test_a_read_only_database_is_unavailable_and_blames_no_message(notify_url: str) -> None:
    with psycopg.connect(notify_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set default_transaction_read_only = on'.encode())

    config = BrokerConfig(storage=notify_url, request_timeout_s=0.5)
    pool_config = BrokerConfig(storage=_writable(notify_url))
    async with running_writer(pool_config, running=False) as (_, queue, _ends):
        pool = open_pool(notify_url)
        await pool.open(wait=True)
        segments = Segments(pool, config)
        await segments.refresh()
        writer = Writer(config, segments, on_ends=lambda _: None)
        task = asyncio.create_task(writer.run())
        error: Exception | None = None
        async with asyncio.timeout(120):
            # The answer of the database may arrive after the timeout of the request.
            while not (isinstance(error, OutcomeUnknown) and "read-only" in str(error)):
                with pytest.raises((OutcomeUnknown, BrokerUnavailable)) as refused:
                    await writer.write(WriteBatch(plain=columns_of([queue])), 1)
                error = refused.value
        # No client sends any more, as after a failed /readyz: the writer itself finds that it can write again.
        await until_async(lambda: "read-only" in writer.trouble)
        with psycopg.connect(_writable(notify_url), autocommit=True) as connection:
            connection.execute(f'alter database "{name}" reset default_transaction_read_only'.encode())
        await until_async(lambda: not writer.trouble)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await pool.close()


async def test_the_write_probe_leaves_no_rows(notify_url: str) -> None:
    async with notify(notify_url) as database:
        await try_to_write(database.connection)
        assert await database.rows("select from txmsg.message union all select from txmsg.half_message") == []


async def test_senders_wait_for_a_full_queue_and_are_then_refused(notify_url: str) -> None:
    config = BrokerConfig(storage=notify_url, waiting_items_max=1, request_timeout_s=0.2)
    async with running_writer(config, running=False) as (writer, queue, _):
        first = asyncio.create_task(writer.write(WriteBatch(plain=columns_of([queue])), 1))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="nothing was stored"):
            await writer.write(WriteBatch(plain=columns_of([queue])), 1)
        with pytest.raises(BrokerUnavailable):
            await first


async def test_a_batch_takes_half_of_many_waiting_items(notify_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all senders would be answered together and send together again."""
    sizes: list[int] = []

    async def counted(connection: Any, batch: WriteBatch, **how: Any) -> AppliedBatch:
        sizes.append(len(batch))
        return await apply(connection, batch, **how)

    monkeypatch.setattr("txmsg.broker.writer.apply", counted)
    async with running_writer(BrokerConfig(storage=notify_url), running=False) as (writer, queue, ends):
        written = [asyncio.create_task(writer.write(WriteBatch(plain=columns_of([queue] * 50)), 1)) for _ in range(8)]
        await until_async(lambda: writer.waiting_items == 400)
        running = asyncio.create_task(writer.run())
        assert list(await asyncio.gather(*written)) == [{}] * 8
        writer.close()
        await running
    assert sizes == [200, 100, 100]
    assert ends == {queue: 400}


async def test_a_write_cancelled_by_its_sender_is_not_started(notify_url: str) -> None:
    async with running_writer(BrokerConfig(storage=notify_url), running=False) as (writer, queue, ends):
        given_up, wanted = (
            asyncio.create_task(writer.write(WriteBatch(plain=columns_of([queue])), 1)) for _ in range(2)
        )
        await until_async(lambda: writer.waiting_items == 2)
        given_up.cancel()
        await asyncio.wait([given_up])
        running = asyncio.create_task(writer.run())
        assert await wanted == {}
        writer.close()
        await running
    assert given_up.cancelled()
    assert ends == {queue: 1}


async def test_a_call_that_timed_out_before_its_batch_is_not_started(notify_url: str) -> None:
    """Its caller only gives a timeout, and never cancels."""

    class Storing(Answers):
        async def wait(self, request: HeldRequest) -> HeldReply:
            await writer.write(WriteBatch(plain=columns_of([queue])), 1)
            return HeldReply(held=request.transaction_ids)

    async with running_writer(BrokerConfig(storage=notify_url), running=False) as (writer, queue, ends):
        server = WireServer(
            Handlers({Echo: Storing()}), Shared(connections_max=1, limits=ConnectionLimits(look_s=0.01))
        )
        address = await server.bind("127.0.0.1:0")
        await server.start()
        with RawClient(address) as client:
            client.begin("Echo/Wait", b"", timeout_ms=100)
            patient = client.begin("Echo/Wait", b"")
            await until_async(lambda: writer.waiting_items == 2)
            [connection] = server.shared.connections
            await until_async(lambda: connection.calls_in_flight == 1)
            running = asyncio.create_task(writer.run())
            assert (await asyncio.to_thread(client.answer, patient)).reply == b""
            writer.close()
            await running
        await server.stop(0)
    assert ends == {queue: 1}


async def test_a_sender_waiting_for_room_can_give_up_and_leaves_nothing(notify_url: str) -> None:
    config = BrokerConfig(storage=notify_url, waiting_items_max=1)
    async with running_writer(config, running=False) as (writer, queue, ends):
        first = asyncio.create_task(writer.write(WriteBatch(plain=columns_of([queue])), 1))
        await until_async(lambda: writer.waiting_items == 1)
        second = asyncio.create_task(writer.write(WriteBatch(plain=columns_of([queue])), 1))
        third = asyncio.create_task(writer.write(WriteBatch(plain=columns_of([queue])), 1))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        assert writer.waiting_items == 1
        running = asyncio.create_task(writer.run())
        assert [await first, await third] == [{}, {}]
        writer.close()
        await running
    assert second.cancelled()
    assert ends == {queue: 2}
