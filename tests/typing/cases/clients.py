"""Producers, listeners, consumers and the inbox as users write them."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing, nullcontext
from datetime import UTC, datetime, timedelta
from sqlite3 import Connection, connect
from typing import assert_type
from uuid import UUID

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from txmsg import (
    AsyncConsumer,
    AsyncProducer,
    CheckMessageListener,
    Consumer,
    FenceCheckListener,
    Half,
    Message,
    MessageId,
    Producer,
    ReceivedMessage,
    Reject,
    Retry,
    RetryAfter,
    Skip,
    Topic,
    Transaction,
    TransactionId,
    TransactionState,
    TxmsgError,
    create_tables,
    idempotent,
    new_transaction_id,
)
from txmsg.client.fence import AsyncFence, AsyncFenceStore, Fence, FenceStore, held_by, held_by_async, purge_inbox

engine = create_engine("sqlite:///shop.db")
async_engine = create_async_engine("sqlite+aiosqlite:///shop.db")
sessions = sessionmaker(engine)
async_sessions = async_sessionmaker(async_engine)


# ---- messages

message = Message("order", b"body", key="k", tag="t", headers={"trace": "1"})
Message("order", "text")  # error: mypy[arg-type] pyright[reportArgumentType]
Message("order", b"", key=1)  # error: mypy[arg-type] pyright[reportArgumentType]
Message("order", b"", headers={"trace": 1})  # error: mypy[dict-item] pyright[reportArgumentType]
Message("order", b"", ordering_key="4711")
Message("order", b"", deliver_at=datetime.now(UTC))
Message("order", b"", deliver_after=timedelta(minutes=30))
Message("order", b"", deliver_after=30)  # error: mypy[arg-type] pyright[reportArgumentType]
Message("order", b"", deliver_at="2030-01-01")  # error: mypy[arg-type] pyright[reportArgumentType]
Message("order", b"", None, None, {}, "4711")  # error: mypy[call-arg] pyright[reportCallIssue]
Message(b"order", b"")  # error: mypy[arg-type] pyright[reportArgumentType]
message.topic = "other"  # error: mypy[misc] pyright[reportAttributeAccessIssue]


Retry(delays_s="1s")  # error: mypy[arg-type] pyright[reportArgumentType]
Retry(by_type={ValueError: OSError})  # error: mypy[dict-item] pyright[reportArgumentType]


# ---- listeners


class Listener:
    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


class AsyncListener:
    async def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


class ListenerOfNothing:
    def check(self) -> TransactionState:
        return TransactionState.COMMIT


class ListenerOfIds:
    def check(self, message: MessageId) -> TransactionState:
        return TransactionState.COMMIT


class ListenerOfBools:
    def check(self, message: ReceivedMessage) -> bool:
        return True


class ListenerByAnotherName:
    def check_local_transaction(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


listeners: list[CheckMessageListener] = [
    Listener(),
    AsyncListener(),
    FenceCheckListener(engine),
    FenceCheckListener(async_engine),
]
Producer(group="shop", check_listener=Listener())
AsyncProducer(group="shop", check_listener=AsyncListener())
Producer(group="shop", check_listener=Listener)  # error: mypy[arg-type] pyright[reportArgumentType]
Producer(group="shop", check_listener=ListenerOfNothing())  # error: mypy[arg-type] pyright[reportArgumentType]
Producer(group="shop", check_listener=ListenerOfIds())  # error: mypy[arg-type] pyright[reportArgumentType]
AsyncProducer(group="shop", check_listener=ListenerOfBools())  # error: mypy[arg-type] pyright[reportArgumentType]
AsyncProducer(group="shop", check_listener=ListenerByAnotherName())  # error: mypy[arg-type] pyright[reportArgumentType]
FenceCheckListener("sqlite:///shop.db")  # error: mypy[arg-type] pyright[reportArgumentType]
FenceCheckListener(sessions)  # error: mypy[arg-type] pyright[reportArgumentType]
assert_type(FenceCheckListener(engine).fence, Fence | AsyncFence)
Fence(async_engine)  # error: mypy[arg-type] pyright[reportArgumentType]
assert_type(Fence(engine).purge(86_400, held_by("a:7700", ["b:7700", "c:7700"])), int)
Fence(engine).purge(86_400, held_by_async("a:7700"))  # error: mypy[arg-type] pyright[reportArgumentType]


class Orders(FenceStore[Connection]):
    def fence_id(self) -> UUID:
        return UUID(int=1)

    def transaction(self, transaction_id: TransactionId) -> AbstractContextManager[Connection]:
        return closing(connect("shop.db"))

    def outcome(self, transaction_id: TransactionId) -> TransactionState:
        return TransactionState.UNKNOWN


class AsyncOrders(AsyncFenceStore[Connection]):
    async def fence_id(self) -> UUID:
        return UUID(int=1)

    def transaction(self, transaction_id: TransactionId) -> AbstractAsyncContextManager[Connection]:
        return nullcontext(connect("shop.db"))


Producer(group="shop", check_listener=Orders())
AsyncProducer(group="shop", check_listener=AsyncOrders())  # error: mypy[abstract] pyright[reportAbstractUsage]
Producer(group="shop", check_listener=Orders)  # error: mypy[arg-type] pyright[reportArgumentType]
assert_type(Orders().check(ReceivedMessage("order", b"")), TransactionState)
with Orders().transaction(new_transaction_id()) as connection:
    assert_type(connection, Connection)


# ---- producers

producer = Producer(["a:1", "b:2"], group="shop", timeout_s=3)
assert_type(producer.recall(producer.send(message)), bool)
producer.recall(UUID(int=1))  # error: mypy[arg-type] pyright[reportArgumentType]
Producer(group="shop", timeout_s="3")  # error: mypy[arg-type] pyright[reportArgumentType]
Producer("a:1")  # error: mypy[call-arg] pyright[reportCallIssue]
Producer("a:1", "shop")  # error: mypy[call-arg] pyright[reportCallIssue]


def uses_producer(session: Session, async_session: AsyncSession) -> None:
    with producer as same:
        assert_type(same, Producer)
    assert_type(producer.send(message), MessageId)
    assert_type(producer.send_many([message]), list[MessageId])
    half = producer.half([message], transaction_id=new_transaction_id())
    assert_type(half, Half)
    assert_type(half.transaction_id, TransactionId)
    producer.end(half, TransactionState.COMMIT)
    with producer.transaction(session) as tx:
        opened: Transaction = tx
        assert_type(opened.transaction_id, TransactionId)
        assert_type(tx.send(message), MessageId)
        assert_type(tx.send("order", {"id": 1}, key=1, tag="t"), MessageId)
        assert_type(tx.send(Topic("order", str), "text", tag="t"), MessageId)
        tx.send(Topic("order", str), 1, tag=1)  # error: mypy[call-overload] pyright[reportArgumentType,reportCallIssue]
        tx.send(b"body")  # error: mypy[call-overload] pyright[reportArgumentType]
    producer.send("body")  # error: mypy[arg-type] pyright[reportArgumentType]
    producer.send(producer.send(message))  # error: mypy[arg-type] pyright[reportArgumentType]
    producer.end(half, "commit")  # error: mypy[arg-type] pyright[reportArgumentType]
    producer.end(half.transaction_id, TransactionState.COMMIT)  # error: mypy[arg-type] pyright[reportArgumentType]
    producer.transaction(async_session)  # error: mypy[arg-type] pyright[reportArgumentType]
    producer.transaction(sessions)  # error: mypy[arg-type] pyright[reportArgumentType]


async def uses_async_producer(session: Session, async_session: AsyncSession) -> None:
    async with AsyncProducer(group="shop", timeout_s=timedelta(seconds=3)) as opened:
        assert_type(opened, AsyncProducer)
        assert_type(await opened.send(message), MessageId)
        assert_type(await opened.send_many((message,)), list[MessageId])
        half = await opened.half([message])
        assert_type(half, Half)
        await opened.end(half, TransactionState.ROLLBACK)
        async with opened.transaction(async_session) as tx:
            assert_type(tx.send(message), MessageId)
        opened.transaction(session)  # error: mypy[arg-type] pyright[reportArgumentType]
        with opened:  # error: mypy[attr-defined] pyright[reportGeneralTypeIssues]
            pass


# ---- consumers: a handler stays what it is

consumer = Consumer(group="mailer", concurrency=4)
async_consumer = AsyncConsumer(group="mailer")
Consumer(group="mailer", concurrency="4")  # error: mypy[arg-type] pyright[reportArgumentType]


@consumer.subscribe("order", tag="a || b", retry=Retry(delays_s=[1, 10], by_type={ValueError: Reject, OSError: Skip}))
def mail(message: ReceivedMessage) -> int:
    return 1


@async_consumer.subscribe("order")
async def mail_async(message: ReceivedMessage) -> None:
    raise RetryAfter(timedelta(minutes=5), "the bank is closed")


def uses_handlers(message: ReceivedMessage) -> Awaitable[None]:
    assert_type(mail(message), int)
    return mail_async(message)


# fmt: off
@consumer.subscribe("order")  # error: mypy[type-var] pyright[reportArgumentType]
def mail_of_nothing() -> None: ...


@consumer.subscribe("order")  # error: mypy[type-var] pyright[reportArgumentType]
def mail_of_two(session: Session, message: ReceivedMessage) -> None: ...


@consumer.subscribe("order")  # error: mypy[type-var] pyright[reportArgumentType]
def mail_of_text(message: str) -> None: ...


@consumer.subscribe  # error: mypy[call-overload] pyright[reportArgumentType,reportCallIssue]
def mail_of_no_topic(message: ReceivedMessage) -> None: ...
# fmt: on


# ---- the inbox: the session is the decorator's


@consumer.subscribe("paid")
@idempotent(sessions)
def pay(session: Session, message: ReceivedMessage) -> None: ...


@async_consumer.subscribe("paid")
@idempotent(async_sessions, group="payer")
async def pay_async(session: AsyncSession, message: ReceivedMessage) -> None: ...


def uses_idempotent_handlers(message: ReceivedMessage) -> Awaitable[None]:
    pay(message)
    pay(message, message)  # error: mypy[call-arg] pyright[reportCallIssue]
    return pay_async(message)


# fmt: off
@idempotent(sessions)  # error: mypy[arg-type] pyright[reportArgumentType]
def pay_without_session(message: ReceivedMessage) -> None: ...


@idempotent(sessions)  # error: mypy[arg-type] pyright[reportArgumentType]
async def pay_async_in_sync_session(session: AsyncSession, message: ReceivedMessage) -> None: ...


@consumer.subscribe("paid")  # error: mypy[type-var] pyright[reportArgumentType]
@idempotent(sessions)
def pay_what_only_applications_fill(session: Session, amount: int) -> None: ...


@idempotent(async_sessions)  # error: mypy[arg-type] pyright[reportArgumentType]
def pay_in_async_session(session: Session, message: ReceivedMessage) -> None: ...
# fmt: on


idempotent(engine)  # error: mypy[call-overload] pyright[reportCallIssue,reportArgumentType]
idempotent(sessions())  # error: mypy[call-overload] pyright[reportCallIssue,reportArgumentType]

create_tables(engine)
create_tables(async_engine)  # error: mypy[unused-coroutine] pyright[reportUnusedCoroutine]
create_tables(sessions)  # error: mypy[arg-type] pyright[reportCallIssue,reportArgumentType]
assert_type(purge_inbox(engine), int)
purge_inbox(async_engine)  # error: mypy[unused-coroutine] pyright[reportUnusedCoroutine]
purge_inbox(sessions)  # error: mypy[arg-type] pyright[reportCallIssue,reportArgumentType]


# ---- the fence, and errors


def uses_fence(fence: Fence, transaction_id: TransactionId) -> None:
    assert_type(fence.check(transaction_id), TransactionState)
    fence.check("0197f3a2")  # error: mypy[arg-type] pyright[reportArgumentType]
    try:
        create_tables(engine)
    except TxmsgError as exc:
        assert_type(exc.code, str)
