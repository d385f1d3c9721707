"""Outcomes sent after their callers have continued, and halves sent alongside."""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from tests.business import seen_from_outside
from tests.integration.client_harness import WAIT_S, counts, half_count, message_count
from tests.integration.transactional.users import Refused, User, users
from tests.waiting import until, until_async
from txmsg.checker.fence import FenceCheckListener
from txmsg.client import AsyncProducer, Producer, transactional_message
from txmsg.client.sending.half import Half
from txmsg.client.sending.unreported import UNTOLD_MAX, UnreportedOutcomes
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeConflict
from txmsg.message import Message, MessageId, TransactionState, message_id
from txmsg.testing import dies_before_commit


@contextmanager
def held_outcomes(producer: Producer) -> Iterator[threading.Event]:
    """Hold outcomes until the event is set: the event loop that sends them is blocked."""
    go_on = threading.Event()
    thread = producer._started()
    reached = threading.Event()

    def hold() -> None:
        reached.set()
        assert go_on.wait(WAIT_S)

    thread.post(hold)
    assert reached.wait(WAIT_S)
    try:
        yield go_on
    finally:
        go_on.set()


def test_a_call_returns_before_the_broker_has_the_outcome(
    producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str
) -> None:
    @transactional_message(producer, topic="user", session=sessions)
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))

    with held_outcomes(producer):
        register("e")
        assert (users(engine), half_count(notify_url), message_count(notify_url)) == (1, 1, 0)
    assert counts(notify_url) == (0, 1)


def test_a_call_that_waits_returns_when_the_broker_has_the_outcome(
    producer: Producer, sessions: sessionmaker[Session], notify_url: str
) -> None:
    @transactional_message(producer, topic="user", session=sessions, wait=True)
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))

    with sessions() as session, producer.transaction(session, wait=True) as tx:
        tx.send(Message("user", b"late"))
    register("e")
    assert (half_count(notify_url), message_count(notify_url)) == (0, 2)


def test_outcomes_are_sent_before_the_process_ends(broker: BrokerProcess, notify_url: str, database_url: str) -> None:
    """Without close(), as in a script; no check-back helps, as the group has no other member."""
    program = """
import sys
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker
from txmsg import FenceCheckListener, Producer, create_tables, transactional_message

engine = create_engine(sys.argv[2])
create_tables(engine)
producer = Producer(sys.argv[1], group="script", check_listener=FenceCheckListener(engine))

@transactional_message(producer, topic="user", session=sessionmaker(engine))
def register(session, number):
    session.execute(text("select 1"))

for number in range(20):
    register(number)
"""
    url = database_url.replace("postgresql:", "postgresql+psycopg:")
    subprocess.run([sys.executable, "-c", program, broker.address, url], check=True, timeout=WAIT_S, env=None)
    assert (half_count(notify_url), message_count(notify_url)) == (0, 20)


def test_callers_wait_when_too_many_outcomes_are_pending(
    producer: Producer, sessions: sessionmaker[Session], notify_url: str
) -> None:
    @transactional_message(producer, topic="user", session=sessions)
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))

    producer._core._untold = UnreportedOutcomes(count_max=2)
    with held_outcomes(producer) as go_on, ThreadPoolExecutor(1) as other:
        register("1")
        register("2")
        assert producer._untold.is_full
        third = other.submit(register, "3")  # sends by itself, and so does not need the loop
        third.result(WAIT_S)
        assert (half_count(notify_url), message_count(notify_url)) == (2, 1)
        go_on.set()
    assert counts(notify_url) == (0, 3)
    until(lambda: len(producer._untold) == 0)
    assert not producer._untold.is_full


def test_a_delayed_message_with_a_pending_outcome_can_be_recalled(
    producer: Producer, sessions: sessionmaker[Session]
) -> None:
    ids: queue.Queue[MessageId] = queue.Queue()
    producer.hooks.after_half = lambda half: ids.put(message_id(half.transaction_id, 0))

    @transactional_message(
        producer,
        topic="user",
        session=sessions,
        message=lambda email: Message("user", b"", deliver_after=timedelta(hours=1)),
    )
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))

    for n in range(20):
        register(str(n))
        assert producer.recall(ids.get_nowait())


def test_an_outage_is_logged_once_and_each_conflict_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    untold = UnreportedOutcomes(UNTOLD_MAX)
    entries = [untold.add(Half(uuid4().bytes, b"s"), TransactionState.COMMIT) for _ in range(6)]
    assert len(untold) == 6
    for entry in entries[:3]:
        entry.fail(BrokerUnavailable("away"))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    for entry in entries[3:5]:
        entry.fail(OutcomeConflict("rolled back"))
    assert [record.levelno for record in caplog.records[1:]] == [logging.ERROR, logging.ERROR]
    entries[5].succeed(b"s")
    assert len(untold) == 0
    untold.add(Half(uuid4().bytes, b"s"), TransactionState.COMMIT).fail(BrokerUnavailable("away again"))
    assert len(caplog.records) == 4


async def test_calls_of_an_unstarted_async_producer_wait_for_their_outcome(
    broker: BrokerProcess, engine: Engine, notify_url: str
) -> None:
    """The producer is never closed, and its event loop may end at once."""
    async_engine = create_async_engine(engine.url)
    producer = AsyncProducer(broker.address, group="g", check_listener=FenceCheckListener(async_engine))

    @transactional_message(producer, topic="user", session=async_sessionmaker(async_engine))
    async def register(session: AsyncSession, email: str) -> None:
        session.add(User(id=uuid4(), email=email))

    for n in range(5):
        await register(str(n))
    assert (half_count(notify_url), message_count(notify_url)) == (0, 5)
    await producer.start()
    assert not producer._untold.is_full
    await producer.close()
    await async_engine.dispose()


