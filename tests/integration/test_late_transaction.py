"""`producer.transaction(session)` with a real broker and a real business database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Engine, String, create_engine, event, func, insert, select, text
from sqlalchemy.exc import IntegrityError, InternalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.broker_process import BrokerProcess
from tests.business import POOL_OF_ONE, business_database, seen_from_outside
from tests.integration.client_harness import WAIT_S, collecting, counts, half_count, message_count
from txmsg.checker.fence import FenceCheckListener
from txmsg.checker.tables import create_tables
from txmsg.client import AsyncProducer, Producer
from txmsg.errors import BrokerUnavailable, InvalidMessage, MisuseError
from txmsg.message import Message
from txmsg.message.typed.topic import Topic


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(String(50))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with business_database(database_url, Base.metadata) as engine:
        yield engine


@pytest.fixture
def producer(broker: BrokerProcess, engine: Engine) -> Iterator[Producer]:
    with Producer(
        broker.address, group="orders", timeout_s=WAIT_S, check_listener=FenceCheckListener(engine)
    ) as producer:
        yield producer


def orders(engine: Engine) -> int:
    with seen_from_outside(engine).connect() as connection:
        return connection.execute(select(func.count()).select_from(Order)).scalar_one()


def test_messages_may_depend_on_results_of_the_transaction(
    broker: BrokerProcess, producer: Producer, engine: Engine
) -> None:
    with collecting(broker.address, "order") as got, Session(engine) as session:
        with producer.transaction(session) as tx:
            order = Order(item="tea")
            session.add(order)
            session.flush()
            ids = {tx.send(Message("order", str(order.id).encode())), tx.send(Message("order", b"second"))}
        assert not session.in_transaction()
        assert {got.get(timeout=WAIT_S).id, got.get(timeout=WAIT_S).id} == ids
        with producer.transaction(session) as tx:  # the caller can use the session again
            tx.send(Message("order", b"third"))
        assert got.get(timeout=WAIT_S).body == b"third"
    assert orders(engine) == 1


def test_a_value_is_sent_to_a_topic(broker: BrokerProcess, producer: Producer, engine: Engine) -> None:
    paid = Topic("order", dict, key="id")
    with collecting(broker.address, "order") as got, Session(engine) as session:
        with producer.transaction(session) as tx:
            tx.send("order", {"id": 1}, key=1, tag="new", ordering_key=UUID(int=1))
            tx.send(paid, {"id": 2})
            tx.send("order", b"as it is")
        found = {message.body: message for message in (got.get(timeout=WAIT_S) for _ in range(3))}
    new = found[b'{"id":1}']
    assert (new.key, new.tag, new.ordering_key) == ("1", "new", str(UUID(int=1)))
    assert {message.key for message in found.values()} == {"1", "2", None}
    assert b"as it is" in found


def test_invalid_arguments_of_send_are_refused(producer: Producer, engine: Engine) -> None:
    with Session(engine) as session, producer.transaction(session) as tx:
        with pytest.raises(MisuseError, match="has no value to send"):
            tx.send("order")  # type: ignore[call-overload]
        with pytest.raises(MisuseError, match="given a Message and more"):
            tx.send(Message("order", b""), tag="t")  # type: ignore[call-overload]
        with pytest.raises(MisuseError, match="knows the keys of its messages"):
            tx.send(Topic("order", dict), {}, key=1)  # type: ignore[call-overload]
        with pytest.raises(InvalidMessage, match="the value for topic 'order' is a set that JSON cannot represent"):
            tx.send("order", {1})
        with pytest.raises(InvalidMessage, match="the key for topic 'order' is a list, which has no short text form"):
            tx.send("order", 1, key=[])


def test_an_exception_rolls_back_and_sends_nothing(producer: Producer, engine: Engine, notify_url: str) -> None:
    def work(session: Session) -> None:
        with producer.transaction(session) as tx:
            session.add(Order(item="tea"))
            tx.send(Message("order", b"x"))
            raise ZeroDivisionError

    with Session(engine) as session, pytest.raises(ZeroDivisionError):
        work(session)
    assert (orders(engine), *counts(notify_url)) == (0, 0, 0)


def test_a_transaction_without_messages_commits(producer: Producer, engine: Engine, notify_url: str) -> None:
    with Session(engine) as session, producer.transaction(session):
        session.add(Order(item="tea"))
    assert (orders(engine), message_count(notify_url)) == (1, 0)


def test_without_a_broker_nothing_commits(engine: Engine) -> None:
    listener = FenceCheckListener(engine)

    def work(producer: Producer, session: Session) -> None:
        with producer.transaction(session) as tx:
            session.add(Order(item="tea"))
            tx.send(Message("order", b"x"))

    with Producer("127.0.0.1:1", group="g", check_listener=listener, timeout_s=0.5) as producer:
        with Session(engine) as session, pytest.raises(BrokerUnavailable):
            work(producer, session)
    assert orders(engine) == 0


def test_savepoints_inside_neither_send_nor_commit(producer: Producer, engine: Engine, notify_url: str) -> None:
    with Session(engine) as session, producer.transaction(session) as tx:
        session.add(Order(item="tea"))
        with session.begin_nested():
            session.add(Order(item="cup"))
        tx.send(Message("order", b"x"))
        savepoint = session.begin_nested()
        session.add(Order(item="spoon"))
        session.flush()
        savepoint.rollback()
        assert (half_count(notify_url), orders(engine)) == (0, 0)
    assert (orders(engine), *counts(notify_url)) == (2, 0, 1)


class Undone(Exception):
    """Raised to end a savepoint."""


def sent_in_session_savepoint(session: Session, send: Callable[[bytes], object]) -> None:
    with suppress(Undone), session.begin_nested():
        send(b"undone before any statement")
        raise Undone


def sent_in_released_within_rolled_back(session: Session, send: Callable[[bytes], object]) -> None:
    with suppress(Undone), session.begin_nested():
        session.add(Order(item="undone"))
        with session.begin_nested():
            session.add(Order(item="undone"))
            send(b"undone")
        send(b"undone, too")
        raise Undone


def sent_in_savepoint_whose_flush_fails(session: Session, send: Callable[[bytes], object]) -> None:
    with suppress(IntegrityError), session.begin_nested():
        send(b"undone")
        session.add(Order(id=1, item="undone"))
        session.flush()
        session.add(Order(id=1, item="undone"))


def sent_in_savepoint_of_the_connection(session: Session, send: Callable[[bytes], object]) -> None:
    with suppress(Undone), session.connection().begin_nested():
        send(b"undone")
        raise Undone


def sent_in_savepoint_as_sql(session: Session, send: Callable[[bytes], object]) -> None:
    session.execute(text("savepoint mine"))
    send(b"undone")
    session.execute(text("rollback to savepoint mine"))


@pytest.mark.filterwarnings("ignore:New instance .* conflicts with persistent instance")
def test_messages_sent_in_a_savepoint_are_dropped_with_it(
    broker: BrokerProcess, producer: Producer, engine: Engine, notify_url: str
) -> None:
    """Sent before or after a statement, in a released inner savepoint, by a failed flush, on the connection, or as
    text.
    """
    ways = [
        sent_in_session_savepoint,
        sent_in_released_within_rolled_back,
        sent_in_savepoint_whose_flush_fails,
        sent_in_savepoint_of_the_connection,
        sent_in_savepoint_as_sql,
    ]
    with collecting(broker.address, "order") as got:
        for way in ways:
            with Session(engine) as session, producer.transaction(session) as tx:
                tx.send(Message("order", b"first"))
                way(session, lambda body: tx.send(Message("order", body)))
                with session.begin_nested():
                    tx.send(Message("order", b"last"))
            assert {got.get(timeout=WAIT_S).body, got.get(timeout=WAIT_S).body} == {b"first", b"last"}
    assert (orders(engine), *counts(notify_url)) == (0, 0, 2 * len(ways))


def sent_before_failed_release(session: Session, send: Callable[[bytes], object]) -> None:
    session.execute(text("savepoint mine"))
    session.execute(insert(Order).values(item="kept"))
    send(b"kept")
    session.execute(text("savepoint mine"))
    with suppress(ProgrammingError):
        session.execute(text("select nonsense from nowhere"))
    with suppress(InternalError):
        session.execute(text("release savepoint mine"))  # in an aborted transaction
    session.execute(text("rollback to savepoint mine"))  # to the second


@contextmanager
def failing_after_release(session: Session) -> Iterator[None]:
    """Make the commit after a RELEASE fail: the session then takes the savepoint for rolled back."""

    def fail(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("RELEASE"):
            raise Undone

    engine = session.connection().engine
    event.listen(engine, "after_cursor_execute", fail)
    try:
        with suppress(Undone), session.begin_nested():
            yield
    finally:
        event.remove(engine, "after_cursor_execute", fail)


def sent_in_savepoint_that_fails_after_its_release(session: Session, send: Callable[[bytes], object]) -> None:
    with failing_after_release(session):
        session.execute(insert(Order).values(item="kept"))
        send(b"kept")


def sent_before_the_statement_in_such_a_savepoint(session: Session, send: Callable[[bytes], object]) -> None:
    with failing_after_release(session):
        send(b"kept")
        session.execute(insert(Order).values(item="kept"))


def test_messages_of_a_savepoint_whose_rows_remain_are_sent(
    broker: BrokerProcess, producer: Producer, engine: Engine
) -> None:
    ways = [
        sent_before_failed_release,
        sent_in_savepoint_that_fails_after_its_release,
        sent_before_the_statement_in_such_a_savepoint,
    ]
    with collecting(broker.address, "order") as got:
        for count, way in enumerate(ways, 1):
            with Session(engine) as session, producer.transaction(session) as tx:
                way(session, lambda body: tx.send(Message("order", body)))
                tx.send(Message("order", b"last"))
            assert orders(engine) == count
            assert {got.get(timeout=WAIT_S).body, got.get(timeout=WAIT_S).body} == {b"kept", b"last"}, way.__name__


def test_a_transaction_with_all_messages_rolled_back_commits(
    producer: Producer, engine: Engine, notify_url: str
) -> None:
    with Session(engine) as session, producer.transaction(session) as tx:
        session.add(Order(item="tea"))
        sent_in_session_savepoint(session, lambda body: tx.send(Message("order", body)))
    assert (orders(engine), message_count(notify_url)) == (1, 0)


def test_a_transaction_object_serves_one_block(producer: Producer, engine: Engine) -> None:
    with Session(engine) as session:
        transaction = producer.transaction(session)
        with transaction:
            session.add(Order(item="tea"))
        with pytest.raises(MisuseError, match="a second time"):
            transaction.__enter__()
        session.add(Order(item="cup"))
        session.commit()  # nothing of it is left
    assert orders(engine) == 2


def test_a_transaction_begun_before_the_block_is_guarded_in_it(
    producer: Producer, engine: Engine, notify_url: str
) -> None:
    def work(session: Session) -> None:
        with producer.transaction(session) as tx:
            tx.send(Message("order", b"x"))
            session.execute(text("commit"))

    with Session(engine) as session:
        session.add(Order(item="tea"))
        session.flush()
        with pytest.raises(MisuseError, match="would end its transaction"):
            work(session)
    assert (orders(engine), message_count(notify_url)) == (0, 0)


def test_a_session_in_autocommit_is_refused_before_it_writes(producer: Producer, engine: Engine) -> None:
    def work(session: Session) -> None:
        with producer.transaction(session):
            session.add(Order(item="tea"))

    with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(MisuseError, match="AUTOCOMMIT"):
            work(session)
    assert orders(engine) == 0


def test_a_first_savepoint_on_sqlite_does_not_commit_by_itself(tmp_path: Path, broker: BrokerProcess) -> None:
    """The driver begins no transaction before SAVEPOINT, and RELEASE would then commit."""
    engine = create_engine(f"sqlite:///{tmp_path}/orders.db")
    Base.metadata.create_all(engine)
    listener = FenceCheckListener(engine)
    create_tables(engine)

    def work(producer: Producer, session: Session) -> None:
        with producer.transaction(session):
            with session.begin_nested():
                session.add(Order(item="tea"))
            raise ZeroDivisionError

    with Producer(broker.address, group="orders", timeout_s=WAIT_S, check_listener=listener) as producer:
        with Session(engine) as session, pytest.raises(ZeroDivisionError):
            work(producer, session)
    assert orders(engine) == 0
    engine.dispose()


def test_a_surrounding_savepoint_is_refused(producer: Producer, engine: Engine) -> None:
    with Session(engine) as session:
        session.begin_nested()
        with pytest.raises(MisuseError, match="inside a savepoint"):
            producer.transaction(session).__enter__()


def test_a_savepoint_left_open_is_refused(producer: Producer, engine: Engine) -> None:
    def work(session: Session) -> None:
        with producer.transaction(session):
            session.add(Order(item="tea"))
            session.begin_nested()

    with Session(engine) as session, pytest.raises(MisuseError, match="still open"):
        work(session)
    assert orders(engine) == 0


def test_committing_inside_is_refused(producer: Producer, engine: Engine, notify_url: str) -> None:
    def work(session: Session) -> None:
        with producer.transaction(session) as tx:
            session.add(Order(item="tea"))
            tx.send(Message("order", b"x"))
            session.commit()

    with Session(engine) as session, pytest.raises(MisuseError, match="commit inside"):
        work(session)
    assert (orders(engine), *counts(notify_url)) == (0, 0, 0)


def test_sending_after_the_end_is_refused(producer: Producer, engine: Engine) -> None:
    with Session(engine) as session, producer.transaction(session) as tx:
        pass
    with pytest.raises(MisuseError, match="outside"):
        tx.send(Message("order", b"x"))


def test_a_session_in_a_foreign_transaction_is_refused(producer: Producer, engine: Engine) -> None:
    with engine.connect() as connection, Session(connection) as session:
        with pytest.raises(MisuseError, match="bind it to an engine"):
            producer.transaction(session)


def test_a_producer_without_a_listener_is_refused(engine: Engine) -> None:
    with Session(engine) as session, pytest.raises(MisuseError, match="check_listener"):
        Producer("127.0.0.1:1", group="g").transaction(session)


async def test_the_late_flow_works_in_coroutines(broker: BrokerProcess, engine: Engine, notify_url: str) -> None:
    async def work(producer: AsyncProducer, session: AsyncSession, item: str) -> None:
        async with producer.transaction(session) as tx:
            order = Order(item=item)
            session.add(order)
            await session.flush()
            tx.send(Message("order", str(order.id).encode()))
            async with session.begin_nested():
                session.add(Order(item="cup"))
            if item == "bad":
                await session.commit()

    async_engine = create_async_engine(engine.url, **POOL_OF_ONE)
    listener = FenceCheckListener(async_engine)
    async with AsyncProducer(broker.address, group="orders", timeout_s=WAIT_S, check_listener=listener) as producer:
        async with AsyncSession(async_engine) as session:
            await work(producer, session, "tea")
            with pytest.raises(MisuseError, match="commit inside"):
                await work(producer, session, "bad")
    await async_engine.dispose()
    assert (orders(engine), *counts(notify_url)) == (2, 0, 1)


def test_an_unstarted_producer_needs_no_second_connection(
    broker: BrokerProcess, engine: Engine, notify_url: str
) -> None:
    producer = Producer(broker.address, group="orders", timeout_s=WAIT_S, check_listener=FenceCheckListener(engine))
    with Session(engine) as session:
        session.add(Order(item="tea"))
        session.flush()
        with producer.transaction(session) as tx:
            tx.send(Message("order", b"tea"))
    producer.close()
    assert (orders(engine), *counts(notify_url)) == (1, 0, 1)
