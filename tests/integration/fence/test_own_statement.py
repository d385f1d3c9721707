"""Statements for txmsg's own rows: sent together with BEGIN on psycopg, and visible to listeners of the application."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.integration.fence.business import LEVELS, recorded, register, users_count
from tests.postgres_proxy import CUT_BEFORE, FORWARD, HOLD, PostgresProxy
from txmsg.checker.fence import AsyncFence, Fence
from txmsg.checker.fence.with_begin import literals_of
from txmsg.checker.tables import create_tables
from txmsg.client import idempotent
from txmsg.errors import TransactionRefused
from txmsg.message import ReceivedMessage, new_transaction_id


@pytest.fixture
def proxy(postgres_engine: Engine) -> Iterator[PostgresProxy]:
    with PostgresProxy(postgres_engine.url.render_as_string(hide_password=False)) as proxy:
        yield proxy


@pytest.fixture
def engine_by_proxy(proxy: PostgresProxy) -> Iterator[Engine]:
    """An engine that is already connected: the dialect has made its initial queries, and the fence knows its id."""
    engine = create_engine(proxy.url)
    Fence(engine).fence_id()
    yield engine
    engine.dispose()


def sent(proxy: PostgresProxy, after: int) -> list[str]:
    """Return the first words of the requests after that number, without the isolation level that the fence sets."""
    said = [request.sql.replace(" ISOLATION LEVEL READ COMMITTED", "") for request in proxy.requests[after:]]
    return [" ".join(sql.split()[:4]) for sql in said]


def fence_of(engine: Engine) -> Fence:
    fence = Fence(engine)
    fence.fence_id()
    return fence


def test_begin_and_fence_row_are_one_request(proxy: PostgresProxy, engine_by_proxy: Engine) -> None:
    fence = fence_of(engine_by_proxy)
    before = len(proxy.requests)
    with Session(engine_by_proxy) as session:
        fence.write(session, new_transaction_id())
        register(session)
        session.commit()
    assert sent(proxy, before) == ["BEGIN; INSERT INTO txmsg_fence", "INSERT INTO users (email)", "COMMIT"]
    assert users_count(engine_by_proxy) == 1


async def test_begin_and_fence_row_are_one_request_of_asyncio(proxy: PostgresProxy, engine_by_proxy: Engine) -> None:
    engine = create_async_engine(proxy.url)
    fence, transaction_id = AsyncFence(engine), new_transaction_id()
    await fence.fence_id()
    before = len(proxy.requests)
    async with AsyncSession(engine) as session:
        await fence.write(session, transaction_id)
        await session.commit()
    await engine.dispose()
    assert sent(proxy, before) == ["BEGIN; INSERT INTO txmsg_fence", "COMMIT"]
    assert recorded(engine_by_proxy) == {transaction_id: "commit"}


@pytest.mark.parametrize("generation", [0, 3])
def test_begin_and_inbox_row_are_one_request(proxy: PostgresProxy, engine_by_proxy: Engine, generation: int) -> None:
    @idempotent(lambda: Session(engine_by_proxy), group="mailer-1.%a")
    def handle(session: Session, _: ReceivedMessage) -> None:
        register(session)

    before = len(proxy.requests)
    for _ in range(2):
        handle(ReceivedMessage("user", b"{}", generation=generation))
    begun = "BEGIN; INSERT INTO txmsg_inbox"
    assert sent(proxy, before) == [begun, "INSERT INTO users (email)", "COMMIT", begun, "ROLLBACK"]
    assert users_count(engine_by_proxy) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_transaction_has_the_isolation_level_of_the_engine(
    proxy: PostgresProxy, engine_by_proxy: Engine, level: str
) -> None:
    fence = fence_of(engine_by_proxy)
    engine = engine_by_proxy.execution_options(isolation_level=level, postgresql_deferrable=True)
    before = len(proxy.requests)
    with Session(engine) as session:
        fence.write(session, new_transaction_id())
        assert session.scalar(text("show transaction_isolation")) == level.lower()
        assert session.scalar(text("show transaction_deferrable")) == "on"
        session.commit()
    assert f"BEGIN ISOLATION LEVEL {level} DEFERRABLE; INSERT" in proxy.requests[before].sql
    with Session(engine_by_proxy) as session:  # the connection goes back as it came
        fence.write(session, new_transaction_id())
        assert session.scalar(text("show transaction_isolation")) == "read committed"


def test_row_is_sent_after_the_first_statements_of_the_session(proxy: PostgresProxy, engine_by_proxy: Engine) -> None:
    fence = fence_of(engine_by_proxy)
    before = len(proxy.requests)
    with Session(engine_by_proxy) as session:

        @event.listens_for(session, "after_begin")
        def limit(_session: Session, _transaction: object, connection: Connection) -> None:
            connection.execute(text("set local statement_timeout = 5000"))

        fence.write(session, new_transaction_id())
        assert session.scalar(text("show statement_timeout")) == "5s"
        session.commit()
    assert sent(proxy, before)[:2] == ["BEGIN", "set local statement_timeout ="]
    assert sent(proxy, before)[2].startswith("INSERT INTO txmsg_fence")


def test_statement_listeners_of_the_application_see_the_row(engine: Engine, fence: Fence) -> None:
    fence.fence_id()  # else the session would read it, and the row would not be the first statement
    said = []

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def mark(_connection: object, _cursor: object, sql: str, parameters: Any, *_: object) -> tuple[str, Any]:
        said.append(sql)
        return f"{sql} /* traced */", parameters

    with Session(engine) as session:
        fence.write(session, new_transaction_id())
        session.commit()
    assert any("INTO txmsg_fence" in sql for sql in said)
    assert list(recorded(engine).values()) == ["commit"]


@pytest.mark.parametrize("name", ["before_execute", "after_execute", "after_cursor_execute", "do_execute"])
def test_each_kind_of_statement_listener_sees_the_row(postgres_engine: Engine, name: str) -> None:
    fence, heard = fence_of(postgres_engine), list[str]()

    def listen(*arguments: object) -> None:
        heard.extend(str(each) for each in arguments)

    if name == "before_execute":  # it may replace the statement
        event.listen(postgres_engine, name, lambda _, statement, *__: heard.append(str(statement)))
    elif name == "do_execute":
        event.listen(postgres_engine, name, lambda _, statement, *__: heard.append(statement))
    else:
        event.listen(postgres_engine, name, listen)
    with Session(postgres_engine) as session:
        fence.write(session, new_transaction_id())
        session.commit()
    assert any("txmsg_fence" in each for each in heard)


def test_row_is_in_the_log_of_an_engine_that_echoes(postgres_engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine = create_engine(postgres_engine.url, echo=True)
    fence = fence_of(engine)
    caplog.clear()
    with Session(engine) as session:
        fence.write(session, new_transaction_id())
        session.commit()
    engine.dispose()
    assert any("INSERT INTO txmsg_fence" in message for message in caplog.messages)


def test_instrumented_cursors_of_psycopg_see_the_row(postgres_engine: Engine) -> None:
    executed: list[str] = []

    class Instrumented(psycopg.Cursor[Any]):
        def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
            executed.append(str(query))
            return super().execute(query, *arguments, **options)

    engine = create_engine(postgres_engine.url, connect_args={"cursor_factory": Instrumented})
    fence = fence_of(engine)
    with Session(engine) as session:
        fence.write(session, new_transaction_id())
        session.commit()
    engine.dispose()
    assert any("INSERT INTO txmsg_fence" in each for each in executed)


def test_row_goes_to_a_schema_whose_name_is_not_ascii_in_the_encoding_of_the_client(postgres_engine: Engine) -> None:
    with postgres_engine.begin() as connection:
        connection.exec_driver_sql('create schema "schéma"')
    engine = create_engine(postgres_engine.url, connect_args={"client_encoding": "latin1"})
    tenant = engine.execution_options(schema_translate_map={None: "schéma"})
    create_tables(tenant)
    fence, transaction_id = fence_of(tenant), new_transaction_id()
    with Session(tenant) as session:
        fence.write(session, transaction_id)
        session.commit()
    assert recorded(tenant) == {transaction_id: "commit"}
    engine.dispose()


def test_listener_to_errors_is_given_the_statement_and_its_parameters_apart(postgres_engine: Engine) -> None:
    fence, transaction_id = fence_of(postgres_engine), new_transaction_id()
    with Session(postgres_engine) as session:
        fence.write(session, transaction_id)
        session.commit()
    heard: list[tuple[str | None, object]] = []
    event.listen(postgres_engine, "handle_error", lambda context: heard.append((context.statement, context.parameters)))
    with Session(postgres_engine) as session, pytest.raises(TransactionRefused):
        fence.write(session, transaction_id)
    [(statement, parameters)] = heard
    assert str(transaction_id) not in str(statement)
    assert isinstance(parameters, dict)
    assert parameters["id"] == transaction_id


@pytest.mark.parametrize(
    ("value", "is_plain"), [("mailer-1.%a", True), ("O'Brien", False), ("Müller", False), (3, True)]
)
def test_only_values_that_need_no_quoting_become_part_of_the_text(value: object, is_plain: bool) -> None:
    assert (literals_of({"name": value}) is not None) == is_plain


def test_refused_row_is_rolled_back_and_its_connection_is_reused(proxy: PostgresProxy) -> None:
    engine = create_engine(proxy.url, pool_size=1, max_overflow=0)
    fence, transaction_id = fence_of(engine), new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        session.commit()
    connections = {request.connection for request in proxy.requests}
    with Session(engine) as session:
        with pytest.raises(TransactionRefused):
            fence.write(session, transaction_id)
    with Session(engine) as session:
        fence.write(session, new_transaction_id())
        session.commit()
    assert {request.connection for request in proxy.requests} == connections
    assert len(recorded(engine)) == 2
    engine.dispose()


def test_broken_pooled_connection_is_replaced(proxy: PostgresProxy, engine_by_proxy: Engine) -> None:
    fence = fence_of(engine_by_proxy)
    proxy.on_request = lambda request: CUT_BEFORE if "txmsg_fence" in request.sql else FORWARD
    with Session(engine_by_proxy) as session:
        with pytest.raises(OperationalError) as raised:
            fence.write(session, new_transaction_id())
        assert raised.value.connection_invalidated
    proxy.on_request = lambda request: FORWARD
    with Session(engine_by_proxy) as session:
        fence.write(session, new_transaction_id())
        session.commit()
    assert list(recorded(engine_by_proxy).values()) == ["commit"]


async def test_cancelled_row_is_not_stored_and_its_connection_is_replaced(
    proxy: PostgresProxy, engine_by_proxy: Engine
) -> None:
    engine = create_async_engine(proxy.url, pool_size=1, max_overflow=0)
    fence = AsyncFence(engine)
    await fence.fence_id()
    proxy.on_request = lambda request: HOLD if "txmsg_fence" in request.sql else FORWARD

    async def write() -> None:
        async with AsyncSession(engine) as session:
            await fence.write(session, new_transaction_id())
            await session.commit()

    task = asyncio.create_task(write())
    await proxy.wait_for_async("INSERT INTO txmsg_fence")
    task.cancel()
    proxy.on_request = lambda request: FORWARD
    proxy.release(CUT_BEFORE)
    with pytest.raises(asyncio.CancelledError):
        await task
    await write()
    await engine.dispose()
    assert len(recorded(engine_by_proxy)) == 1
