"""`@transactional_message` as users write it: the types it keeps, and the calls it refuses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type
from uuid import UUID

from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from txmsg import AsyncProducer, FenceCheckListener, Message, Outbox, Producer, transactional_message

engine: Engine = create_engine("sqlite:///shop.db")
sessions = sessionmaker(engine)
async_sessions = async_sessionmaker(create_async_engine("sqlite+aiosqlite:///shop.db"))
producer = Producer(group="shop", check_listener=FenceCheckListener(engine))
async_producer = AsyncProducer(group="shop", check_listener=FenceCheckListener(engine))


class ShopSession(Session):
    """An application's own session class."""

    shop: str = ""


shop_sessions = sessionmaker(engine, class_=ShopSession)


# ---- def: callers do not give the session; everything else stays


@transactional_message(producer, topic="order", key="order_id", session=sessions)
def place(session: Session, order_id: UUID, note: str = "", *, urgent: bool = False) -> int:
    return 1


@transactional_message(producer, topic="order", session=sessions, when_away=Outbox(wait_s=0.1))
def place_anyway(session: Session, order_id: UUID) -> int:
    return 1


assert_type(place_anyway(UUID(int=1)), int)
assert_type(place(UUID(int=1)), int)
assert_type(place(order_id=UUID(int=1), note="", urgent=True), int)
place("1")  # error: mypy[arg-type] pyright[reportArgumentType]
place()  # error: mypy[call-arg] pyright[reportCallIssue]
place(UUID(int=1), urgnt=True)  # error: mypy[call-arg] pyright[reportCallIssue]
place(sessions(), UUID(int=1))  # error: mypy[arg-type] pyright[reportArgumentType]


@transactional_message(producer, topic="order", session=scoped_session(sessions))
def place_scoped(session: Session, order_id: int) -> None: ...


@transactional_message(producer, topic="order", session=lambda: Session(engine))
def place_lambda(session: Session, order_id: int) -> None: ...


@transactional_message(producer, topic="order", session=shop_sessions)
def place_in_shop(session: ShopSession, order_id: int) -> str:
    return session.shop


assert_type(place_in_shop(1), str)


# fmt: off
@transactional_message(producer, topic="order", session=sessions)  # error: mypy[arg-type] pyright[reportArgumentType,reportCallIssue]
def place_in_another_session(session: ShopSession, order_id: int) -> None: ...


@transactional_message(producer, topic="order", session=sessions)  # error: mypy[arg-type] pyright[reportArgumentType,reportCallIssue]
def place_in_async_session(session: AsyncSession, order_id: int) -> None: ...


@transactional_message(producer, topic="order", session=sessions)  # error: mypy[arg-type] pyright[reportArgumentType,reportCallIssue]
def place_without_a_place_for_the_session() -> None: ...
# fmt: on


# ---- async def


@transactional_message(async_producer, topic="order", session=async_sessions)
async def place_async(session: AsyncSession, order_id: UUID) -> int:
    return 1


async def uses_place_async() -> None:
    assert_type(await place_async(UUID(int=1)), int)
    await place_async(order_id="1")  # error: mypy[arg-type] pyright[reportArgumentType]


# fmt: off
@transactional_message(async_producer, topic="order", session=async_sessions)  # error: mypy[arg-type] pyright[reportArgumentType,reportCallIssue]
def place_not_async(session: AsyncSession, order_id: UUID) -> int:
    return 1
# fmt: on


# ---- methods


class Shop:
    @transactional_message(producer, topic="order", session=sessions)
    def place(self, session: Session, order_id: int) -> str:
        return ""

    @transactional_message(async_producer, topic="order", session=async_sessions)
    async def place_async(self, session: AsyncSession, order_id: int) -> str:
        return ""


assert_type(Shop().place(1), str)
assert_type(Shop.place(Shop(), order_id=1), str)
Shop().place("1")  # error: mypy[arg-type] pyright[reportArgumentType]
Shop().place(sessions(), 1)  # error: mypy[call-arg,arg-type] pyright[reportCallIssue]


async def uses_shop() -> None:
    assert_type(await Shop().place_async(order_id=1), str)
    await Shop().place_async()  # error: mypy[call-arg] pyright[reportCallIssue]


# ---- without session= the function owns its transaction, and nothing of it changes


@transactional_message(producer, topic="order")
def own(order_id: int) -> str:
    return ""


@transactional_message(async_producer, topic="order")
async def own_async(order_id: int) -> str:
    return ""


assert_type(own(order_id=1), str)
own("1")  # error: mypy[arg-type] pyright[reportArgumentType]
own_as_it_is: Callable[[int], Coroutine[Any, Any, str]] = own_async


# fmt: off
@transactional_message(async_producer, topic="order")  # error: mypy[type-var] pyright[reportArgumentType]
def own_not_async(order_id: int) -> str:
    return ""
# fmt: on


# ---- the decorator's own arguments

decorate = transactional_message


def body(order_id: int) -> bytes:
    return b""


def messages(order_id: int) -> list[Message]:
    return [Message("order", b"")]


def text(order_id: int) -> str:
    return ""


decorate(producer, topic="order", message=body, key=text)
decorate(producer, topic="order", key="order_id", ordering_key=text)
decorate(producer, message=messages)
# fmt: off
decorate(producer, topic="order", message=text)  # error: mypy[arg-type] pyright[reportArgumentType,reportCallIssue]
decorate(producer, topic="order", session=engine)  # error: mypy[call-overload] pyright[reportArgumentType,reportCallIssue]
decorate(producer, topic="order", session=sessions())  # error: mypy[call-overload] pyright[reportArgumentType,reportCallIssue]
decorate(producer, topic="order", session=async_sessions)  # error: mypy[arg-type] pyright[reportArgumentType,reportCallIssue]
decorate(async_producer, topic="order", session=sessions)  # error: mypy[arg-type] pyright[reportArgumentType,reportCallIssue]
decorate(producer, "order")  # error: mypy[call-overload] pyright[reportCallIssue]
decorate(producer, topic=b"order")  # error: mypy[call-overload] pyright[reportArgumentType,reportCallIssue]
decorate(producer, topic="order", key=1)  # error: mypy[call-overload] pyright[reportArgumentType,reportCallIssue]
decorate(producer, topic="order", ordering_key=1)  # error: mypy[call-overload] pyright[reportArgumentType,reportCallIssue]
decorate("localhost:7700", topic="order")  # error: mypy[call-overload] pyright[reportArgumentType,reportCallIssue]
# fmt: on
