"""Handlers under @idempotent in consumers of a log: each message takes effect once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.business import business_database
from tests.effects import Effect, effects
from tests.metaq.consumers import stored
from tests.waiting import until, until_async
from txmsg.checker.tables import inbox_table
from txmsg.client import idempotent
from txmsg.client.app import Txmsg
from txmsg.consumer.failures import Retry
from txmsg.message import Message, ReceivedMessage
from txmsg.metaq import Log, LogProducer, open_log
from txmsg.metaq.interface import LogQueue
from txmsg.wire.start import Start

T0 = LogQueue("t", 0)
DEAD_AT_ONCE = Retry(retries_max=0)


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
async def test_redelivered_message_takes_effect_once(log: Path, engine: Engine, kind: str) -> None:
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
        app = Txmsg(log=log, group="g")
        app.subscribe("t", source="log", retry=DEAD_AT_ONCE)(plain if kind == "def" else coroutine)
        if start == "again":
            with open_log(log) as access:
                access.seek("g", {T0: 0})
            assert stored(log, "g") == {T0: 0}
        async with app:
            await until_async(lambda: is_handled(log, "g"))
        assert list(effects(engine).values()) == [1, 1, 1, 1]
    assert len(handled) == 4
    with engine.connect() as connection:
        assert set(connection.execute(select(inbox_table.c.group_name)).scalars()) == {"g"}
    await async_engine.dispose()


def test_groups_and_broadcasting_members_deduplicate_separately(log: Path, engine: Engine) -> None:
    @idempotent(sessionmaker(engine))
    def handle(session: Session, message: ReceivedMessage) -> None:
        session.add(Effect(message_id=message.id))

    members: list[tuple[str, str, dict[str, Any]]] = [
        ("g", "g", {}),
        ("h", "h", {}),
        ("h", "h%host-1", {"broadcast": "host-1", "start": Start.earliest()}),
    ]
    for group, own_group, options in members:
        app = Txmsg(log=log, group=group)
        app.subscribe("t", source="log", retry=DEAD_AT_ONCE, **options)(handle)
        with app:
            until(lambda: is_handled(log, own_group))  # noqa: B023 - called at once
    assert list(effects(engine).values()) == [3, 3, 3, 3]
    with engine.connect() as connection:
        groups = Counter(connection.execute(select(inbox_table.c.group_name)).scalars())
    assert groups == {"g": 4, "h": 4, "h%host-1": 4}


def is_handled(log: Path, group: str) -> bool:
    """Return True if a group has handled all messages."""
    with open_log(log) as access:
        return group in access.groups() and stored(access, group) == {T0: 4}
