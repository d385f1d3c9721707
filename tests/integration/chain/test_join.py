"""Messages sent with a transaction that the application begins and ends itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from tests.broker_process import BrokerProcess
from tests.business import POOL_OF_ONE
from tests.integration.chain.databases import BusinessDatabase
from tests.integration.client_harness import counts, half_count, message_count
from tests.waiting import until
from txmsg import BrokerUnavailable, Half, MisuseError, TransactionState, Txmsg, create_tables, idempotent
from txmsg.message import ReceivedMessage

PAY = text("insert into paid values (:id, 7)")


@pytest.fixture
def engine(database: BusinessDatabase) -> Iterator[Engine]:
    made = create_engine(database.url, **POOL_OF_ONE)
    yield made
    made.dispose()


def test_messages_are_sent_with_the_commit_of_the_session(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, notify_url: str
) -> None:
    with Txmsg(broker.address, group="shop", database=engine) as app, Session(engine) as session:
        session.execute(PAY, {"id": 1})
        tx = app.join(session)
        tx.send("order.paid", {"order_id": 1})
        assert app.join(session) is tx
        assert counts(notify_url) == (0, 0)
        session.commit()
        assert counts(notify_url) == (0, 1)
        with pytest.raises(MisuseError, match="after the end of the transaction"):
            tx.send("order.paid", {})
        with session.begin():  # the next one, joined before its first statement
            app.join(session).send("order.paid", {"order_id": 2})
            session.execute(PAY, {"id": 2})
        assert counts(notify_url) == (0, 2)
        session.execute(PAY, {"id": 3})  # another one, which sends nothing
        session.commit()
    assert counts(notify_url) == (0, 2)
    assert database.paid() == [(1, 7), (2, 7), (3, 7)]


def test_a_rollback_sends_nothing_and_a_rolled_back_savepoint_drops_its_messages(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, notify_url: str
) -> None:
    with Txmsg(broker.address, group="shop", database=engine) as app:
        with Session(engine) as session:
            session.execute(PAY, {"id": 1})
            app.join(session).send("order.paid", {"order_id": 1})
            session.rollback()
            app.join(session).send("order.paid", {"order_id": 2})
            session.execute(PAY, {"id": 2})  # closed without a commit
        with Session(engine) as session, session.begin():
            tx = app.join(session)
            tx.send("order.paid", {"order_id": 3})
            savepoint = session.begin_nested()
            session.execute(PAY, {"id": 4})
            tx.send("order.paid", {"order_id": 4})
            savepoint.rollback()
            with session.begin_nested():
                session.execute(PAY, {"id": 5})
                tx.send("order.paid", {"order_id": 5})
    assert counts(notify_url) == (0, 2)
    assert database.paid() == [(5, 7)]


def test_statements_on_the_connection_of_a_session_commit_with_its_messages(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, notify_url: str
) -> None:
    """This is the remedy for code that has only a connection, which cannot be joined."""
    with Txmsg(broker.address, group="shop", database=engine) as app, Session(engine) as session:
        with session.begin():
            session.connection().execute(PAY, {"id": 1})
            app.join(session).send("order.paid", {"order_id": 1})
        session.connection().execute(PAY, {"id": 2})
        app.join(session).send("order.paid", {"order_id": 2})
        session.rollback()
    assert (half_count(notify_url), message_count(notify_url)) == (0, 1)
    assert database.paid() == [(1, 7)]


async def test_messages_are_sent_with_the_commit_of_an_async_session(
    broker: BrokerProcess, database: BusinessDatabase, async_engine: AsyncEngine, notify_url: str
) -> None:
    app = Txmsg(broker.address, group="shop", database=async_engine)
    async with app, AsyncSession(async_engine) as session:
        await session.execute(PAY, {"id": 1})
        app.join(session).send("order.paid", {"order_id": 1})
        await session.commit()
        assert await asyncio.to_thread(counts, notify_url) == (0, 1)
        app.join(session).send("order.paid", {"order_id": 2})
        await session.execute(PAY, {"id": 2})
        await session.rollback()
        async with session.begin():
            app.join(session).send("order.paid", {"order_id": 3})
    assert counts(notify_url) == (0, 2)
    assert database.paid() == [(1, 7)]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_commit_that_fails_after_the_halves_is_resolved_by_the_check_back(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, notify_url: str
) -> None:
    database.execute("alter table paid add constraint once unique (order_id) deferrable initially deferred")
    with Txmsg(broker.address, group="shop", database=engine) as app:
        told: list[TransactionState] = []
        app._producer_of("the test").hooks.before_end = lambda _, state: told.append(state)
        with Session(engine) as session:
            for _ in range(2):
                session.execute(PAY, {"id": 1})
            app.join(session).send("order.paid", {"order_id": 1})
            with pytest.raises(IntegrityError):
                session.commit()
        until(lambda: half_count(notify_url) == 0)
    assert (message_count(notify_url), told) == (0, [TransactionState.UNKNOWN])
    assert database.paid() == []


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_commit_of_an_aborted_transaction_sends_nothing(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, notify_url: str
) -> None:
    """PostgreSQL answers such a COMMIT with a rollback, without an error."""
    with Txmsg(broker.address, group="shop", database=engine) as app, Session(engine) as session:
        app.join(session).send("order.paid", {"order_id": 1})
        session.execute(PAY, {"id": 1})
        with pytest.raises(IntegrityError):
            session.execute(text("insert into paid values (null, 7)"))
        with pytest.raises(MisuseError, match="has rolled back the transaction"):
            session.commit()
        session.rollback()
    assert counts(notify_url) == (0, 0)


def test_a_commit_without_a_broker_can_be_retried(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, notify_url: str
) -> None:
    def away() -> None:
        raise BrokerUnavailable("away")

    with Txmsg(broker.address, group="shop", database=engine) as app, Session(engine) as session:
        hooks = app._producer_of("the test").hooks
        session.execute(PAY, {"id": 1})
        app.join(session).send("order.paid", {"order_id": 1})
        before, hooks.before_half = hooks.before_half, away
        for _ in range(2):
            with pytest.raises(BrokerUnavailable):
                session.commit()
        assert database.paid() == []
        hooks.before_half = before
        session.commit()
        assert counts(notify_url) == (0, 1)
    assert database.paid() == [(1, 7)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_separately_decorated_function_sends_with_its_own_transaction(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, notify_url: str
) -> None:
    with Txmsg(broker.address, group="shop", database=engine) as app:

        @idempotent(lambda: Session(engine), group="payment")
        def pay(session: Session, message: ReceivedMessage) -> None:
            session.execute(PAY, {"id": 1})
            app.join(session).send("order.paid", {"order_id": 1})

        @app.transactional_message("order.placed")
        def place(session: Session, order_id: int) -> None:
            app.join(session).send("order.noted", {"order_id": order_id})

        message = ReceivedMessage("order.placed", b"", id_bytes=bytes(16))
        pay(message)
        pay(message)
        assert counts(notify_url) == (0, 1)
        place(2)
    assert counts(notify_url) == (0, 3)
    assert database.paid() == [(1, 7)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_joining_a_connection_or_a_savepoint_is_refused(database: BusinessDatabase, engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", group="shop", database=engine)
    with engine.connect() as connection:
        with pytest.raises(MisuseError, match=r"app\.join got .*Connection.*begin with a session instead"):
            app.join(connection)  # type: ignore[arg-type]
        with Session(connection) as session, pytest.raises(MisuseError, match="bind it to an engine"):
            app.join(session)
    with Session(engine) as session:
        session.begin_nested()
        with pytest.raises(MisuseError, match=r"inside a savepoint: call it before session\.begin_nested"):
            app.join(session)
    with Session(engine) as session, pytest.raises(MisuseError, match="needs the database and the group"):
        Txmsg("127.0.0.1:1").join(session)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_an_async_connection_is_refused(database: BusinessDatabase, async_engine: AsyncEngine) -> None:
    app = Txmsg("127.0.0.1:1", group="shop", database=async_engine)
    async with async_engine.connect() as connection:
        with pytest.raises(MisuseError, match="begin with a session instead"):
            app.join(connection)  # type: ignore[arg-type]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_decorated_function_inside_another_transaction_of_the_database_is_refused(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, notify_url: str
) -> None:
    with Txmsg(broker.address, group="shop", database=engine) as app:
        producer: Any = app._producer_of("the test")

        @app.transactional_message("order.placed")
        def place(session: Session, order_id: int) -> None:
            session.execute(PAY, {"id": order_id})

        @app.transactional_message("order.placed", when_away="outbox")
        def place_if_away(session: Session, order_id: int) -> None:
            session.execute(PAY, {"id": order_id})

        @app.transactional_message("order.repeated")
        def repeat(session: Session, inner: str) -> None:
            calls[inner](1)

        @idempotent(lambda: Session(engine), group="payment")
        def pay(session: Session, message: ReceivedMessage) -> None:
            place(1)

        def in_late() -> None:
            with Session(engine) as session, producer.transaction(session):
                place(1)

        def late(_: int) -> None:
            with Session(engine) as session, producer.transaction(session) as tx:
                tx.send("order.placed", 1)

        calls: dict[str, Callable[[int], None]] = {"place": place, "outbox": place_if_away, "late": late}
        inside = r"is called inside .*app\.join\(session\)\.send"
        for inner in calls:
            with pytest.raises(MisuseError, match=inside):
                repeat(inner)
        with pytest.raises(MisuseError, match=inside):
            pay(ReceivedMessage("order.placed", b"", id_bytes=bytes(16)))
        with pytest.raises(MisuseError, match=inside):
            in_late()
        place(2)  # outside
    until(lambda: half_count(notify_url) == 0)
    assert message_count(notify_url) == 1
    assert database.paid() == [(2, 7)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_task_started_inside_a_transaction_is_outside_after_its_end(
    broker: BrokerProcess, database: BusinessDatabase, async_engine: AsyncEngine, notify_url: str
) -> None:
    app = Txmsg(broker.address, group="shop", database=async_engine)
    is_over = asyncio.Event()
    left: list[asyncio.Task[None]] = []

    @app.transactional_message("order.placed")
    async def place(session: AsyncSession, order_id: int) -> None:
        await session.execute(PAY, {"id": order_id})

    async def afterwards() -> None:
        await is_over.wait()
        await place(2)

    @app.transactional_message("order.repeated")
    async def repeat(session: AsyncSession) -> None:
        left.append(asyncio.create_task(afterwards()))

    async with app:
        await repeat()
        is_over.set()
        await left[0]
    assert database.paid() == [(2, 7)]
    assert message_count(notify_url) == 2


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_call_on_another_database_is_a_separate_transaction(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, notify_url: str, tmp_path: Path
) -> None:
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}", **POOL_OF_ONE)
    with (
        Txmsg(broker.address, group="shop", database=engine) as app,
        Txmsg(broker.address, group="audit", database=other) as audit,
    ):

        @audit.transactional_message("noted")
        def note(session: Session) -> None: ...

        @app.transactional_message("order.placed")
        def place(session: Session, order_id: int) -> None:
            session.execute(PAY, {"id": order_id})
            note()

        @audit.transactional_message("noted")
        def place_within(session: Session) -> None:
            place(2)

        @app.transactional_message("order.placed")
        def place_through(session: Session, order_id: int) -> None:
            place_within()

        place(1)
        with pytest.raises(MisuseError, match=r"place\(\) is called inside .*place_through"):
            place_through(3)
    other.dispose()
    assert message_count(notify_url) == 2


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_retried_commit_after_stored_halves_stores_no_others(
    broker: BrokerProcess, database: BusinessDatabase, engine: Engine, notify_url: str
) -> None:
    with Txmsg(broker.address, group="shop", database=engine) as app, Session(engine) as session:
        (producer,) = app._producers
        stored: list[Half] = []
        producer.hooks.after_half = stored.append
        session.execute(PAY, {"id": 1})
        app.join(session).send("order.paid", {"order_id": 1})

        @event.listens_for(session, "before_commit", once=True)
        def fail(_: Session) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            session.commit()
        session.commit()
    assert len(stored) == 1
    assert counts(notify_url) == (0, 1)
    assert database.paid() == [(1, 7)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_unanswered_commit_over_several_notify_databases_is_not_retried(
    database: BusinessDatabase, engine: Engine
) -> None:
    create_tables(engine)
    app = Txmsg("127.0.0.1:1; 127.0.0.1:2", group="shop", database=engine)
    with Session(engine) as session:
        session.execute(PAY, {"id": 1})
        app.join(session).send("order.paid", {"order_id": 1})
        (producer,) = app._producers

        def fail() -> None:
            raise BrokerUnavailable("of the test")

        producer.hooks.before_half = fail
        with pytest.raises(BrokerUnavailable):
            session.commit()
        with pytest.raises(MisuseError, match="one of several Notify databases: roll back, and begin again"):
            session.commit()
        session.rollback()
    assert database.paid() == []


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_transaction_joined_by_one_application_cannot_be_joined_by_another(
    database: BusinessDatabase, engine: Engine
) -> None:
    one, other = (Txmsg("127.0.0.1:1", group=group, database=engine) for group in ("shop", "audit"))
    with Session(engine) as session:
        assert one.join(session) is one.join(session)
        with pytest.raises(MisuseError, match="another application has joined the transaction"):
            other.join(session)
