"""`@idempotent` in an application: other parameters than the session are filled as in any handler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.business import POOL_OF_ONE
from txmsg import Depends, Message, Topic, Txmsg
from txmsg.checker.tables import create_tables
from txmsg.client import Consumer, idempotent
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage
from txmsg.testing import handle, handle_async


@dataclass
class Paid:
    order: int


PAID = Topic("paid", Paid)


def rate() -> int:
    return 3


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", **POOL_OF_ONE)
    create_tables(engine)
    yield engine
    engine.dispose()


def test_a_handler_gets_session_payload_and_dependencies(engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", group="g")
    got: list[tuple[bool, Paid, int]] = []

    @app.subscribe(PAID)
    @idempotent(sessionmaker(engine))
    def give(session: Session, paid: Paid, times: Annotated[int, Depends(rate)]) -> None:
        got.append((isinstance(session, Session), paid, times))

    message = PAID.message(Paid(7))
    handle(app, message)
    handle(app, message, overrides={rate: lambda: 4})
    assert got == [(True, Paid(7), 3), (True, Paid(7), 4)]


async def test_a_coroutine_handler_gets_session_payload_and_dependencies(engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", group="g")
    async_engine = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
    got: list[tuple[type, Paid]] = []

    @app.subscribe(PAID)
    @idempotent(async_sessionmaker(async_engine))
    async def give(session: AsyncSession, paid: Paid) -> None:
        got.append((type(session), paid))

    await handle_async(app, PAID.message(Paid(7)))
    await async_engine.dispose()
    assert got == [(AsyncSession, Paid(7))]


def test_a_handler_without_annotations_gets_the_message(engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", group="g")
    got: list[ReceivedMessage] = []
    app.subscribe(PAID)(idempotent(sessionmaker(engine))(lambda session, message: got.append(message)))
    handle(app, PAID.message(Paid(7)))
    assert got[0].payload == Paid(7)


def test_a_parameter_without_a_source_is_refused_at_declaration(engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", group="g")

    @idempotent(sessionmaker(engine))
    def give(session: Session, paid: int) -> None: ...

    with pytest.raises(MisuseError, match=r"parameter 'paid' of .*give\(\) is annotated with .*Depends\(f\)\]$"):
        app.subscribe(PAID)(give)


def test_the_decorators_in_the_other_order_are_refused() -> None:
    app = Txmsg("127.0.0.1:1", group="g")

    @app.subscribe(PAID)
    def give(session, message: ReceivedMessage) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(MisuseError, match=r"above the @subscribe of .*give\(\).*put @idempotent below"):
        idempotent(sessionmaker())(give)

    def annotated(session: Connection, paid: Paid) -> None: ...

    with pytest.raises(MisuseError, match="if it is the session of @idempotent, put @idempotent below"):
        app.subscribe("other")(annotated)


def wrapped(handler: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(handler)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return handler(*args, **kwargs)

    return wrapper


def bare(handler: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any) -> Any:
        return handler(*args)

    return wrapper


def test_another_decorator_below_is_allowed(engine: Engine) -> None:
    app = Txmsg("127.0.0.1:1", group="g")
    got: list[object] = []

    @app.subscribe(PAID)
    @idempotent(sessionmaker(engine))
    @wrapped
    def give(session: Session, paid: Paid) -> None:
        got.append(paid)

    @app.subscribe("untold")
    @idempotent(sessionmaker(engine))
    @bare
    def take(session: Session, message: ReceivedMessage) -> None:
        got.append(message.topic)

    handle(app, PAID.message(Paid(7)))
    handle(app, Message("untold", b""))
    assert got == [Paid(7), "untold"]


def test_another_decorator_above_is_refused_if_the_handler_needs_the_subscription(engine: Engine) -> None:
    app, got = Txmsg("127.0.0.1:1", group="g"), list[Paid]()

    @idempotent(sessionmaker(engine))
    def unnamed(session: Session, message: ReceivedMessage[Paid]) -> None: ...

    @idempotent(sessionmaker(engine), group="named")
    def of_payload(session: Session, paid: Paid) -> None: ...

    @idempotent(sessionmaker(engine), group="named")
    def of_message(session: Session, message: ReceivedMessage[Paid]) -> None:
        got.append(message.payload)

    for handler in (unnamed, of_payload):
        with pytest.raises(MisuseError, match="a decorator between @subscribe and @idempotent"):
            app.subscribe(PAID)(wrapped(handler))
    with pytest.raises(MisuseError, match="a decorator between @subscribe and @idempotent"):
        Consumer("127.0.0.1:1", group="g").subscribe(PAID)(wrapped(unnamed))
    app.subscribe(PAID)(wrapped(of_message))
    handle(app, PAID.message(Paid(7)))
    assert got == [Paid(7)]


def test_a_consumer_without_app_refuses_parameters_at_subscription() -> None:
    @idempotent(sessionmaker())
    def give(session: Session, paid: Paid, log: logging.Logger) -> None: ...

    consumer: Any = Consumer("127.0.0.1:1", group="g")
    with pytest.raises(MisuseError, match=r"is called as \(session, message\): missing a required argument: 'log'"):
        consumer.subscribe(PAID)(give)


def test_the_annotation_of_the_session_is_not_evaluated(engine: Engine) -> None:
    app, got = Txmsg("127.0.0.1:1", group="g"), list[Paid]()

    @app.subscribe(PAID)
    @idempotent(sessionmaker(engine))
    def take(session: OnlyForTypeCheckers, paid: Paid) -> None:  # type: ignore[name-defined] # noqa: F821
        got.append(paid)

    handle(app, PAID.message(Paid(7)))
    assert got == [Paid(7)]
