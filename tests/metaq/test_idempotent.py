"""Handlers under @idempotent in the consumers of a log: each message has its effect once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.business import business_database
from tests.effects import Effect, effects
from tests.metaq.consumers import stored
from tests.waiting import until, until_async
from txmsg.client import idempotent
from txmsg.message import Message, ReceivedMessage
from txmsg.metaq import AsyncLogConsumer, Log, LogConsumer, LogProducer
from txmsg.metaq.interface import LogQueue
from txmsg.runtime.start import Start
from txmsg.tables import inbox_table

T0 = LogQueue("t", 0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with business_database(f"sqlite:///{tmp_path}/business.db", Effect.metadata) as engine:
        yield engine


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log whose topic `t` has one queue with four messages."""
    with Log(tmp_path / "log") as log:
        LogProducer(log, queues=1).send_many([Message("t", b"%d" % each) for each in range(4)])
    return tmp_path / "log"


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_each_message_has_its_effect_once_though_it_comes_again(log: Path, engine: Engine, kind: str) -> None:
    async_engine = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
    handled: list[ReceivedMessage] = []

    @idempotent(sessionmaker(engine))
    def plain(session: Session, message: ReceivedMessage) -> None:
        session.add(Effect(message_id=message.id))
        handled.append(message)

    @idempotent(async_sessionmaker(async_engine))
    async def coroutine(session: AsyncSession, message: ReceivedMessage) -> None:
        session.add(Effect(message_id=message.id))
        handled.append(message)

    for start in ("first", "again"):
        consumer = AsyncLogConsumer(log, "g", retries_max=0)
        consumer.subscribe("t")(plain if kind == "def" else coroutine)
        async with consumer:
            await until_async(consumer.queues)
            if start == "again":
                await consumer.seek("t", 0, Start.earliest())
            await until_async(lambda: stored(log, "g") == {T0: 4})
        assert list(effects(engine).values()) == [1, 1, 1, 1]
    assert len(handled) == 4
    with engine.connect() as connection:
        assert set(connection.execute(select(inbox_table.c.group_name)).scalars()) == {"g"}
    await async_engine.dispose()


def test_groups_of_one_log_have_effects_of_their_own_and_broadcasting_members_too(log: Path, engine: Engine) -> None:
    @idempotent(sessionmaker(engine))
    def handle(session: Session, message: ReceivedMessage) -> None:
        session.add(Effect(message_id=message.id))

    consumers = [
        LogConsumer(log, "g", retries_max=0),
        LogConsumer(log, "h", retries_max=0),
        LogConsumer(log, "h", broadcast="host-1", start=Start.earliest(), retries_max=0),
    ]
    for consumer in consumers:
        consumer.subscribe("t")(handle)
        with consumer:
            wait_handled(consumer, log)
    assert list(effects(engine).values()) == [3, 3, 3, 3]
    with engine.connect() as connection:
        groups = Counter(connection.execute(select(inbox_table.c.group_name)).scalars())
    assert groups == {"g": 4, "h": 4, "h%host-1": 4}


def wait_handled(consumer: LogConsumer, log: Path) -> None:
    until(lambda: consumer.queues() and stored(log, consumer.group) == {T0: 4})
