"""Errors and SQL text that a function hides, with the behaviour of each database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from tests.errors_page import is_documented
from tests.integration.client_harness import WAIT_S, half_count, message_count
from tests.integration.transactional.misbehaving import held, junk, markers, prepare
from tests.waiting import until, until_async
from txmsg.checker.fence import FenceCheckListener
from txmsg.checker.tables import create_tables
from txmsg.client import AsyncProducer, Producer, idempotent, transactional_message
from txmsg.errors import MisuseError
from txmsg.message import Message, ReceivedMessage, TransactionState

Work = Callable[[Session], None]


class Unsure:
    """A listener that answers UNKNOWN."""

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK


def mark(session: Session) -> None:
    session.execute(insert(markers).values(name="m"))


def swallows_an_error(session: Session) -> None:
    mark(session)
    with suppress(IntegrityError):
        session.execute(insert(junk).values(id=1))


def sends_rollback(session: Session) -> None:
    mark(session)
    session.execute(text("ROLLBACK"))


def sends_rollback_and_swallows_the_refusal(session: Session) -> None:
    with suppress(MisuseError):
        sends_rollback(session)


def swallows_a_lock_that_is_held(session: Session) -> None:
    mark(session)
    bind = session.get_bind()
    assert isinstance(bind, Engine)
    with psycopg.connect(bind.url.set(drivername="postgresql").render_as_string(hide_password=False)) as other:
        other.execute("select * from held where id = 1 for update")
        with suppress(DBAPIError):
            session.execute(select(held).where(held.c.id == 1).with_for_update(nowait=True))


def swallows_an_error_of_the_driver(session: Session) -> None:
    mark(session)
    with suppress(Exception):
        session.connection().connection.cursor().execute("select nonsense")


def swallows_an_error_in_before_commit(session: Session) -> None:
    mark(session)

    def listener(session: Session) -> None:
        with suppress(IntegrityError):
            session.execute(insert(junk).values(id=1))

    event.listen(session, "before_commit", listener)


SWALLOWING = [
    swallows_an_error,
    sends_rollback,
    sends_rollback_and_swallows_the_refusal,
    swallows_a_lock_that_is_held,
    swallows_an_error_of_the_driver,
    swallows_an_error_in_before_commit,
]


@pytest.fixture
def engine(database_url: str) -> Engine:
    return prepared(database_url.replace("postgresql:", "postgresql+psycopg:", 1))


@pytest.fixture
def mariadb(mariadb_url: str) -> Engine:
    return prepared(mariadb_url)


def prepared(url: str) -> Engine:
    engine = create_engine(url)
    prepare(engine)
    create_tables(engine)
    return engine


def marks(engine: Engine) -> int:
    with engine.connect() as connection:
        return len(connection.execute(select(markers)).all())


@pytest.fixture
def decided(notify_url: str) -> Callable[[Engine], tuple[int, int]]:
    """Return the final numbers of markers and messages."""

    def decided(engine: Engine) -> tuple[int, int]:
        until(lambda: half_count(notify_url) == 0)
        return marks(engine), message_count(notify_url)

    return decided


def in_decorator(producer: Producer, engine: Engine, work: Work) -> None:
    transactional_message(producer, topic="t", session=sessionmaker(engine))(work)()


def in_block(producer: Producer, engine: Engine, work: Work) -> None:
    with Session(engine) as session, producer.transaction(session) as tx:
        work(session)
        tx.send(Message("t", b""))


@pytest.mark.parametrize("own_listener", [False, True])
@pytest.mark.parametrize("flow", [in_decorator, in_block])
def test_a_swallowed_error_commits_and_delivers_nothing(
    *,
    flow: Callable[[Producer, Engine, Work], None],
    own_listener: bool,
    broker: BrokerProcess,
    engine: Engine,
    decided: Callable[[Engine], tuple[int, int]],
) -> None:
    listener = Unsure() if own_listener else FenceCheckListener(engine)
    with Producer(broker.address, group="p", timeout_s=WAIT_S, check_listener=listener) as producer:
        for work in SWALLOWING:
            with pytest.raises(MisuseError) as caught:
                flow(producer, engine, work)
            assert is_documented(caught.value)
            assert decided(engine) == (0, 0), work
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_swallowed_error_of_a_coroutine_commits_and_delivers_nothing(
    broker: BrokerProcess, engine: Engine, driver: str, notify_url: str
) -> None:
    async_engine = create_async_engine(engine.url.set(drivername=f"postgresql+{driver}"))
    listener = FenceCheckListener(async_engine)
    async with AsyncProducer(broker.address, group="p", timeout_s=WAIT_S, check_listener=listener) as producer:
        sessions = async_sessionmaker(async_engine)

        @transactional_message(producer, message=lambda work: Message("t", b""), session=sessions)
        async def decorated(session: AsyncSession, work: Work) -> None:
            await session.run_sync(work)

        async def block(work: Work) -> None:
            async with AsyncSession(async_engine) as session, producer.transaction(session) as tx:
                await session.run_sync(work)
                tx.send(Message("t", b""))

        for flow in (decorated, block):
            for work in SWALLOWING:
                if driver == "asyncpg" and work is swallows_an_error_of_the_driver:
                    continue  # asyncpg does not report an aborted transaction
                with pytest.raises(MisuseError):
                    await flow(work)
        await until_async(lambda: half_count(notify_url) == 0)
    await async_engine.dispose()
    assert (marks(engine), message_count(notify_url)) == (0, 0)
    engine.dispose()


def test_the_refusal_names_the_swallowed_error(broker: BrokerProcess, engine: Engine) -> None:
    listener = FenceCheckListener(engine)
    with Producer(broker.address, group="p", timeout_s=WAIT_S, check_listener=listener) as producer:
        with pytest.raises(MisuseError, match=r"caught inside it \(IntegrityError: .*duplicate key") as caught:
            in_decorator(producer, engine, swallows_an_error)
        assert isinstance(caught.value.__cause__, IntegrityError)
    engine.dispose()


def test_a_handler_that_swallows_an_error_is_not_acknowledged(engine: Engine) -> None:
    message = ReceivedMessage("t", b"")
    for work in SWALLOWING:

        @idempotent(sessionmaker(engine), group="g")
        def handle(session: Session, message: ReceivedMessage, work: Work = work) -> None:
            work(session)

        with pytest.raises(MisuseError):
            handle(message)
    assert marks(engine) == 0
    idempotent(sessionmaker(engine), group="g")(lambda session, message: mark(session))(message)
    assert marks(engine) == 1, "nothing was recorded before"
    engine.dispose()


def deadlocks(session: Session) -> None:
    """Cause a deadlock whose victim is this session, which has written less."""
    engine = session.get_bind()
    assert isinstance(engine, Engine)
    has_second = threading.Event()

    def other() -> None:
        with engine.connect() as connection:
            connection.execute(insert(junk), [{"id": 1000 + number} for number in range(200)])
            connection.execute(update(held).where(held.c.id == 2).values(n=1))
            has_second.set()
            connection.execute(update(held).where(held.c.id == 1).values(n=1))

    session.execute(update(held).where(held.c.id == 1).values(n=1))
    thread = threading.Thread(target=other)
    thread.start()
    assert has_second.wait(WAIT_S)
    with suppress(DBAPIError):
        session.execute(update(held).where(held.c.id == 2).values(n=1))
    thread.join(WAIT_S)


@pytest.mark.parametrize("flow", [in_decorator, in_block])
def test_a_swallowed_mariadb_deadlock_commits_and_delivers_nothing(
    flow: Callable[[Producer, Engine, Work], None],
    broker: BrokerProcess,
    mariadb: Engine,
    decided: Callable[[Engine], tuple[int, int]],
) -> None:
    def first_lost(session: Session) -> None:
        session.execute(insert(markers).values(name="lost"))
        deadlocks(session)
        mark(session)

    def last(session: Session) -> None:
        mark(session)
        deadlocks(session)

    listener = FenceCheckListener(mariadb)
    with Producer(broker.address, group="p", timeout_s=WAIT_S, check_listener=listener) as producer:
        for work in (first_lost, last):
            with pytest.raises(MisuseError, match="Deadlock found"):
                flow(producer, mariadb, work)
            assert decided(mariadb) == (0, 0)
    mariadb.dispose()


def test_a_duplicate_key_that_leaves_a_mariadb_transaction_intact_is_allowed(
    broker: BrokerProcess, mariadb: Engine, decided: Callable[[Engine], tuple[int, int]]
) -> None:
    listener = FenceCheckListener(mariadb)
    with Producer(broker.address, group="p", timeout_s=WAIT_S, check_listener=listener) as producer:
        in_decorator(producer, mariadb, swallows_an_error)
    assert decided(mariadb) == (1, 1)
    mariadb.dispose()


@pytest.mark.parametrize("flow", [in_decorator, in_block])
@pytest.mark.parametrize("sql", ["create table made (id int)", "commit", "set autocommit = 1"])
def test_text_that_commits_in_a_function_that_raises_is_not_sent(
    *,
    flow: Callable[[Producer, Engine, Work], None],
    sql: str,
    broker: BrokerProcess,
    mariadb: Engine,
    decided: Callable[[Engine], tuple[int, int]],
) -> None:
    def work(session: Session) -> None:
        mark(session)
        session.execute(text(sql))
        raise AssertionError("never here")

    listener = FenceCheckListener(mariadb)
    with Producer(broker.address, group="p", timeout_s=WAIT_S, check_listener=listener) as producer:
        with pytest.raises(MisuseError, match=r"as SQL inside .* would end its transaction") as caught:
            flow(producer, mariadb, work)
        assert is_documented(caught.value)
    assert decided(mariadb) == (0, 0)
    mariadb.dispose()
