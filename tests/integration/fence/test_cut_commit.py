"""A COMMIT without a reply: the message follows the transaction, whatever the caller was told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from tests.integration.client_harness import WAIT_S, collecting, half_count, message_count, nothing_comes
from tests.integration.fence.business import register, users, users_count
from tests.postgres_proxy import CUT_AFTER, CUT_BEFORE, FORWARD, HOLD, PostgresProxy, Verdict
from tests.waiting import until
from txmsg.checker.fence import Fence, FenceCheckListener
from txmsg.checker.tables import create_tables
from txmsg.client import AsyncProducer, Producer, transactional_message
from txmsg.message import Message, ReceivedMessage, TransactionId, TransactionState


@pytest.fixture
def proxy(postgres_engine: Engine) -> Iterator[PostgresProxy]:
    """A proxy in front of the business database; checks bypass it."""
    with PostgresProxy(postgres_engine.url.render_as_string(hide_password=False)) as proxy:
        yield proxy


@pytest.fixture
def sessions(proxy: PostgresProxy) -> Iterator[sessionmaker[Session]]:
    engine = create_engine(proxy.url)
    yield sessionmaker(engine)
    engine.dispose()


@pytest.fixture
def producer(broker: BrokerProcess, postgres_engine: Engine) -> Iterator[Producer]:
    with Producer(broker.address, group="shop", check_listener=FenceCheckListener(postgres_engine)) as producer:
        yield producer


def at_commit(proxy: PostgresProxy, verdict: Verdict) -> None:
    proxy.on_request = lambda request: verdict if request.sql == "COMMIT" else FORWARD


def settled(notify_url: str, *, leaving: int = 0) -> None:
    """Wait until so many halves are undecided."""
    until(lambda: half_count(notify_url) == leaving)


def agree(engine: Engine, notify_url: str, *, committed: bool) -> None:
    """Wait until nothing is undecided; then check that row and message both exist or neither does."""
    settled(notify_url)
    assert (users_count(engine), message_count(notify_url)) == (int(committed), int(committed))


@pytest.mark.parametrize(("verdict", "committed"), [(CUT_BEFORE, False), (CUT_AFTER, True)])
def test_a_commit_with_a_cut_connection_is_resolved_by_the_fence(
    *,
    proxy: PostgresProxy,
    producer: Producer,
    sessions: sessionmaker[Session],
    postgres_engine: Engine,
    notify_url: str,
    verdict: Verdict,
    committed: bool,
) -> None:
    @transactional_message(producer, topic="user", session=sessions)
    def sign_up(session: Session, name: str) -> None:
        register(session)

    at_commit(proxy, verdict)
    with pytest.raises(OperationalError):
        sign_up("a")
    agree(postgres_engine, notify_url, committed=committed)


@pytest.mark.parametrize(("verdict", "committed"), [(CUT_BEFORE, False), (CUT_AFTER, True)])
def test_a_late_flow_commit_with_a_cut_connection_is_resolved_by_the_fence(
    *,
    proxy: PostgresProxy,
    producer: Producer,
    sessions: sessionmaker[Session],
    postgres_engine: Engine,
    notify_url: str,
    verdict: Verdict,
    committed: bool,
) -> None:
    def sign_up(session: Session) -> None:
        with producer.transaction(session) as tx:
            register(session)
            tx.send(Message("user", b"a"))

    at_commit(proxy, verdict)
    with sessions() as session, pytest.raises(OperationalError):
        sign_up(session)
    agree(postgres_engine, notify_url, committed=committed)


def test_a_message_committed_by_a_cut_connection_is_delivered(
    broker: BrokerProcess, proxy: PostgresProxy, producer: Producer, sessions: sessionmaker[Session]
) -> None:
    @transactional_message(producer, topic="user", session=sessions)
    def sign_up(session: Session, name: str) -> None:
        register(session)

    with collecting(broker.address, "user") as got:
        at_commit(proxy, CUT_AFTER)
        with pytest.raises(OperationalError):
            sign_up("cut")
        assert b"cut" in got.get(timeout=WAIT_S).body
        assert nothing_comes(got)


def test_a_rolled_back_savepoint_keeps_fence_row_and_message(
    producer: Producer, sessions: sessionmaker[Session], postgres_engine: Engine, notify_url: str
) -> None:
    @transactional_message(producer, topic="user", session=sessions)
    def sign_up(session: Session, name: str) -> None:
        register(session)
        for _ in range(2):
            with session.begin_nested() as savepoint:
                register(session)
                with session.begin_nested():
                    register(session)
                savepoint.rollback()

    sign_up("a")
    agree(postgres_engine, notify_url, committed=True)


async def _cancelled_while_held(address: str, proxy: PostgresProxy, checks_url: str, verdict: Verdict) -> None:
    """Cancel the call during its COMMIT, and then forward or drop the COMMIT."""
    engine, checks = create_async_engine(proxy.url), create_async_engine(checks_url)
    sessions = async_sessionmaker(engine)
    listener = FenceCheckListener(checks)
    async with AsyncProducer(address, group="shop", check_listener=listener) as producer:

        @transactional_message(producer, topic="user", session=sessions)
        async def sign_up(session: AsyncSession, name: str) -> None:
            await session.execute(insert(users).values(email=name))

        at_commit(proxy, HOLD)
        call = asyncio.create_task(sign_up("a"))
        effects = await proxy.wait_for_async("insert into users")
        await proxy.wait_for_async("commit", after=effects.number)  # the fence row has that word, too
        call.cancel()
        await asyncio.sleep(0)  # the cancellation arrives before the reply can
        proxy.on_request = lambda request: FORWARD
        proxy.release(verdict)
        with pytest.raises(asyncio.CancelledError):
            await call
        await engine.dispose()
    await checks.dispose()


@pytest.mark.parametrize("verdict", [FORWARD, CUT_BEFORE, CUT_AFTER])
async def test_a_cancelled_async_commit_is_resolved_by_the_fence(
    broker: BrokerProcess, proxy: PostgresProxy, postgres_engine: Engine, notify_url: str, verdict: Verdict
) -> None:
    url = postgres_engine.url.render_as_string(hide_password=False)
    await _cancelled_while_held(broker.address, proxy, url, verdict)
    # The client is gone; another one of its group with the same fence is checked.
    with Producer(broker.address, group="shop", check_listener=FenceCheckListener(postgres_engine)):
        settled(notify_url)
    assert users_count(postgres_engine) == message_count(notify_url)
    if verdict is not FORWARD:  # where the driver's cancellation and COMMIT race in the server
        assert users_count(postgres_engine) == int(verdict is CUT_AFTER)


def test_a_function_that_writes_two_databases_is_resolved_by_that_of_its_session(
    *,
    producer: Producer,
    proxy: PostgresProxy,
    sessions: sessionmaker[Session],
    postgres_engine: Engine,
    notify_url: str,
    tmp_path: Path,
) -> None:
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    users.metadata.create_all(other)

    @transactional_message(producer, topic="user", session=sessions)
    def sign_up(session: Session, name: str) -> None:
        register(session)
        with Session(other) as second:
            register(second)
            second.commit()

    at_commit(proxy, CUT_BEFORE)
    with pytest.raises(OperationalError):
        sign_up("a")
    agree(postgres_engine, notify_url, committed=False)
    assert users_count(other) == 1  # its own transaction, and not the message's
    other.dispose()


class _Recording(FenceCheckListener):
    """A listener that records its checks."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.asked: set[TransactionId] = set()

    def check(self, message: ReceivedMessage) -> TransactionState | Awaitable[TransactionState]:
        self.asked.add(message.transaction_id)
        return super().check(message)


def test_a_client_with_another_fence_is_never_checked(
    broker: BrokerProcess, postgres_engine: Engine, notify_url: str, tmp_path: Path
) -> None:
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    stranger = _Recording(other)
    create_tables(other)
    with Producer(broker.address, group="shop", check_listener=FenceCheckListener(postgres_engine)) as gone:
        half = gone.half([Message("user", b"a")])
        with Session(postgres_engine) as session:
            Fence(postgres_engine).write(session, half.transaction_id)
            session.commit()
    with Producer(broker.address, group="shop", check_listener=stranger) as producer:
        own = producer.half([Message("user", b"b")])
        producer.end(half, TransactionState.UNKNOWN)  # UNKNOWN makes the check due now
        producer.end(own, TransactionState.UNKNOWN)
        settled(notify_url, leaving=1)
        assert stranger.asked == {own.transaction_id}
        with Producer(broker.address, group="shop", check_listener=FenceCheckListener(postgres_engine)):
            settled(notify_url)
    assert stranger.asked == {own.transaction_id}
    assert message_count(notify_url) == 1
    other.dispose()
