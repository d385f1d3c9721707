"""Flush and commit listeners of the application, which run at the end of a late transaction's block.

Domain events are often sent there: changes are known when they are flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, String, event, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from tests.broker_process import BrokerProcess
from tests.business import POOL_OF_ONE, business_database, seen_from_outside
from tests.integration import client_harness
from tests.integration.client_harness import WAIT_S
from txmsg.checker.fence import FenceCheckListener
from txmsg.client import AsyncProducer, Producer
from txmsg.errors import BrokerUnavailable, MisuseError
from txmsg.message import Message

EVENTS = ["before_flush", "after_flush", "after_flush_postexec", "before_commit"]
X = Message("order", b"x")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(String(50))


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    on_server = request.param == "postgresql"
    url = request.getfixturevalue("database_url") if on_server else f"sqlite:///{tmp_path / 'shop.db'}"
    with business_database(url, Base.metadata) as engine:
        yield engine


@pytest.fixture
def producer(broker: BrokerProcess, engine: Engine) -> Iterator[Producer]:
    with Producer(
        broker.address, group="orders", timeout_s=WAIT_S, check_listener=FenceCheckListener(engine)
    ) as producer:
        yield producer


def counts(engine: Engine, notify_url: str) -> tuple[int, int, int]:
    """Return the numbers of orders, undecided halves and messages."""
    with seen_from_outside(engine).connect() as connection:
        orders = connection.execute(select(func.count()).select_from(Order)).scalar_one()
    return orders, *client_harness.counts(notify_url)


def ordered(producer: Producer, session: Session, listen: Callable[[Any], None]) -> None:
    """Run a block whose only statement is sent by the flush at its end."""
    with producer.transaction(session) as tx:
        listen(tx)
        session.add(Order(item="tea"))


@pytest.mark.parametrize("name", EVENTS)
def test_a_session_listener_may_send_at_the_end_of_the_block(
    name: str, producer: Producer, engine: Engine, notify_url: str
) -> None:
    with Session(engine) as session:
        ordered(producer, session, lambda tx: event.listen(session, name, lambda *_: tx.send(X), once=True))
    assert counts(engine, notify_url) == (1, 0, 1)


@pytest.mark.parametrize("name", EVENTS)
async def test_a_session_listener_of_a_coroutine_may_send_at_the_end_of_the_block(
    name: str, broker: BrokerProcess, engine: Engine, notify_url: str
) -> None:
    url = engine.url.set(drivername="sqlite+aiosqlite") if engine.dialect.name == "sqlite" else engine.url
    async_engine = create_async_engine(url, **POOL_OF_ONE)
    listener = FenceCheckListener(async_engine)
    async with AsyncProducer(broker.address, group="orders", timeout_s=WAIT_S, check_listener=listener) as producer:
        async with AsyncSession(async_engine) as session, producer.transaction(session) as tx:
            event.listen(session.sync_session, name, lambda *_: tx.send(X), once=True)
            session.add(Order(item="tea"))
    await async_engine.dispose()
    assert counts(engine, notify_url) == (1, 0, 1)


def test_a_listener_sends_messages_for_changes_flushed_by_another_listener(
    producer: Producer, engine: Engine, notify_url: str
) -> None:
    sessions = sessionmaker(engine)

    def add_another(session: Session) -> None:
        session.add(Order(item="cup"))
        with session.begin_nested():
            session.add(Order(item="spoon"))

    def tell(session: Session, _: object) -> None:
        for _order in session.new:
            session.info["tx"].send(X)

    event.listen(sessions, "before_commit", add_another, once=True)
    event.listen(sessions, "after_flush", tell)
    with sessions() as session:
        ordered(producer, session, lambda tx: session.info.update(tx=tx))
    assert counts(engine, notify_url) == (3, 0, 3)


def test_a_change_after_the_flush_is_flushed_and_sent(producer: Producer, engine: Engine, notify_url: str) -> None:
    with Session(engine) as session:

        def add_another(*_: object) -> None:
            session.add(Order(item="cup"))

        def listen(tx: Any) -> None:
            event.listen(session, "after_flush_postexec", add_another, once=True)
            event.listen(session, "after_flush", lambda *_: tx.send(X))

        ordered(producer, session, listen)
    assert counts(engine, notify_url) == (2, 0, 2)


def test_endless_changes_of_listeners_are_refused(producer: Producer, engine: Engine, notify_url: str) -> None:
    with Session(engine) as session:
        event.listen(session, "after_flush_postexec", lambda *_: session.add(Order(item="cup")))
        with pytest.raises(MisuseError, match="a listener to after_flush makes new ones each time"):
            ordered(producer, session, lambda tx: tx.send(X))
    assert counts(engine, notify_url) == (0, 0, 0)


def test_a_listener_that_commits_the_connection_is_refused(producer: Producer, engine: Engine, notify_url: str) -> None:
    def commit(session: Session) -> None:
        transaction = session.connection().get_transaction()
        assert transaction is not None
        transaction.commit()

    with Session(engine) as session:
        session.execute(insert(Order).values(item="tea"))
        event.listen(session, "before_commit", commit, once=True)
        with pytest.raises(MisuseError, match="commit inside"):
            ordered(producer, session, lambda tx: tx.send(X))
    assert counts(engine, notify_url) == (0, 0, 0)


def test_a_failing_listener_rolls_back_and_sends_nothing(producer: Producer, engine: Engine, notify_url: str) -> None:
    def fail(_: Session) -> None:
        raise ZeroDivisionError

    with Session(engine) as session:
        event.listen(session, "before_commit", fail)
        with pytest.raises(ZeroDivisionError):
            ordered(producer, session, lambda tx: tx.send(X))
        assert not session.in_transaction()
    assert counts(engine, notify_url) == (0, 0, 0)


def test_sending_after_the_commit_is_refused(producer: Producer, engine: Engine, notify_url: str) -> None:
    refused: list[pytest.ExceptionInfo[MisuseError]] = []

    def send_late(tx: Any) -> None:
        with pytest.raises(MisuseError, match=r"tx\.send\(\) outside") as caught:
            tx.send(X)
        refused.append(caught)

    with Session(engine) as session:
        ordered(producer, session, lambda tx: event.listen(session, "after_commit", lambda _: send_late(tx)))
    assert len(refused) == 1
    assert counts(engine, notify_url) == (1, 0, 0)


def test_without_a_broker_nothing_commits_and_the_session_stays_usable(engine: Engine) -> None:
    listener = FenceCheckListener(engine)
    with Producer("127.0.0.1:1", group="g", check_listener=listener, timeout_s=0.5) as producer:
        with Session(engine) as session:
            with pytest.raises(BrokerUnavailable):
                ordered(producer, session, lambda tx: event.listen(session, "before_commit", lambda _: tx.send(X)))
            assert session.scalar(select(func.count()).select_from(Order)) == 0
