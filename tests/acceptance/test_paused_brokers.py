"""Brokers are stopped during work by SIGSTOP and by the network: they hold no lock, and the others continue."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from tests.conftest import StartBroker
from tests.postgres_proxy import CUT_AFTER, CUT_BEFORE, FORWARD, HOLD, PostgresProxy, Request, Verdict
from txmsg.client import AsyncProducer
from txmsg.client.channel import Brokers
from txmsg.message import Message, MessageId, TransactionState, message_id

_CALLERS = 12
_PROGRESS = 100
"""Calls of each other broker that must be answered while one is stopped."""
_WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep clients at their broker: those that know others would leave a stopped one."""
    monkeypatch.setattr(Brokers, "learn", lambda *_: None)


class Load:
    """Callers of one broker: plain messages, commits and rollbacks over two topics, as fast as they are answered."""

    def __init__(self, address: str, seed: int) -> None:
        self.stored: set[MessageId] = set()
        self.rolled_back: set[MessageId] = set()
        self._address = address
        self._rng = random.Random(seed)
        self._answered = 0
        self._progress = asyncio.Condition()
        self._ending = False

    async def run(self) -> None:
        async with AsyncProducer(self._address, group="shop", timeout_s=60) as producer, asyncio.TaskGroup() as tasks:
            for _ in range(_CALLERS):
                tasks.create_task(self._call(producer))

    def end(self) -> None:
        self._ending = True

    async def goes_on(self) -> None:
        """Return when so many further calls were answered; fails if not in time."""
        target = self._answered + _PROGRESS
        async with asyncio.timeout(_WAIT_S), self._progress:
            await self._progress.wait_for(lambda: self._answered >= target)

    async def _call(self, producer: AsyncProducer) -> None:
        while not self._ending:
            # Bodies of very different sizes, so that a broker is also stopped in the midst of sending a batch.
            size = self._rng.choice((10, 200, 20_000))
            first, second = (Message(topic, bytes(size)) for topic in self._rng.sample(("orders", "users"), 2))
            if self._rng.random() < 0.4:
                self.stored.add(await producer.send(first))
            else:
                half = await producer.half([first, second])
                ids = {message_id(half.transaction_id, n) for n in range(2)}
                if self._rng.random() < 0.7:
                    await producer.end(half, TransactionState.COMMIT)
                    self.stored |= ids
                else:
                    await producer.end(half, TransactionState.ROLLBACK)
                    self.rolled_back |= ids
            async with self._progress:
                self._answered += 1
                self._progress.notify_all()


@asynccontextmanager
async def under_load(addresses: Sequence[str]) -> AsyncIterator[list[Load]]:
    """Load on each of these brokers, which stop cleanly."""
    loads = [Load(address, seed) for seed, address in enumerate(addresses)]
    async with asyncio.TaskGroup() as tasks:
        for load in loads:
            tasks.create_task(load.run())
        for load in loads:
            await load.goes_on()
        yield loads
        for load in loads:
            load.end()


async def _waiting_with_locks(connection: AsyncConnection[Any]) -> set[tuple[Any, ...]]:
    """Return transactions that hold a lock of txmsg while their server process waits for its client."""
    cursor = await connection.execute(
        "select a.pid, a.xact_start from pg_stat_activity a where a.datname = current_database() "
        "and a.wait_event_type = 'Client' and a.xact_start is not null "
        "and exists (select from pg_locks l where l.pid = a.pid and l.locktype = 'advisory' and l.granted)"
    )
    return set(await cursor.fetchall())


async def assert_others_go_on(connection: AsyncConnection[Any], others: Sequence[Load]) -> None:
    """Check that, with a broker stopped, no lock waits for a client and all other brokers answer."""
    going_on = asyncio.gather(*(other.goes_on() for other in others))
    waiting: set[tuple[Any, ...]] = set()
    while not going_on.done():
        # Activity and locks are not read at one instant, so only what is seen twice is so.
        before, waiting = waiting, await _waiting_with_locks(connection)
        if before & waiting:
            going_on.cancel()
            raise AssertionError(f"these hold locks and wait for their broker: {before & waiting}")
    await going_on


def assert_all_is_there_once(url: str, loads: Sequence[Load]) -> None:
    with psycopg.connect(url) as connection:
        rows = connection.execute("select transaction_id, n from txmsg.message").fetchall()
        gaps = connection.execute(
            "select queue from txmsg.message group by queue "
            "having min(queue_offset) <> 0 or max(queue_offset) <> count(*) - 1"
        ).fetchall()
        halves = connection.execute("select count(*) from txmsg.half_message").fetchone()
    there = [message_id(transaction_id, n) for transaction_id, n in rows]
    assert len(there) == len(set(there)), "a message is there twice"
    assert set(there) == set().union(*(load.stored for load in loads)), "every call was answered, so these are all"
    assert not any(load.rolled_back & set(there) for load in loads)
    assert gaps == []
    assert halves == (0,)


async def test_a_broker_paused_at_any_moment_holds_no_lock_and_others_continue(
    start_broker: StartBroker, notify_url: str
) -> None:
    brokers = [start_broker() for _ in range(3)]
    rng = random.Random(11)
    async with (
        await AsyncConnection.connect(notify_url, autocommit=True) as watcher,
        under_load([broker.address for broker in brokers]) as loads,
    ):
        for _ in range(12):
            paused = rng.randrange(3)
            await asyncio.sleep(rng.uniform(0, 0.05))  # a moment like any other
            brokers[paused].pause()
            try:
                await assert_others_go_on(watcher, loads[:paused] + loads[paused + 1 :])
            finally:
                brokers[paused].resume()
    assert_all_is_there_once(notify_url, loads)


async def test_a_broker_cut_off_from_the_database_holds_no_lock_and_others_continue(
    start_broker: StartBroker, notify_url: str
) -> None:
    with PostgresProxy(notify_url) as proxy:
        cut_off, other = start_broker(storage=proxy.url), start_broker()
        hold = False

        def judge(request: Request) -> Verdict:
            return HOLD if hold and "write_batch" in request.sql else FORWARD

        proxy.on_request = judge

        async with (
            await AsyncConnection.connect(notify_url, autocommit=True) as watcher,
            under_load([cut_off.address, other.address]) as loads,
        ):
            for then in (FORWARD, CUT_BEFORE, CUT_AFTER, CUT_AFTER):
                seen = proxy.requests[-1].number
                hold = True
                await proxy.wait_for_async("write_batch", after=seen)
                await assert_others_go_on(watcher, loads[1:])
                hold = False
                proxy.release(then)
                await loads[0].goes_on()
    assert_all_is_there_once(notify_url, loads)
