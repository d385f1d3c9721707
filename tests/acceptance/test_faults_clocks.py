"""Clients and brokers with clocks wrong by hours or years: only the clock of the database counts.

Ids carry the time of the client that made them (UUIDv7), and messages say when they were born: both may be wrong.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

import txmsg
from tests.conftest import StartBroker
from tests.integration.client_harness import collecting, half_count
from tests.waiting import until_async
from txmsg.client import AsyncProducer
from txmsg.errors import OutcomeConflict
from txmsg.message import Message, ReceivedMessage, TransactionId, TransactionState

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
YEAR_MS = 8766 * HOUR_MS
CLOCKS_MS = {
    "1970": 0,
    "years behind": NOW_MS - 9 * YEAR_MS,
    "hours behind": NOW_MS - 5 * HOUR_MS,
    "hours ahead": NOW_MS + 5 * HOUR_MS,
    "years ahead": NOW_MS + 90 * YEAR_MS,
    "the last there is": 2**48 - 1,
}


def id_at(clock_ms: int) -> TransactionId:
    """Return a UUIDv7 as made by a client whose clock shows this time."""
    random = int.from_bytes(os.urandom(10), "big")
    value = clock_ms << 80 | random & ~(0xF << 76) & ~(0x3 << 62) | 7 << 76 | 2 << 62
    return TransactionId(UUID(int=value))


class RollsBack:
    """A listener that answers ROLLBACK and records its checks."""

    def __init__(self) -> None:
        self.asked: list[TransactionId] = []

    def check(self, message: ReceivedMessage) -> TransactionState:
        assert message.transaction_id is not None
        self.asked.append(message.transaction_id)
        return TransactionState.ROLLBACK


async def test_clients_with_wrong_clocks_can_send_commit_and_receive(
    start_broker: StartBroker, notify_url: str
) -> None:
    broker = start_broker("--first-check-s", "600")

    async def play(name: str, clock_ms: int) -> None:
        message = Message("clocks", name.encode())
        async with AsyncProducer(broker.address, group="shop") as producer:
            committed, rolled_back = id_at(clock_ms), id_at(clock_ms)
            half = await producer.half([message], transaction_id=committed)
            assert await producer.half([message], transaction_id=committed) == half  # a retry is the same half
            await producer.end(half, TransactionState.COMMIT)
            await producer.end(half, TransactionState.COMMIT)
            with pytest.raises(OutcomeConflict):
                await producer.end(half, TransactionState.ROLLBACK)
            with pytest.raises(OutcomeConflict):  # a late copy is not stored
                await producer.half([message], transaction_id=committed)
            other = await producer.half([message], transaction_id=rolled_back)
            await producer.end(other, TransactionState.ROLLBACK)

    with collecting(broker.address, "clocks") as got:
        for name, clock_ms in CLOCKS_MS.items():
            await play(name, clock_ms)
        bodies = [got.get(timeout=60).body.decode() for _ in CLOCKS_MS]
        assert sorted(bodies) == sorted(CLOCKS_MS)
        assert got.empty()
    assert half_count(notify_url) == 0


async def test_halves_of_clients_with_wrong_clocks_are_checked_on_time(
    start_broker: StartBroker, notify_url: str
) -> None:
    broker = start_broker("--first-check-s", "1", "--check-interval-s", "2")
    listener = RollsBack()

    async with AsyncProducer(broker.address, group="shop", check_listener=listener) as producer:
        ids = {id_at(clock_ms) for clock_ms in CLOCKS_MS.values()}
        for transaction_id in ids:
            await producer.half([Message("clocks", b"left alone")], transaction_id=transaction_id)
        await until_async(lambda: half_count(notify_url) == 0)
    assert ids == set(listener.asked)


async def test_the_age_of_a_message_is_measured_by_the_clock_of_the_database(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    us_of: dict[str, Callable[[], int]] = {name: (lambda ms=ms: ms * 1000) for name, ms in CLOCKS_MS.items()}  # type: ignore[misc]
    us_of.pop("the last there is")  # past the year 9999: docs/errors.md

    with collecting(broker.address, "clocks") as got:
        for name, now_us in us_of.items():
            monkeypatch.setattr("txmsg.client.sending.batch.now_us", now_us)
            async with AsyncProducer(broker.address, group="shop") as producer:
                await producer.send(Message("clocks", name.encode()))
        received = [got.get(timeout=60) for _ in us_of]
    assert {message.body.decode(): message.born_at.timestamp() * 1000 for message in received} == {
        name: CLOCKS_MS[name] for name in us_of
    }
    stored = [message.stored_at for message in received if message.stored_at is not None]
    assert len(stored) == len(us_of)
    assert (max(stored) - min(stored)).total_seconds() < 60


def test_no_module_of_a_broker_decides_by_the_local_clock() -> None:
    """A broker's clock may be wrong: it measures spans by the monotonic clock, and compares times in the database.

    Exceptions are times that it only shows: since when a client is attached, the time of a test alert, and its clock,
    which `txmsg doctor` compares.
    """
    package = Path(txmsg.__file__).parent
    askers = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
    found = [
        f"{path.relative_to(package)}: {ast.unparse(node)}"
        for path in [*(package / "broker").rglob("*.py"), *(package / "checker").rglob("*.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in askers
    ]
    told = ("broker/alerts/alerting.py", "broker/api/cluster.py", "broker/clients.py")
    assert sorted(found) == [f"{path}: datetime.now" for path in told]
