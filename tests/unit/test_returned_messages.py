"""Messages that handlers return or yield are sent only with the handler's transaction. Without a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.business import POOL_OF_ONE
from txmsg import Depends, Message, MisuseError, ReceivedMessage, Router, Transaction, Txmsg, idempotent
from txmsg.testing import Memory, handle, handle_async

PLACED = Message("placed", b'{"order_id":1}')
INSERT = text("insert into orders values (:id)")


def paid(body: str) -> Message:
    return Message("paid", body.encode())


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", **POOL_OF_ONE)
    with made.begin() as connection:
        connection.execute(text("create table orders (id integer)"))
    yield made
    made.dispose()


@pytest.fixture
async def async_engine(engine: Engine) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"), **POOL_OF_ONE)
    yield made
    await made.dispose()


def orders(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("select id from orders order by id")).scalars())


def sent(memory: Memory) -> list[str]:
    assert memory.undecided() == []
    return [each.body.decode() for each in memory.sent("paid")]


def one(order_id: int, session: Session) -> Message:
    session.execute(INSERT, {"id": order_id})
    return paid("a")


def none(order_id: int, session: Session) -> Message | None:
    session.execute(INSERT, {"id": order_id})
    return None


def some(order_id: int, session: Session) -> list[Message]:
    session.execute(INSERT, {"id": order_id})
    return [paid("a"), paid("b")]


def pair(order_id: int, session: Session) -> tuple[Message, Message]:
    session.execute(INSERT, {"id": order_id})
    return paid("a"), paid("b")


def generator(order_id: int, session: Session):  # type: ignore[no-untyped-def]
    yield paid("a")
    session.execute(INSERT, {"id": order_id})
    yield paid("b")


def expression(order_id: int, session: Session) -> Iterator[Message]:
    session.execute(INSERT, {"id": order_id})
    return (paid(body) for body in "ab")


def beside_tx(order_id: int, session: Session, tx: Transaction) -> Message:
    session.execute(INSERT, {"id": order_id})
    tx.send("paid", b"a")
    return paid("b")


def with_tx_unannotated(order_id: int, session: Session, tx: Transaction):  # type: ignore[no-untyped-def]
    session.execute(INSERT, {"id": order_id})
    return [paid("a")]


@pytest.mark.parametrize(
    ("handler", "bodies"),
    [
        (one, ["a"]),
        (none, []),
        (some, ["a", "b"]),
        (pair, ["a", "b"]),
        (generator, ["a", "b"]),
        (expression, ["a", "b"]),
        (beside_tx, ["a", "b"]),
        (with_tx_unannotated, ["a"]),
    ],
)
def test_messages_returned_or_yielded_by_a_handler_are_sent_once_with_its_effects(
    engine: Engine, handler: Callable[..., Any], bodies: list[str]
) -> None:
    memory, app = Memory(), Txmsg("memory:", group="g", database=engine)
    app.subscribe("placed")(handler)
    with app:
        app.send(PLACED)
        assert memory.deliver(app) == 1
        assert (sent(memory), orders(engine)) == (bodies, [1])
        handle(app, memory.sent("placed")[0])  # a redelivery
    assert (sent(memory), orders(engine)) == (bodies, [1])


async def one_async(order_id: int, session: AsyncSession) -> Message:
    await session.execute(INSERT, {"id": order_id})
    return paid("a")


async def some_async(order_id: int, session: AsyncSession) -> list[Message]:
    await session.execute(INSERT, {"id": order_id})
    return [paid("a"), paid("b")]


async def generator_async(order_id: int, session: AsyncSession) -> AsyncIterator[Message]:
    yield paid("a")
    await session.execute(INSERT, {"id": order_id})
    yield paid("b")


@pytest.mark.parametrize(
    ("handler", "bodies"), [(one_async, ["a"]), (some_async, ["a", "b"]), (generator_async, ["a", "b"])]
)
async def test_messages_of_coroutines_and_async_generators_are_sent_once_with_their_effects(
    engine: Engine, async_engine: AsyncEngine, handler: Callable[..., Any], bodies: list[str]
) -> None:
    memory, app = Memory(), Txmsg("memory:", group="g", database=async_engine)
    app.subscribe("placed")(handler)
    async with app:
        await app.send_async(PLACED)
        assert await memory.deliver_async(app) == 1
        await handle_async(app, memory.sent("placed")[0])
    assert (sent(memory), orders(engine)) == (bodies, [1])


def test_an_exception_in_a_generator_sends_nothing(engine: Engine) -> None:
    memory, app = Memory(), Txmsg("memory:", group="g", database=engine)
    fails = [True]
    left: list[str] = []

    @app.subscribe("placed")
    def pay(order_id: int, session: Session) -> Iterator[Message]:
        session.execute(INSERT, {"id": order_id})
        try:
            yield paid("a")
            if fails:
                raise ArithmeticError
            yield paid("b")
        finally:
            left.append("once" if not left else "again")

    with app:
        app.send(PLACED)
        with pytest.raises(ArithmeticError):
            memory.deliver(app)
        assert (sent(memory), orders(engine), left) == ([], [], ["once"])
        fails.clear()
        memory.deliver(app)
    assert (sent(memory), orders(engine), left) == (["a", "b"], [1], ["once", "again"])


async def test_an_exception_in_an_async_generator_sends_nothing(engine: Engine, async_engine: AsyncEngine) -> None:
    memory, app = Memory(), Txmsg("memory:", group="g", database=async_engine)

    @app.subscribe("placed")
    async def pay(order_id: int, session: AsyncSession) -> AsyncIterator[Message]:
        await session.execute(INSERT, {"id": order_id})
        yield paid("a")
        raise ArithmeticError

    async with app:
        await app.send_async(PLACED)
        with pytest.raises(ArithmeticError):
            await memory.deliver_async(app)
    assert (sent(memory), orders(engine)) == ([], [])


def returns_text(session: Session, tx: Transaction) -> Any:
    session.execute(INSERT, {"id": 1})
    return "thanks"


def returns_pair(session: Session) -> list[Message]:
    session.execute(INSERT, {"id": 1})
    return [paid("a"), ("paid", {"order_id": 1})]  # type: ignore[list-item]


def returns_map(session: Session) -> Iterator[Message]:
    session.execute(INSERT, {"id": 1})
    return map(paid, "ab")


def yields_none(session: Session) -> Iterator[Message]:
    session.execute(INSERT, {"id": 1})
    yield paid("a")
    yield None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (returns_text, r"returns_text\(\) returned 'thanks' of type str: a handler that sends returns None, a Message"),
        (returns_pair, r"returns_pair\(\) returned \('paid', \{'order_id': 1\}\) of type tuple"),
        (returns_map, r"returns_map\(\) returned a map, whose body has not run"),
        (yields_none, r"yields_none\(\) yielded None of type NoneType: .* Topic\(\.\.\.\)\.message\(value\)"),
    ],
)
def test_a_returned_non_message_is_refused_with_its_value_and_rolled_back(
    engine: Engine, handler: Callable[..., Any], words: str
) -> None:
    memory, app = Memory(), Txmsg("memory:", group="g", database=engine)
    app.subscribe("placed")(handler)
    with pytest.raises(MisuseError, match=words), app:
        handle(app, PLACED)
    assert (sent(memory), orders(engine)) == ([], [])


def test_a_generator_that_yields_a_non_message_is_closed_within_the_transaction(engine: Engine) -> None:
    app = Txmsg("memory:", group="g", database=engine)
    left: list[object] = []

    @app.subscribe("placed")
    def pay(session: Session) -> Iterator[Message]:
        try:
            yield None  # type: ignore[misc]
        finally:
            left.append(session.execute(text("select 1")).scalar())

    with pytest.raises(MisuseError, match="yielded None") as raised, app:
        handle(app, PLACED)
    assert left == [1]
    assert raised.tb  # keeps the generator alive: garbage collection has not closed it


done: list[str] = []


def resource() -> Iterator[list[str]]:
    done.append("opened")
    yield done
    done.append("closed")


def test_dependencies_of_a_generator_stay_open_while_it_runs(engine: Engine) -> None:
    memory, app = Memory(), Txmsg("memory:", group="g", database=engine)
    done.clear()

    @app.subscribe("placed")
    def pay(used: Annotated[list[str], Depends(resource)]) -> Iterator[Message]:
        used.append("first")
        yield paid("a")
        used.append("second")

    with app:
        handle(app, PLACED)
    assert done == ["opened", "first", "second", "closed"]
    assert sent(memory) == ["a"]


@pytest.mark.parametrize("handler", [one, none, some, generator, one_async, generator_async])
def test_without_a_database_returned_messages_are_refused_at_declaration(handler: Callable[..., Any]) -> None:
    app = Txmsg("127.0.0.1:1", group="g")
    with pytest.raises(MisuseError, match=r"has no database: write Txmsg\(\.\.\., database=engine\)"):
        app.subscribe("placed")(handler)


def only_messages(order_id: int) -> Message:
    return paid("a")


def test_without_a_database_returned_messages_of_a_router_are_refused_at_start() -> None:
    app, router = Txmsg("127.0.0.1:1", group="g"), Router()
    router.subscribe("placed")(only_messages)
    app.include(router)
    with pytest.raises(MisuseError, match=r"only_messages\(\) returns messages to send, so .* has no database"), app:
        pass


def test_returned_messages_need_an_application_with_a_group(engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", database=engine)
    app.subscribe("placed", group="g")(only_messages)
    with pytest.raises(MisuseError, match="needs the database and the group of the application"):
        handle(app, PLACED)


def test_batches_processes_and_idempotent_are_refused_at_declaration(engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", group="g", database=engine)

    def listed(messages: list[ReceivedMessage]) -> list[Message]:
        return []

    with pytest.raises(MisuseError, match=r"returns messages to send, which is of one message, and has batch="):
        app.subscribe("placed", batch=10)(listed)
    with pytest.raises(MisuseError, match="returns messages to send, which is of this process"):
        app.subscribe("placed", runs_in="processes")(only_messages)
    under = idempotent(sessionmaker(engine))(under_idempotent)  # type: ignore[arg-type]  # it is to return None
    with pytest.raises(MisuseError, match="returns messages to send, and is @idempotent"):
        app.subscribe("placed")(under)


def under_idempotent(session: Session, message: ReceivedMessage) -> Message:
    return paid("a")


def plain(message):  # type: ignore[no-untyped-def]
    return paid("a")


def with_fields(order_id: int) -> object:
    return [paid("a")]


def with_session(session: Session) -> Any:
    session.execute(INSERT, {"id": 1})
    return paid("a")


async def plain_async(message: ReceivedMessage) -> Any:
    return paid("a")


@contextmanager
def around(message: ReceivedMessage) -> Iterator[None]:
    yield


@pytest.mark.parametrize("middleware", [False, True])
@pytest.mark.parametrize("handler", [plain, with_fields, with_session, plain_async])
def test_undeclared_returned_messages_are_refused(
    engine: Engine, handler: Callable[..., Any], middleware: bool
) -> None:
    app = Txmsg("memory:", group="g", database=engine)
    app.subscribe("placed")(handler)
    if middleware:
        app.middleware(around)
    words = r"returned \[?Message.*which would not be sent: annotate a handler"
    with pytest.raises(MisuseError, match=words), app:
        handle(app, PLACED)
    assert orders(engine) == []


def test_other_results_of_a_handler_without_transaction_are_ignored() -> None:
    app = Txmsg("memory:", group="g")
    app.subscribe("placed")(lambda message: message.body)
    handle(app, PLACED)
