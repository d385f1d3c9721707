"""A message is delivered if and only if its marker row exists, whatever the function does to its session.

Under @idempotent it is acknowledged if and only if the effect and the inbox row exist. A failure names the
seed, the first part of a program's name, that repeats it with --seed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests import unclosed
from tests.broker_process import BrokerProcess
from tests.integration.client_harness import WAIT_S, half_count
from tests.integration.fence.conftest import close_what_aiomysql_left
from tests.integration.transactional.misbehaving import Business, Program, markers, prepare, programs, run
from tests.waiting import until
from txmsg.checker.fence import FenceCheckListener
from txmsg.checker.listener import CheckMessageListener
from txmsg.checker.tables import create_tables, inbox_table
from txmsg.client import AsyncProducer, Producer, idempotent, transactional_message
from txmsg.message import Message, ReceivedMessage, TransactionState

DRIVERS = {
    "postgresql-psycopg": ("postgresql+psycopg", None),
    "postgresql-psycopg-async": ("postgresql+psycopg", "postgresql+psycopg"),
    "postgresql-asyncpg": ("postgresql+psycopg", "postgresql+asyncpg"),
    "mysql-pymysql": ("mariadb+pymysql", None),
    "mysql-aiomysql": ("mariadb+pymysql", "mariadb+aiomysql"),
    "sqlite-pysqlite": ("sqlite", None),
    "sqlite-aiosqlite": ("sqlite", "sqlite+aiosqlite"),
}


class Place:
    """A business database with its drivers."""

    def __init__(self, name: str, engine: Engine, async_driver: str | None) -> None:
        self.name = name
        self.engine = engine
        self.is_async = async_driver is not None
        self.async_url = engine.url.set(drivername=async_driver or engine.url.drivername)

    def found(self) -> set[str]:
        with self.engine.connect() as connection:
            return set(connection.execute(select(markers.c.name)).scalars())


class OwnListener:
    """A listener that looks for the marker."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT if message.key in self._place.found() else TransactionState.ROLLBACK


@pytest.fixture(params=DRIVERS)
def place(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Place]:
    name: str = request.param
    driver, async_driver = DRIVERS[name]
    if driver == "sqlite":
        url = f"sqlite:///{tmp_path / 'business.db'}"
    else:
        given = request.getfixturevalue("mariadb_url" if "mysql" in name else "database_url")
        if given.startswith("mysql+"):
            driver, async_driver = "mysql+pymysql", async_driver and "mysql+aiomysql"
        url = given.replace(given.partition(":")[0], driver, 1)
    engine = create_engine(url, connect_args={"timeout": 0.05} if driver == "sqlite" else {})
    prepare(engine)
    create_tables(engine)
    with unclosed.tasks_are_cancelled(name):
        yield Place(name, engine, async_driver)
    engine.dispose()
    if "aiomysql" in name:
        caplog.get_records("call").clear()
        close_what_aiomysql_left()


@pytest.fixture
def made(request: pytest.FixtureRequest, place: Place, seed: int) -> Callable[..., list[Program]]:
    count = 200 if request.node.get_closest_marker("long") else 12

    def made(*, savepoints_mark: bool = False) -> list[Program]:
        return programs(seed, count, place.name, savepoints_mark=savepoints_mark, cancels=place.is_async)

    return made


def run_decorated(place: Place, address: str, listener: CheckMessageListener, made: list[Program]) -> None:
    """Run a program in the decorator's session."""
    sessions = sessionmaker(place.engine)
    with Producer(address, group="shop", timeout_s=WAIT_S, check_listener=listener) as producer:

        @transactional_message(
            producer, message=lambda program: Message("t", b"", key=f"{program.name}.1"), session=sessions
        )
        def call(session: Session, program: Program) -> None:
            run(session, Business(place.engine, program, marked=str))

        for program in made:
            with contextlib.suppress(Exception):
                call(program)


def run_late(place: Place, address: str, listener: CheckMessageListener, made: list[Program]) -> None:
    """Run a program in a session of the user."""

    def call(session: Session, program: Program) -> None:
        with producer.transaction(session) as tx:
            run(session, Business(place.engine, program, lambda name: tx.send(Message("t", b"", key=name))))

    with Producer(address, group="shop", timeout_s=WAIT_S, check_listener=listener) as producer:
        for program in made:
            with contextlib.suppress(Exception), Session(place.engine) as session:
                call(session, program)


async def run_decorated_async(place: Place, address: str, listener: CheckMessageListener, made: list[Program]) -> None:
    """Run a program as a coroutine in the decorator's session."""
    engine = create_async_engine(place.async_url)
    sessions = async_sessionmaker(engine)
    async with AsyncProducer(address, group="shop", timeout_s=WAIT_S, check_listener=listener) as producer:

        @transactional_message(
            producer, message=lambda program: Message("t", b"", key=f"{program.name}.1"), session=sessions
        )
        async def call(session: AsyncSession, program: Program) -> None:
            await session.run_sync(run, Business(place.engine, program, str, _canceller()))

        for program in made:
            await _ended(call(program))
    await engine.dispose()


