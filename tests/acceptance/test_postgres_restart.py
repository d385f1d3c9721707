"""PostgreSQL is killed or stopped under load and restarted: the broker stays, nothing is lost or duplicated."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.broker_process import BrokerProcess, running_broker
from tests.integration.client_harness import received
from tests.metrics.scraping import got
from tests.ports import own_port
from tests.waiting import until
from txmsg.broker import migrate
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.client import AsyncProducer, Producer
from txmsg.message import Message, MessageId, TransactionState

_SENDS = 400
_RESTART_AFTER = 100


async def _send_across_a_restart(address: str, server: EmbeddedPostgres, *, crash: bool) -> set[MessageId]:
    """Send transactions in ten tasks, one after the other; the server is restarted after the first hundred."""
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


@pytest.mark.parametrize("crash", [True, False], ids=["killed", "stopped"])
async def test_the_broker_survives_a_restart_of_postgres_and_loses_nothing(tmp_path: Path, crash: bool) -> None:
    with EmbeddedPostgres(tmp_path / "data") as server:
        url = server.create_database("notify")
        migrate.upgrade(url)
        with running_broker(url, log=tmp_path / "broker.log") as broker:
            committed = await _send_across_a_restart(broker.address, server, crash=crash)
            assert len(committed) == _SENDS
            assert sorted(await received(broker.address, "orders", committed)) == sorted(committed)
            with psycopg.connect(url) as connection:
                gaps = connection.execute(
                    "select queue from txmsg.message group by queue having max(queue_offset) <> count(*) - 1"
                ).fetchall()
            assert gaps == []


def test_the_broker_restarts_its_killed_embedded_postgres(tmp_path: Path) -> None:
    http = f"127.0.0.1:{own_port()}"
    log = tmp_path / "broker.log"
    options = ("--data-dir", str(tmp_path / "data"), "--http-listen", http)
    with (
        BrokerProcess(None, *options, log=log) as broker,
        Producer(broker.address, group="shop", timeout_s=60) as producer,
    ):
        producer.send(Message("orders", b"1"))
        pid_file = tmp_path / "data" / "pg" / "cluster" / "postmaster.pid"
        postmaster = psutil.Process(int(pid_file.read_text().split("\n", 1)[0]))
        postmaster.kill()
        psutil.wait_procs([postmaster])
        until(lambda: "embedded PostgreSQL" in log.read_text() and "perhaps killed" in log.read_text())
        until(lambda: f"{tmp_path / 'data' / 'pg'} runs again" in log.read_text())
        producer.send(Message("orders", b"2"))
        until(lambda: got(http, "/readyz")[0] == HTTPStatus.OK)
        assert broker.stop() == 0
    until(lambda: not EmbeddedPostgres(tmp_path / "data" / "pg").running)
