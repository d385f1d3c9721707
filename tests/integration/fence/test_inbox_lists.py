"""Batches handled in one transaction: each message once, and a failing message fails alone."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from tests.integration.client_harness import WAIT_S
from txmsg import Producer, RetryAfter, Start, Topic, Txmsg
from txmsg.checker.tables import create_tables, inbox_table
from txmsg.client import idempotent
from txmsg.client.receiving.inbox_handler import IdempotentHandler
from txmsg.client.receiving.inbox_handler_async import AsyncIdempotentHandler
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage, new_transaction_id

INSERT = text("insert into effects values (:name)")


def messages(*names: str) -> list[ReceivedMessage]:
    return [ReceivedMessage("t", name.encode(), id_bytes=new_transaction_id().bytes) for name in names]


@pytest.fixture
def tables(engine: Engine) -> Engine:
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text("create table effects (name varchar(20) primary key)"))
    return engine


def effects(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(text("select name from effects order by name")))


def recorded(engine: Engine) -> int:
    with engine.connect() as connection:
        return len(connection.scalars(select(inbox_table.c.message_id)).all())


def of_lists(engine: Engine, work: Callable[[Session, list[ReceivedMessage]], Any]) -> IdempotentHandler:
    handler = idempotent(sessionmaker(engine), group="g")(work)
    assert isinstance(handler, IdempotentHandler)
    return handler


def store(session: Session, given: list[ReceivedMessage]) -> None:
    for message in given:
        session.execute(INSERT, {"name": message.body.decode()})


def test_a_batch_is_one_transaction_and_repeats_are_left_out(tables: Engine) -> None:
    seen: list[list[bytes]] = []

    def store_and_note(session: Session, given: list[ReceivedMessage]) -> None:
        seen.append([message.body for message in given])
        store(session, given)

    handler = of_lists(tables, store_and_note)
    a, b, c = messages("a", "b", "c")
    assert handler.handle_list([b, a, b]) == [None, None, None]  # b came twice in one batch
    assert handler.handle_list([a, c]) == [None, None]
    assert handler.handle_list([a, b, c]) == [None, None, None]
    assert seen == [[b"b", b"a"], [b"c"]]
    assert (effects(tables), recorded(tables)) == (["a", "b", "c"], 3)


def test_a_redriven_message_is_handled_again(tables: Engine) -> None:
    seen: list[list[int]] = []
    handler = of_lists(tables, lambda session, given: seen.append([message.generation for message in given]))
    [a] = messages("a")
    for generations in ([0], [0, 2], [1], [2], [3, 0]):
        handler.handle_list([a._replace(generation=generation) for generation in generations])
    assert seen == [[0], [2], [3]]


def test_a_failing_message_of_a_batch_fails_alone(tables: Engine) -> None:
    given = messages("a", "b", "a", "c")  # the second a breaks the key of effects
    results = of_lists(tables, store).handle_list(given)
    assert [type(each) for each in results] == [type(None), type(None), IntegrityError, type(None)]
    assert (effects(tables), recorded(tables)) == (["a", "b", "c"], 3)


def test_a_control_exception_for_the_whole_batch_is_tried_once(tables: Engine) -> None:
    calls: list[int] = []

    def fail(session: Session, given: list[ReceivedMessage]) -> None:
        calls.append(len(given))
        raise RetryAfter(5.0, "later")

    with pytest.raises(RetryAfter):
        of_lists(tables, fail).handle_list(messages("a", "b"))
    assert (calls, recorded(tables)) == ([2], 0)


def test_an_unavailable_database_is_tried_once(tables: Engine) -> None:
    """It is also tried once if it fails while messages are handled one by one."""
    opened: list[int] = []
    failing_from = 1

    def factory() -> Session:
        opened.append(len(opened) + 1)
        if len(opened) >= failing_from:
            raise ConnectionRefusedError("no database")
        return Session(tables)

    handler = idempotent(factory, group="g")(store)
    assert isinstance(handler, IdempotentHandler)
    with pytest.raises(ConnectionRefusedError):
        handler.handle_list(messages("a", "b", "c"))
    assert opened == [1]
    opened.clear()
    failing_from = 3  # the batch and its first message alone get a session
    results = handler.handle_list(messages("a", "a", "c", "d"))
    assert [type(each) for each in results] == [type(None), *[ConnectionRefusedError] * 3]
    assert (len(opened), effects(tables)) == (3, ["a"])


def test_a_statement_that_fails_for_one_message_fails_only_that_message(tables: Engine) -> None:
    """Drivers raise OperationalError for many such errors, as for an unavailable database."""

    def store_or_break(session: Session, given: list[ReceivedMessage]) -> None:
        for message in given:
            if message.body == b"bad":
                raise OperationalError("select json(...)", None, ValueError("malformed JSON"))
            session.execute(INSERT, {"name": message.body.decode()})

    results = of_lists(tables, store_or_break).handle_list(messages("a", "bad", "c"))
    assert [type(each) for each in results] == [type(None), OperationalError, type(None)]
    assert effects(tables) == ["a", "c"]


def test_results_of_single_messages_are_refused(tables: Engine) -> None:
    handler = of_lists(tables, lambda session, given: [ValueError("no")] * len(given))
    results = handler.handle_list(messages("a", "b"))
    assert all(isinstance(each, MisuseError) and "all or none" in str(each) for each in results)
    assert recorded(tables) == 0


def test_batches_that_share_messages_do_not_deadlock(tables: Engine) -> None:
    """Each message takes effect once in any order; messages that waited for another batch are left out."""
    handler = of_lists(tables, store)
    given = messages(*(f"m{n}" for n in range(20)))
    lists = [given, given[::-1], given[10:] + given[:10], given[::2] + given[1::2]]
    results: queue.Queue[list[Exception | None]] = queue.Queue()
    threads = [threading.Thread(target=lambda each=each: results.put(handler.handle_list(each))) for each in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    failed = [error for _ in lists for error in results.get(timeout=WAIT_S) if error is not None]
    if tables.dialect.name != "sqlite":  # SQLite writers may get "locked" and are redelivered
        assert failed == []
    assert len(effects(tables)) == recorded(tables) <= 20


async def test_coroutines_handle_batches(async_url: str) -> None:
    engine = create_async_engine(async_url)
    await create_tables(engine)
    async with engine.begin() as connection:
        await connection.execute(text("create table effects (name varchar(20) primary key)"))

    async def store_async(session: AsyncSession, given: list[ReceivedMessage]) -> None:
        for message in given:
            await session.execute(INSERT, {"name": message.body.decode()})

    handler = idempotent(async_sessionmaker(engine), group="g")(store_async)
    assert isinstance(handler, AsyncIdempotentHandler)
    given = messages("a", "b", "a", "c")
    results = await handler.handle_list(given)
    assert [each is None for each in results] == [True, True, False, True]
    again = await handler.handle_list(given[:2])
    async with engine.connect() as connection:
        found = list(await connection.scalars(text("select name from effects order by name")))
    await engine.dispose()
    assert (again, found) == ([None, None], ["a", "b", "c"])


def test_an_application_passes_batches_to_an_idempotent_handler(broker: BrokerProcess, database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    create_tables(engine)
    lengths: list[int] = []
    came = threading.Event()
    app = Txmsg(broker.address, group="g", database=engine)
    numbers = Topic("numbers", str)

    @app.subscribe(numbers, batch=50, concurrency=1, start=Start.earliest())
    @idempotent(sessionmaker(engine))
    def add(session: Session, values: list[str]) -> None:
        session.execute(text("insert into sums values (:n)"), {"n": sum(map(int, values))})
        lengths.append(len(values))
        if sum(lengths) == 200:
            came.set()

    with engine.begin() as connection:
        connection.execute(text("create table sums (n integer)"))
    with Producer(broker.address, group="s") as producer:
        producer.send_many([numbers.message(str(n)) for n in range(200)])
    with app:
        assert came.wait(WAIT_S)
    with engine.connect() as connection:
        total = connection.scalar(text("select sum(n) from sums"))
    engine.dispose()
    assert (total, sum(lengths)) == (sum(range(200)), 200)
    assert max(lengths) > 1
