"""An application: arguments of its decorators, and unchanged types of handlers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, assert_type

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from txmsg import Depends, Message, ReceivedMessage, Router, Start, Txmsg, idempotent

sessions = sessionmaker(create_engine("sqlite://"))
async_sessions = async_sessionmaker(create_async_engine("sqlite+aiosqlite://"))
router = Router(group="mail")
app = Txmsg("localhost:7700", group="shop")
app.include(router)


def session() -> Iterator[int]:
    yield 1


@router.subscribe("order.placed", concurrency=2)
def mail(message: ReceivedMessage, opened: Annotated[int, Depends(session)], log: logging.Logger) -> int:
    log.info("%s", message.id)
    return opened


@app.subscribe("order.placed", group="count", batch=10)
async def count(messages: list[ReceivedMessage]) -> None: ...


@app.subscribe("trade", group="dashboard", source="log", ordered=True, missing="latest", start=Start.latest())
def show(price: float) -> None: ...


@app.subscribe("paid", group="payer")
@idempotent(sessions)
def pay(session: Session, opened: Annotated[int, Depends(session)], log: logging.Logger) -> None: ...


@app.subscribe("paid", group="async-payer")
@idempotent(async_sessions)
async def pay_async(session: AsyncSession, amount: int) -> None: ...


@app.middleware
def around(message: ReceivedMessage) -> AbstractContextManager[None]:
    return nullcontext()


@app.on_send
def stamped(message: Message) -> Message:
    return message


def run(message: ReceivedMessage) -> None:
    assert_type(mail(message, 1, logging.getLogger()), int)
    app.run()


app.include(mail)  # error: mypy[arg-type] pyright[reportArgumentType]
Txmsg(group=1)  # error: mypy[arg-type] pyright[reportArgumentType]
Depends(1)  # error: mypy[arg-type] pyright[reportArgumentType]


@app.subscribe("trade", source="kafka")  # error: mypy[arg-type] pyright[reportArgumentType]
def show_of_kafka(price: float) -> None: ...


@router.subscribe(1)  # error: mypy[arg-type] pyright[reportArgumentType]
def mail_of_number(message: ReceivedMessage) -> None: ...