def test_a_child_of_multiprocessing_sends_outcomes_before_it_ends(broker: BrokerProcess, notify_url: str) -> None:
    program = """
import sys
from multiprocessing import get_context
from txmsg import Message, Producer, TransactionState, transactional_message

class Commits:
    def check(self, message):
        return TransactionState.UNKNOWN

def work(address):
    producer = Producer(address, group="child", check_listener=Commits())

    @transactional_message(producer, topic="user")
    def register(number):
        pass

    for number in range(5):
        register(number)

if __name__ == "__main__":
    children = [get_context("fork").Process(target=work, args=(sys.argv[1],)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
"""
    subprocess.run([sys.executable, "-c", program, broker.address], check=True, timeout=WAIT_S)
    assert (half_count(notify_url), message_count(notify_url)) == (0, 15)


# ---- alongside


@pytest.mark.parametrize("way", ["first", "alongside", "late"])
def test_a_process_that_dies_before_its_commit_sends_no_outcome(
    producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str, way: Any
) -> None:
    with dies_before_commit(producer):
        if way == "late":
            with sessions() as session, producer.transaction(session) as tx:
                tx.send(Message("user", b""))
        else:

            @transactional_message(
                producer, topic="user", session=sessions, half="alongside" if way != "first" else way
            )
            def register(session: Session, email: str) -> None:
                session.add(User(id=uuid4(), email=email))

            register("e")
    producer.close()
    assert (users(engine), half_count(notify_url), message_count(notify_url)) == (0, 1, 0)


def test_a_failing_commit_with_a_half_alongside_is_resolved_by_the_check_back(
    producer: Producer, engine: Engine, notify_url: str
) -> None:
    class LosesReply(Session):
        def commit(self) -> None:
            super().commit()
            raise ConnectionError("the reply was lost")

    @transactional_message(producer, topic="user", session=sessionmaker(engine, class_=LosesReply), half="alongside")
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))

    with pytest.raises(ConnectionError):
        register("e")
    until(lambda: half_count(notify_url) == 0)
    assert (users(engine), message_count(notify_url)) == (1, 1)


def test_a_half_sent_alongside_is_stored_before_the_commit(
    producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str
) -> None:
    seen: list[int] = []

    @transactional_message(producer, topic="user", session=sessions, half="alongside")
    def register(session: Session, email: str) -> User:
        user = User(id=uuid4(), email=email)
        session.add(user)
        session.flush()
        return user

    producer.hooks.after_half = lambda half: seen.append(users(seen_from_outside(engine)))
    assert register("e").email == "e"
    assert seen == [0]
    assert (users(engine), *counts(notify_url)) == (1, 0, 1)


def test_nothing_is_committed_if_the_half_alongside_is_not_stored(
    engine: Engine, sessions: sessionmaker[Session]
) -> None:
    ran: list[str] = []
    listener = FenceCheckListener(engine)
    with Producer("127.0.0.1:1", group="g", check_listener=listener, timeout_s=0.5) as producer:

        @transactional_message(producer, topic="user", session=sessions, half="alongside")
        def register(session: Session, email: str) -> None:
            session.add(User(id=uuid4(), email=email))
            ran.append(email)

        with pytest.raises(BrokerUnavailable):
            register("e")
    assert (ran, users(engine)) == (["e"], 0)


def test_a_function_that_raises_while_its_half_is_in_transit_is_rolled_back(
    broker: BrokerProcess, producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str
) -> None:
    @transactional_message(producer, topic="user", session=sessions, half="alongside")
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))
        session.flush()
        raise Refused(email)

    for n in range(5):
        with pytest.raises(Refused):
            register(str(n))
    until(lambda: half_count(notify_url) == 0)  # those that were stored are checked back at once
    assert (users(engine), message_count(notify_url)) == (0, 0)


async def test_coroutines_can_send_halves_alongside(broker: BrokerProcess, engine: Engine, notify_url: str) -> None:
    async_engine = create_async_engine(engine.url)
    async with AsyncProducer(
        broker.address, group="g", timeout_s=WAIT_S, check_listener=FenceCheckListener(async_engine)
    ) as producer:

        @transactional_message(producer, topic="user", session=async_sessionmaker(async_engine), half="alongside")
        async def register(session: AsyncSession, email: str) -> None:
            session.add(User(id=uuid4(), email=email))
            await session.flush()
            if email == "bad":
                raise Refused(email)

        await register("e")
        with pytest.raises(Refused):
            await register("bad")
        await until_async(lambda: half_count(notify_url) == 0)  # it is checked back at once, if it was stored
    await async_engine.dispose()
    assert (users(engine), message_count(notify_url)) == (1, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"half": "later"}, "neither"),
        ({"half": "alongside", "when_away": "outbox"}, "leave one of them out"),
    ],
)
def test_a_half_that_cannot_be_sent_alongside_is_refused(
    producer: Producer, sessions: sessionmaker[Session], options: dict[str, Any], words: str
) -> None:
    def place(session: Session) -> None: ...

    decorate: Callable[[Any], Any] = transactional_message(producer, topic="user", session=sessions, **options)
    with pytest.raises(MisuseError, match=words):
        decorate(place)
