"""Errors for handlers that ask for a session or for tx where there is none. Without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.business import POOL_OF_ONE
from txmsg import Depends, Message, MisuseError, ReceivedMessage, Router, Transaction, Txmsg, idempotent
from txmsg.testing import Memory, handle, handle_async

MESSAGE = ReceivedMessage("t", b'{"order_id":1}', id_bytes=bytes(16))


class Special(Session):
    pass


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", **POOL_OF_ONE)
    with made.begin() as connection:
        connection.execute(text("create table orders (id integer)"))
    yield made
    made.dispose()


def with_session(session: Session) -> None: ...
def with_special(session: Special) -> None: ...
def with_async_session(session: AsyncSession) -> None: ...
def with_tx(message: ReceivedMessage, tx: Transaction) -> None: ...
async def coroutine_with_session(session: AsyncSession) -> None: ...
async def coroutine_with_tx(tx: Transaction) -> None: ...


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (with_async_session, "asks for a session of type AsyncSession, and database= gives Session"),
        (with_special, "asks for a session of type Special, and database= gives Session"),
        (coroutine_with_session, "is async def, and database= has an Engine: make it def"),
        (coroutine_with_tx, "is async def, and database= has an Engine: make it def"),
        (with_tx, r"with_tx\(\) needs the database and the group .* Txmsg\(\.\.\., group=\.\.\., database=engine\)"),
    ],
)
def test_a_session_type_of_another_database_is_refused(engine: Engine, handler: Callable[..., Any], words: str) -> None:
    app = Txmsg("127.0.0.1:1", database=engine)
    app.subscribe("t", group="g")(handler)
    with pytest.raises(MisuseError, match=words):
        handle(app, MESSAGE)
    with pytest.raises(MisuseError, match=words), app:
        pass


async def test_an_async_engine_needs_coroutine_handlers(engine: Engine) -> None:
    async_engine = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
    app = Txmsg("127.0.0.1:1", database=async_engine)
    app.subscribe("t", group="g")(with_async_session)
    with pytest.raises(MisuseError, match="is def, and database= has an AsyncEngine: make it async def"):
        await handle_async(app, MESSAGE)
    await async_engine.dispose()


@pytest.mark.parametrize("handler", [with_session, with_tx])
def test_a_handler_with_a_session_needs_an_application_with_a_database(handler: Callable[..., Any]) -> None:
    app, router = Txmsg("127.0.0.1:1", group="g"), Router()
    words = r"asks for a session or tx, so .* has no database: write Txmsg\(\.\.\., database=engine\)"
    with pytest.raises(MisuseError, match=words):
        app.subscribe("t")(handler)
    router.subscribe("t")(handler)
    app.include(router)
    with pytest.raises(MisuseError, match=words):
        handle(app, MESSAGE)


def test_batches_processes_and_idempotent_are_refused_at_declaration(engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", group="g", database=engine)

    def listed(messages: list[ReceivedMessage], session: Session) -> None: ...

    with pytest.raises(MisuseError, match="asks for a session or tx, which is of one message, and has batch="):
        app.subscribe("t", batch=10)(listed)
    with pytest.raises(MisuseError, match="asks for a session or tx, which is of this process"):
        app.subscribe("t", runs_in="processes")(with_tx)
    with pytest.raises(MisuseError, match="take @idempotent out"):
        app.subscribe("t")(idempotent(sessionmaker(engine))(idempotent_with_tx))


def idempotent_with_tx(session: Session, tx: Transaction) -> None: ...


def store(session: Session) -> Session:
    session.execute(text("insert into orders values (1)"))
    return session


def test_dependencies_of_a_handler_share_its_transaction(engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", group="g", database=sessionmaker(engine, class_=Special))
    found: list[tuple[Session, Session]] = []

    @app.subscribe("t")
    def pay(session: Special, same: Annotated[Session, Depends(store)], order_id: int) -> None:
        found.append((session, same))
        if order_id == 2:
            raise ArithmeticError

    handle(app, Message("t", b'{"order_id":1}'))
    with pytest.raises(ArithmeticError):
        handle(app, Message("t", b'{"order_id":2}'))
    assert all(session is same and isinstance(session, Special) for session, same in found)
    with engine.connect() as connection:
        assert connection.execute(text("select id from orders")).all() == [(1,)]


def test_a_commit_inside_is_refused_with_the_name_of_the_handler(engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", group="g", database=engine)
    kept: list[Transaction] = []

    @app.subscribe("t")
    def pay(session: Session, tx: Transaction) -> None:
        kept.append(tx)
        session.commit()

    with pytest.raises(MisuseError, match=r"commit inside .*pay\(\)"):
        handle(app, MESSAGE)
    with pytest.raises(MisuseError, match=r"tx\.send\(\) outside .*pay\(\), which tx belongs to"):
        kept[0].send("t", 1)


def test_a_chain_of_handlers_runs_in_memory(engine: Engine) -> None:
    memory = Memory()
    app = Txmsg("memory:", group="g", database=engine)
    shipped: list[int] = []

    @app.transactional_message("order.placed", key="order_id")
    def place(session: Session, order_id: int) -> None: ...

    @app.subscribe("order.placed")
    def pay(order_id: int, session: Session, tx: Transaction) -> None:
        session.execute(text("insert into orders values (:id)"), {"id": order_id})
        tx.send("order.paid", {"order_id": order_id})
        if order_id == 2:
            raise ArithmeticError

    @app.subscribe("order.paid", group="shipping")
    def ship(order_id: int) -> None:
        shipped.append(order_id)

    with app:
        place(1)
        assert memory.deliver(app) == 2
        handle(app, memory.sent("order.placed")[0], group="g")
        place(2)
        with pytest.raises(ArithmeticError):
            memory.deliver(app)
    assert shipped == [1]
    assert len(memory.sent("order.paid")) == 1
    with engine.connect() as connection:
        assert connection.execute(text("select id from orders")).all() == [(1,)]
