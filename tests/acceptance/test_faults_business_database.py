"""The business database fails under `@transactional_message`: message and transaction always agree.

The user sees the driver's own error, unchanged; the check-back finds out what became of the transaction.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
import pytest
from sqlalchemy import String, create_engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

import txmsg
from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.client_harness import WAIT_S, collecting, half_count
from tests.postgres_proxy import CUT_AFTER, CUT_BEFORE, FORWARD, HOLD, PostgresProxy, Request, Verdict
from tests.waiting import until
from txmsg.checker.fence import FenceCheckListener
from txmsg.client import AsyncProducer, Producer, transactional_message
from txmsg.errors import TransactionRefused
from txmsg.message import ReceivedMessage

Register = Callable[[str], object]


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"

    email: Mapped[str] = mapped_column(String, primary_key=True)


@dataclass(frozen=True, slots=True)
class FailurePoint:
    """A point of failure: the first request that begins so, and the kind of cut. commits: the resulting outcome."""

    text: str
    verdict: Verdict
    commits: bool


MOMENTS = {
    "before it begins": FailurePoint("BEGIN; insert into txmsg_fence", CUT_BEFORE, False),
    "begun with its fence row, its reply lost": FailurePoint("BEGIN; insert into txmsg_fence", CUT_AFTER, False),
    "in the middle": FailurePoint("insert into users", CUT_BEFORE, False),
    "in the middle, its reply lost": FailurePoint("insert into users", CUT_AFTER, False),
    "before the commit arrives": FailurePoint("COMMIT", CUT_BEFORE, False),
    "after the commit": FailurePoint("COMMIT", CUT_AFTER, True),
}


@pytest.fixture
def proxy(database_url: str) -> Iterator[PostgresProxy]:
    with PostgresProxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def checking(database_url: str) -> Iterator[PostgresProxy]:
    """A proxy for check-backs, so that none is mistaken for the business operation."""
    with PostgresProxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def first_check_s() -> float:
    """A delay so long that a check comes only when the client requests it, however slow the machine."""
    return 300.0


@pytest.fixture
def broker(start_broker: StartBroker, first_check_s: float) -> BrokerProcess:
    return start_broker("--first-check-s", f"{first_check_s}", "--check-interval-s", "0.5")


def sqlalchemy_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def create_tables(url: str) -> None:
    engine = create_engine(sqlalchemy_url(url))
    Base.metadata.create_all(engine)
    txmsg.create_tables(engine)
    engine.dispose()


@pytest.fixture(params=["def", "async def"])
def register(
    request: pytest.FixtureRequest,
    broker: BrokerProcess,
    proxy: PostgresProxy,
    checking: PostgresProxy,
    database_url: str,
) -> Iterator[Register]:
    """Return a business operation that can be called from any thread."""
    create_tables(database_url)
    if request.param == "def":
        engine = create_engine(sqlalchemy_url(proxy.url))
        listener = FenceCheckListener(create_engine(sqlalchemy_url(checking.url), poolclass=NullPool))
        with Producer(broker.address, group="shop", check_listener=listener) as producer:

            @transactional_message(producer, topic="user", session=sessionmaker(engine))
            def register(session: Session, email: str) -> None:
                session.add(User(email=email))

            yield register
        engine.dispose()
        return

    async_engine = create_async_engine(sqlalchemy_url(proxy.url))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listener = FenceCheckListener(create_async_engine(sqlalchemy_url(checking.url), poolclass=NullPool))
    async_producer = AsyncProducer(broker.address, group="shop", check_listener=listener)

    @transactional_message(async_producer, topic="user", session=async_sessionmaker(async_engine))
    async def register_async(session: AsyncSession, email: str) -> None:
        session.add(User(email=email))

    asyncio.run_coroutine_threadsafe(async_producer.start(), loop).result(WAIT_S)
    yield lambda email: asyncio.run_coroutine_threadsafe(register_async(email), loop).result(WAIT_S)

    async def end() -> None:
        await async_producer.close()
        await async_engine.dispose()
        await loop.shutdown_default_executor()

    asyncio.run_coroutine_threadsafe(end(), loop).result(WAIT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(WAIT_S)
    loop.close()


def emails(database_url: str) -> set[str]:
    engine = create_engine(sqlalchemy_url(database_url))
    with Session(engine) as session:
        found = set(session.scalars(select(User.email)))
    engine.dispose()
    return found


def checks(notify_url: str) -> int:
    """Return the number of checks of the waiting half."""
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        row = connection.execute("select coalesce(max(checks), 0) from txmsg.half_message").fetchone()
    assert row is not None
    return int(row[0])


def received(got: queue.Queue[ReceivedMessage]) -> set[str]:
    return {each.body.decode() for each in list(got.queue)}


def test_message_and_transaction_agree_wherever_the_database_fails(
    *,
    register: Register,
    broker: BrokerProcess,
    proxy: PostgresProxy,
    checking: PostgresProxy,
    database_url: str,
    notify_url: str,
) -> None:
    def goes_away(moment: FailurePoint) -> Callable[[Request], Verdict]:
        def judge(request: Request) -> Verdict:
            if not request.sql.lower().startswith(moment.text.lower()):
                return FORWARD
            proxy.on_request = lambda request: FORWARD
            proxy.refuse()
            return moment.verdict

        return judge

    with collecting(broker.address, "user") as got:
        register("first")
        for name, moment in MOMENTS.items():
            proxy.on_request = goes_away(moment)
            checking.refuse()
            with pytest.raises(DBAPIError):  # the driver's error, unchanged
                register(name)
            until(lambda: checks(notify_url) >= 1)  # it is checked, and no client can answer
            proxy.accept()
            checking.accept()
            until(lambda: half_count(notify_url) == 0)
        register("last")
        expected = {"first", "last"} | {name for name, moment in MOMENTS.items() if moment.commits}
        bodies = {f'{{"email":"{email}"}}' for email in expected}
        until(lambda: len(received(got)) >= len(bodies))
        assert received(got) == bodies
    assert emails(database_url) == expected


@pytest.mark.parametrize("first_check_s", [1.0])
def test_an_unanswered_commit_leaves_the_message_undecided_until_it_ends(
    register: Register, broker: BrokerProcess, proxy: PostgresProxy, database_url: str, notify_url: str
) -> None:
    writes: list[int] = []

    def hold_once(request: Request) -> Verdict:
        """Hold the commit of the transaction, not that of an earlier check."""
        if "insert into users" in request.sql.lower():
            writes.append(request.connection)
        if request.sql != "COMMIT" or request.connection not in writes:
            return FORWARD
        proxy.on_request = lambda request: FORWARD
        held.set()
        return HOLD

    def call() -> None:
        while True:
            try:
                register("slow")
            except TransactionRefused:  # so slow that its check came before it had begun
                continue
            return

    held = threading.Event()
    with collecting(broker.address, "user") as got:
        proxy.on_request = hold_once
        calling = threading.Thread(target=call)
        calling.start()
        assert held.wait(WAIT_S)
        until(lambda: checks(notify_url) >= 3)
        assert received(got) == set()
        assert half_count(notify_url) == 1
        proxy.release()
        calling.join(WAIT_S)
        until(lambda: received(got) == {'{"email":"slow"}'})
    assert emails(database_url) == {"slow"}
    assert half_count(notify_url) == 0
