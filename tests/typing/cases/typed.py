"""Both ends of a topic with typed payloads: types for sending and in handlers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type
from uuid import UUID

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from txmsg import (
    AsyncConsumer,
    Consumer,
    FenceCheckListener,
    Message,
    Producer,
    ReceivedMessage,
    Reject,
    Retry,
    Topic,
    Txmsg,
    idempotent,
    transactional_message,
)


@dataclass
class OrderPlaced:
    order_id: UUID
    email: str


@dataclass
class GiftPlaced(OrderPlaced):
    greeting: str


class Paid: ...


engine = create_engine("sqlite:///shop.db")
sessions = sessionmaker(engine)
async_sessions = async_sessionmaker(create_async_engine("sqlite+aiosqlite:///shop.db"))
producer = Producer(group="shop", check_listener=FenceCheckListener(engine))
consumer = Consumer(group="mailer")
async_consumer = AsyncConsumer(group="mailer")
of_log = Txmsg(log="log", group="mailer")

orders = Topic("order.placed", OrderPlaced, key="order_id", ordering_key=lambda order: order.email)
order = OrderPlaced(UUID(int=1), "")
gifts = Topic("gift.placed", GiftPlaced, cloudevents=True)
gift = GiftPlaced(UUID(int=1), "", "")
notes = Topic("note", str, version=2, compatibility="full")


# ---- sending

assert_type(orders, Topic[OrderPlaced])
assert_type(orders.message(order, tag="web", headers={"a": "b"}), Message)
assert_type(orders.payload_of(orders.message(order)), OrderPlaced)
producer.send(orders.message(gift))
producer.send(notes.message("tea"))
producer.register_schemas(orders, notes)
Txmsg(sends=[orders, notes])
producer.register_schemas("order.placed")  # error: mypy[arg-type] pyright[reportArgumentType]
Txmsg(sends=["order.placed"])  # error: mypy[list-item] pyright[reportArgumentType]
Topic("order.placed", OrderPlaced, compatibility="both")  # error: mypy[arg-type] pyright[reportArgumentType]
orders.message(Paid())  # error: mypy[arg-type] pyright[reportArgumentType]
orders.message({"order_id": 1})  # error: mypy[arg-type] pyright[reportArgumentType]
gifts.message(order)  # error: mypy[arg-type] pyright[reportArgumentType]
notes.message(b"tea")  # error: mypy[arg-type] pyright[reportArgumentType]
producer.send(order)  # error: mypy[arg-type] pyright[reportArgumentType]
Message(orders, b"")  # error: mypy[arg-type] pyright[reportArgumentType]
Topic("order.placed", order)  # error: mypy[arg-type] pyright[reportArgumentType]
Topic("order.placed", OrderPlaced, key=1)  # error: mypy[arg-type] pyright[reportArgumentType]
# fmt: off
Topic("order.placed", OrderPlaced, key=lambda order: order.id)  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue,reportUnknownMemberType,reportUnknownLambdaType]
# fmt: on


@transactional_message(producer, topic=orders, session=sessions)
def place(session: Session, order_id: UUID, email: str) -> int:
    return 1


assert_type(place(UUID(int=1), "ann@example.org"), int)
place("1", "ann@example.org")  # error: mypy[arg-type] pyright[reportArgumentType]


# ---- receiving


@consumer.subscribe(orders, tag="a || b", retry=Retry(by_type={ValueError: Reject}))
def mail(message: ReceivedMessage[OrderPlaced]) -> str:
    assert_type(message.payload, OrderPlaced)
    message.payload.phone  # error: mypy[attr-defined] pyright[reportUnknownMemberType,reportAttributeAccessIssue]
    return message.payload.email


@async_consumer.subscribe(orders)
async def mail_async(message: ReceivedMessage[OrderPlaced]) -> None:
    assert_type(message.payload.order_id, UUID)


@of_log.subscribe(gifts, source="log")
def mail_of_any_order(message: ReceivedMessage[OrderPlaced]) -> None: ...


@consumer.subscribe(notes)
def mail_of_anything(message: ReceivedMessage) -> None:
    assert_type(message.payload, Any)


@consumer.subscribe("order.placed")
def mail_by_name(message: ReceivedMessage) -> None:
    assert_type(orders.received(message).payload, OrderPlaced)


@consumer.subscribe(orders)
@idempotent(sessions)
def pay(session: Session, message: ReceivedMessage[OrderPlaced]) -> None: ...


@async_consumer.subscribe(orders)
@idempotent(async_sessions)
async def pay_async(session: AsyncSession, message: ReceivedMessage[OrderPlaced]) -> None: ...


def uses_handlers(message: ReceivedMessage[OrderPlaced], other: ReceivedMessage[Paid]) -> None:
    assert_type(mail(message), str)
    mail(other)  # error: mypy[arg-type] pyright[reportArgumentType]
    pay(message)


# fmt: off
@consumer.subscribe(orders)  # error: mypy[arg-type] pyright[reportArgumentType]
def mail_of_another_type(message: ReceivedMessage[Paid]) -> None: ...


@consumer.subscribe(orders)  # error: mypy[arg-type] pyright[reportArgumentType]
def mail_of_a_more_special_type(message: ReceivedMessage[GiftPlaced]) -> None: ...


@consumer.subscribe(orders)  # error: mypy[arg-type] pyright[reportArgumentType]
def mail_of_the_payload(order: OrderPlaced) -> None: ...


@async_consumer.subscribe(orders)  # error: mypy[arg-type] pyright[reportArgumentType]
async def mail_async_of_another_type(message: ReceivedMessage[Paid]) -> None: ...
# fmt: on
