"""Sessions that choose a connection for each statement, by `binds=` or by a custom `get_bind`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Delete, Engine, Update, create_engine, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from tests.broker_process import BrokerProcess
from tests.business import POOL_OF_ONE
from tests.integration.client_harness import WAIT_S, message_count
from tests.integration.fence.business import place_by_both_flows
from txmsg.checker.fence import Fence, FenceCheckListener
from txmsg.checker.tables import create_tables, metadata, outbox_table
from txmsg.client import AsyncProducer, idempotent, transactional_message
from txmsg.client.outbox import rows
from txmsg.errors import MisuseError
from txmsg.message import Message, ReceivedMessage, TransactionState, new_transaction_id


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """The primary."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("database_url").replace("postgresql:", "postgresql+psycopg:", 1)
    engine = create_engine(url, **POOL_OF_ONE)
    Base.metadata.create_all(engine)
    create_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Engine]:
    """A database from which routing sessions read. It has no tables."""
    engine = create_engine(f"sqlite:///{tmp_path / 'replica.db'}", **POOL_OF_ONE)
    yield engine
    engine.dispose()


Sessions = sessionmaker[Session]


def bound(engine: Engine, _replica: Engine) -> Sessions:
    binds: dict[Any, Engine] = dict.fromkeys([Order, *metadata.sorted_tables], engine)
    return sessionmaker(binds=binds)


def routing(engine: Engine, replica: Engine) -> Sessions:
    class RoutingSession(Session):  # as SQLAlchemy's documentation has it
        def get_bind(self, mapper: Any = None, clause: Any = None, **_: Any) -> Engine:
            if self._flushing or isinstance(clause, Update | Delete):
                return engine
            return replica

    return sessionmaker(class_=RoutingSession)


@pytest.fixture(params=[bound, routing])
def sessions(request: pytest.FixtureRequest, engine: Engine, replica: Engine) -> Sessions:
    make: Callable[[Engine, Engine], Sessions] = request.param
    return make(engine, replica)


def orders(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(select(Order.id).order_by(Order.id)))


def test_a_fence_row_is_written_to_the_engine_of_writes(sessions: Sessions, engine: Engine) -> None:
    fence, transaction_id = Fence(engine), new_transaction_id()
    with sessions() as session:
        fence.write(session, transaction_id)
        session.commit()
    assert fence.check(transaction_id) is TransactionState.COMMIT


def test_an_inbox_row_is_written_to_the_engine_of_writes(sessions: Sessions, engine: Engine) -> None:
    message = ReceivedMessage("t", b"")
    handler = idempotent(sessions, group="g")(lambda session, message: session.add(Order()))
    for generation in (0, 0, 1):
        handler(message._replace(generation=generation))
    assert orders(engine) == [1, 2]


def test_an_outbox_row_is_written_to_the_engine_of_writes(sessions: Sessions, engine: Engine) -> None:
    with sessions() as session:
        rows.write(session, "g", new_transaction_id(), None, "x")
        session.commit()
    with engine.connect() as connection:
        assert list(connection.scalars(select(outbox_table.c.messages))) == ["x"]


def test_both_flows_write_their_rows_to_the_engine_of_writes(
    broker: BrokerProcess, sessions: Sessions, engine: Engine, notify_url: str
) -> None:
    listener = FenceCheckListener(engine)
    place_by_both_flows(broker.address, listener, sessions, lambda number: Order(id=number))
    assert orders(engine) == [1, 2]
    assert message_count(notify_url) == 2


async def test_coroutines_write_their_rows_to_the_engine_of_writes(
    broker: BrokerProcess, engine: Engine, replica: Engine, notify_url: str
) -> None:
    url = engine.url.set(drivername="sqlite+aiosqlite") if engine.dialect.name == "sqlite" else engine.url
    async_engine = create_async_engine(url, **POOL_OF_ONE)
    sync_sessions = routing(async_engine.sync_engine, replica)
    sessions = async_sessionmaker(sync_session_class=sync_sessions.class_)
    listener = FenceCheckListener(async_engine)

    @idempotent(sessions, group="g")
    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        session.add(Order(id=3))

    async with AsyncProducer(broker.address, group="g", timeout_s=WAIT_S, check_listener=listener) as producer:

        @transactional_message(producer, topic="order", session=sessions)
        async def place(session: AsyncSession, number: int) -> None:
            session.add(Order(id=number))

        await place(1)
        async with sessions() as session, producer.transaction(session) as tx:
            session.add(Order(id=2))
            tx.send(Message("order", b"2"))
        await handler(ReceivedMessage("t", b""))
    await async_engine.dispose()
    assert orders(engine) == [1, 2, 3]
    assert message_count(notify_url) == 2


def test_a_table_without_a_bind_is_reported(engine: Engine) -> None:
    fence = Fence(engine)
    with sessionmaker(binds={Order: engine})() as session:
        with pytest.raises(MisuseError, match=r"has no bind for table txmsg_fence: .*sorted_tables"):
            fence.write(session, new_transaction_id())
    with pytest.raises(MisuseError, match="has no bind for table txmsg_inbox"):
        idempotent(sessionmaker(binds={Order: engine}), group="g")(lambda *_: None)(ReceivedMessage("t", b""))


def test_reads_of_a_replica_within_a_transaction_are_refused_with_a_remedy(engine: Engine, replica: Engine) -> None:
    def handle(session: Session, message: ReceivedMessage) -> None:
        session.execute(insert(Order), bind_arguments={"bind": engine})
        session.execute(select(1))

    with pytest.raises(MisuseError, match="let a session that routes reads to a replica use the primary here"):
        idempotent(routing(engine, replica), group="g")(handle)(ReceivedMessage("t", b""))
    assert orders(engine) == []
