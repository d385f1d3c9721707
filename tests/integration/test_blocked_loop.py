"""An `async def` handler that blocks the event loop for longer than the broker's visibility timeout."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.integration.client_harness import waited_for
from tests.waiting import until_async
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.message import Message, ReceivedMessage


async def test_a_handler_that_blocks_the_event_loop_is_acknowledged_and_logged_with_advice(
    broker: BrokerProcess, notify_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:
        connection.execute("insert into txmsg.consumer_group (name, retries_max) values ('c', 2)")
    ended: list[str | None] = []
    consumer = AsyncConsumer(broker.address, group="c", visibility_timeout_s=1)

    @consumer.subscribe("t")
    async def handle(message: ReceivedMessage) -> None:
        if message.key == "slow":
            time.sleep(4)  # noqa: ASYNC251 - it blocks the loop: that is what is tested
        ended.append(message.key)

    async with AsyncProducer(broker.address, group="p", timeout_s=60) as producer:
        await producer.send(Message("t", b"", key="slow"))
        async with consumer:
            await until_async(lambda: "slow" in ended)
            await producer.send(Message("t", b"", key="next"))
            await until_async(lambda: "next" in ended)
            await asyncio.to_thread(_until_settled, notify_url)
    assert ended.count("slow") == 1
    said = waited_for(caplog, "blocked the event loop for")
    assert "handler of topic 't'" in said
    assert "asyncio.to_thread" in said


def _until_settled(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            rows = connection.execute("select 1 from txmsg.retry union all select 1 from txmsg.dead_letter").fetchall()
        if not rows:
            return
        assert time.monotonic() < deadline, f"{len(rows)} messages are retries or dead letters"
        time.sleep(0.05)
