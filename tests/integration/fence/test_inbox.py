"""The inbox on each database: one effect per request, and no conflict between messages."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from txmsg.checker.tables import create_tables, inbox_table
from txmsg.client import idempotent
from txmsg.message import ReceivedMessage, new_transaction_id

GENERATIONS = [(0, True), (0, False), (2, True), (1, False), (0, False), (2, False), (3, True)]
"""The generations of deliveries of one message, in order; True if the delivery is handled."""


def message() -> ReceivedMessage:
    return ReceivedMessage("t", b"x", id_bytes=new_transaction_id().bytes)


def recorded(engine: Engine) -> list[int]:
    """Return the generation of each message."""
    with engine.connect() as connection:
        return list(connection.scalars(select(inbox_table.c.generation).order_by(inbox_table.c.generation)))


def test_a_message_is_handled_once_for_each_request(engine: Engine) -> None:
    create_tables(engine)
    got: list[int] = []
    handler = idempotent(sessionmaker(engine), group="g")(lambda session, message: got.append(message.generation))
    again, other = message(), message()
    handler(other)
    for generation, _ in GENERATIONS:
        handler(again._replace(generation=generation))
    assert got == [0] + [generation for generation, is_handled in GENERATIONS if is_handled]
    assert recorded(engine) == [0, 3]


async def test_a_message_is_handled_once_for_each_request_by_coroutines(async_url: str) -> None:
    engine = create_async_engine(async_url)
    await create_tables(engine)
    got: list[int] = []

    @idempotent(async_sessionmaker(engine), group="g")
    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        got.append(message.generation)

    again = message()
    for generation, _ in GENERATIONS:
        await handler(again._replace(generation=generation))
    await engine.dispose()
    assert got == [generation for generation, is_handled in GENERATIONS if is_handled]


def test_a_request_whose_handler_fails_is_not_recorded(engine: Engine) -> None:
    create_tables(engine)
    again = message()

    @idempotent(sessionmaker(engine), group="g")
    def handler(session: Session, message: ReceivedMessage) -> None:
        if message.generation:
            raise ZeroDivisionError

    handler(again)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            handler(again._replace(generation=1))
    assert recorded(engine) == [0]


def test_transactions_of_different_messages_do_not_conflict_under_serializable(server: Engine) -> None:
    """Three transactions overlap and the last commits first: each read of the first two would be invalidated."""
    serializable = server.execution_options(isolation_level="SERIALIZABLE")

    def handled(generation: int, *, within: int) -> None:
        def handle(session: Session, message: ReceivedMessage) -> None:
            if within:
                handled(generation, within=within - 1)

        received = message()._replace(generation=generation)
        idempotent(sessionmaker(serializable), group="g")(handle)(received)

    for generation in (0, 1):
        handled(generation, within=2)
    assert recorded(server) == [0, 0, 0, 1, 1, 1]


async def test_coroutines_of_different_messages_do_not_conflict_under_serializable(async_url: str) -> None:
    if async_url.startswith("sqlite"):
        pytest.skip("has one writer at a time")
    engine = create_async_engine(async_url)
    await create_tables(engine)
    serializable = engine.execution_options(isolation_level="SERIALIZABLE")

    async def handled(*, within: int) -> None:
        @idempotent(async_sessionmaker(serializable), group="g")
        async def handle(session: AsyncSession, message: ReceivedMessage) -> None:
            if within:
                await handled(within=within - 1)

        await handle(message())

    await handled(within=2)
    assert await count_of(engine) == 3
    await engine.dispose()


async def count_of(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return await connection.scalar(select(func.count()).select_from(inbox_table)) or 0
