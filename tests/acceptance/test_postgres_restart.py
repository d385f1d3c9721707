"""PostgreSQL is killed or stopped under load and started again: the broker stays, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from txmsg.broker import migrate
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.embedded import EmbeddedPostgres
from txmsg.message import Message, MessageId, ReceivedMessage, TransactionState

_SENDS = 400
_RESTART_AFTER = 100


async def _send_across_a_restart(address: str, server: EmbeddedPostgres, *, crash: bool) -> set[MessageId]:
    """Sends transactions one after the other in ten tasks; the server is restarted after the first hundred."""
    committed: set[MessageId] = set()
    restart = asyncio.Event()

    async def sender(producer: AsyncProducer, number: int) -> None:
        for turn in range(_SENDS // 10):
            half = await producer.half([Message("orders", f"{number}-{turn}".encode())])
            await producer.end(half, TransactionState.COMMIT)
            committed.add(MessageId(f"{half.transaction_id}.0"))
            if len(committed) >= _RESTART_AFTER:
                restart.set()

    async with AsyncProducer(address, group="shop", timeout_s=60) as producer, asyncio.TaskGroup() as tasks:
        for number in range(10):
            tasks.create_task(sender(producer, number))
        await restart.wait()
        await asyncio.to_thread(server.restart, crash=crash)
    return committed


async def _receive(address: str, wanted: set[MessageId]) -> list[MessageId]:
    received: list[MessageId] = []
    all_there = asyncio.Event()
    consumer = AsyncConsumer(address, group="mailer")

    @consumer.subscribe("orders")
    async def note(message: ReceivedMessage) -> None:
        received.append(message.id)
        if wanted <= set(received):
            all_there.set()

    async with consumer, asyncio.timeout(60):
        await all_there.wait()
    return received


@pytest.mark.parametrize("crash", [True, False], ids=["killed", "stopped"])
async def test_the_broker_survives_a_restart_of_postgres_and_loses_nothing(tmp_path: Path, crash: bool) -> None:
    with EmbeddedPostgres(tmp_path / "data") as server:
        url = server.create_database("notify")
        migrate.upgrade(url)
        broker = BrokerProcess(url, log=tmp_path / "broker.log")
        broker.start()
        try:
            committed = await _send_across_a_restart(broker.address, server, crash=crash)
            assert len(committed) == _SENDS
            received = await _receive(broker.address, committed)
            assert sorted(received) == sorted(committed)
            with psycopg.connect(url) as connection:
                gaps = connection.execute(
                    "select queue from txmsg.message group by queue having max(queue_offset) <> count(*) - 1"
                ).fetchall()
            assert gaps == []
            assert broker.stop() == 0
        finally:
            broker.kill()