def _canceller() -> Callable[[], object]:
    task = asyncio.current_task()
    assert task is not None
    return task.cancel


async def _ended(call: Coroutine[Any, Any, None]) -> BaseException | None:
    (said,) = await asyncio.gather(asyncio.create_task(call), return_exceptions=True)
    return said


async def run_late_async(place: Place, address: str, listener: CheckMessageListener, made: list[Program]) -> None:
    """Run a program as a coroutine in a session of the user."""

    async def call(program: Program) -> None:
        async with AsyncSession(engine) as session, producer.transaction(session) as tx:
            business = Business(place.engine, program, lambda name: tx.send(Message("t", b"", key=name)), _canceller())
            await session.run_sync(run, business)

    engine = create_async_engine(place.async_url)
    async with AsyncProducer(address, group="shop", timeout_s=WAIT_S, check_listener=listener) as producer:
        for program in made:
            await _ended(call(program))
    await engine.dispose()


def judge(
    place: Place, listener: CheckMessageListener, broker: BrokerProcess, notify_url: str, made: list[Program]
) -> None:
    """Wait until all is decided, by check-backs of another client; then compare."""
    with Producer(broker.address, group="shop", timeout_s=WAIT_S, check_listener=listener):
        until(lambda: half_count(notify_url) == 0)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        delivered = {key for (key,) in connection.execute("select key from txmsg.message").fetchall()}
    found = place.found()
    wrong = [
        f"{program}: markers {_of(program, found)}, messages {_of(program, delivered)}"
        for program in made
        if _of(program, found) != _of(program, delivered)
    ]
    assert not wrong, f"{len(wrong)} of {len(made)}:\n" + "\n".join(wrong)
    assert found, "no program committed anything"


def _of(program: Program, names: set[str]) -> set[str]:
    return {name for name in names if name.rpartition(".")[0] == program.name}


@pytest.mark.parametrize("flow", ["decorated", "late", "late, own listener"])
@pytest.mark.parametrize("length", ["short", pytest.param("long", marks=pytest.mark.long)])
def test_a_message_is_delivered_if_and_only_if_its_marker_exists(
    *, place: Place, flow: str, length: str, broker: BrokerProcess, notify_url: str, made: Callable[..., list[Program]]
) -> None:
    late = flow != "decorated"
    own = OwnListener(place) if "own" in flow else None
    made_ = made(savepoints_mark=late and own is None)
    blocking = own or FenceCheckListener(place.engine)
    if not place.is_async:
        (run_late if late else run_decorated)(place, broker.address, blocking, made_)
    else:
        runs = run_late_async if late else run_decorated_async
        asyncio.run(runs(place, broker.address, blocking, made_))
    judge(place, blocking, broker, notify_url, made_)


@pytest.mark.parametrize("length", ["short", pytest.param("long", marks=pytest.mark.long)])
def test_a_message_is_acknowledged_if_and_only_if_its_effect_and_inbox_row_exist(
    place: Place, length: str, made: Callable[..., list[Program]]
) -> None:
    """The message of a handler that returns is acknowledged."""
    acknowledged: set[str] = set()
    ids: dict[str, str] = {}
    made_ = made()

    def message(program: Program) -> ReceivedMessage:
        received = ReceivedMessage("t", program.name.encode(), id_bytes=uuid4().bytes)
        ids[received.id] = program.name
        return received

    by_name = {program.name: program for program in made_}
    if not place.is_async:

        @idempotent(sessionmaker(place.engine), group="g")
        def handle(session: Session, message: ReceivedMessage) -> None:
            run(session, Business(place.engine, by_name[message.body.decode()], str))

        for program in made_:
            with contextlib.suppress(Exception):
                handle(message(program))
                acknowledged.add(program.name)
    else:

        async def case() -> None:
            engine = create_async_engine(place.async_url)

            @idempotent(async_sessionmaker(engine), group="g")
            async def handle_async(session: AsyncSession, message: ReceivedMessage) -> None:
                await session.run_sync(run, Business(place.engine, by_name[message.body.decode()], str, _canceller()))

            for program in made_:
                if await _ended(handle_async(message(program))) is None:
                    acknowledged.add(program.name)
            await engine.dispose()

        asyncio.run(case())
    with place.engine.connect() as connection:
        recorded = {ids[message_id] for message_id in connection.execute(select(inbox_table.c.message_id)).scalars()}
    effects = {name.rpartition(".")[0] for name in place.found()}
    wrong = [
        program for program in made_ if len({program.name in each for each in (acknowledged, recorded, effects)}) != 1
    ]
    assert not wrong, (
        f"{len(wrong)} of {len(made_)}: acknowledged {acknowledged}, recorded {recorded}, effects {effects}: {wrong}"
    )
    assert acknowledged, "no program committed anything"
