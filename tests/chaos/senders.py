"""Both kinds of producers under one interface: coroutines, and threads.

What is sent, and when, is the business of the callers in producer.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from tests.chaos import business
from txmsg import (
    AsyncProducer,
    FenceCheckListener,
    Half,
    Message,
    Outbox,
    Producer,
    TransactionState,
    TxmsgError,
    transactional_message,
)

CLASSIC_GROUP = "classic"
DISTURBED = (TxmsgError, SQLAlchemyError, OSError)
OUTBOX = Outbox(wait_s=0.5)
_TIMEOUT_S = 8
_RESTART_S = 0.5

P = ParamSpec("P")
R = TypeVar("R")


class Refused(Exception):
    """Raised by a business transaction that is refused."""


@dataclass(frozen=True, slots=True)
class LocalWork:
    """A local transaction's work besides its row: it takes some time, and may be refused."""

    for_s: float
    is_refused: bool


class Senders(Protocol):
    """Producers of both groups, and the business database. Started once, never closed: the process is killed."""

    async def start(self) -> None: ...
    async def sell(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        """Send by the decorator."""
        ...

    async def sell_alongside(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        """Send by the decorator with half messages sent while the function runs."""
        ...

    async def sell_late(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        """Send by `producer.transaction(session)`."""
        ...

    async def keep(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        """Send by the decorator with an outbox."""
        ...

    async def send(self, messages: Sequence[Message]) -> None: ...
    async def half(self, messages: Sequence[Message]) -> Half: ...
    async def end(self, half: Half, state: TransactionState) -> None: ...
    async def begin_attempt(self, serial: str) -> None: ...
    async def finish_attempt(self, serial: str, state: TransactionState) -> bool: ...


class Coroutines:
    """AsyncProducer. brokers: addresses of each shard, shuffled for each producer.

    answers: the further producer groups whose transactions it knows.
    """

    def __init__(
        self, brokers: Callable[[], list[list[str]]], business_url: str, *, answers: Sequence[str] = ()
    ) -> None:
        self._answers = answers
        self._engine = business.async_engine_of(business_url)
        self._sessions = async_sessionmaker(self._engine)
        self._brokers = brokers
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        fence, attempts = FenceCheckListener(self._engine), business.AsyncAttemptListener(self._engine)
        self._fenced = await _retried(lambda: self._enter(_fenced_group(self._brokers()), fence))
        self._classic = await _retried(lambda: self._enter(CLASSIC_GROUP, attempts))
        for group in self._answers:
            await _retried(lambda group=group: self._enter(group, attempts))  # type: ignore[misc]

        async def sell(session: AsyncSession, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
            await self._local(session, serial, local)

        decorated = partial(transactional_message, self._fenced, session=self._sessions, message=_as_given)
        self._sell, self._keep = decorated()(sell), decorated(when_away=OUTBOX)(sell)
        self._sell_alongside = decorated(half="alongside")(sell)

    async def _enter(self, group: str, listener: Any) -> AsyncProducer:
        producer = AsyncProducer(self._brokers(), group=group, check_listener=listener, timeout_s=_TIMEOUT_S)
        return await self._stack.enter_async_context(producer)

    async def sell(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        await self._sell(serial, messages, local)

    async def sell_alongside(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        await self._sell_alongside(serial, messages, local)

    async def keep(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        await self._keep(serial, messages, local)

    async def sell_late(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        async with self._sessions() as session, self._fenced.transaction(session) as tx:
            await self._local(session, serial, local)
            for message in messages:
                tx.send(message)

    async def _local(self, session: AsyncSession, serial: str, local: LocalWork) -> None:
        await session.run_sync(business.sell, serial)
        await asyncio.sleep(local.for_s)
        if local.is_refused:
            raise Refused

    async def send(self, messages: Sequence[Message]) -> None:
        await self._classic.send_many(messages)

    async def half(self, messages: Sequence[Message]) -> Half:
        return await self._classic.half(messages)

    async def end(self, half: Half, state: TransactionState) -> None:
        await self._classic.end(half, state)

    async def begin_attempt(self, serial: str) -> None:
        async with self._engine.begin() as connection:
            await connection.run_sync(business.begin_attempt, serial)

    async def finish_attempt(self, serial: str, state: TransactionState) -> bool:
        async with self._engine.begin() as connection:
            return await connection.run_sync(business.finish_attempt, serial, state)


class Threads:
    """Producer, with each call on one of `count` threads, as in a server."""

    def __init__(self, brokers: Callable[[], list[list[str]]], business_url: str, *, count: int) -> None:
        self._engine = business.engine_of(business_url)
        self._sessions = sessionmaker(self._engine)
        self._brokers = brokers
        self._threads = ThreadPoolExecutor(count, "caller")
        self._stack = ExitStack()

    async def start(self) -> None:
        fence, attempts = FenceCheckListener(self._engine), business.AttemptListener(self._engine)
        self._fenced = await _retried(lambda: self._on_thread(self._enter, _fenced_group(self._brokers()), fence))
        self._classic = await _retried(lambda: self._on_thread(self._enter, CLASSIC_GROUP, attempts))

        def sell(session: Session, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
            self._local(session, serial, local)

        decorated = partial(transactional_message, self._fenced, session=self._sessions, message=_as_given)
        self._sell, self._keep = decorated()(sell), decorated(when_away=OUTBOX)(sell)
        self._sell_alongside = decorated(half="alongside")(sell)

    def _enter(self, group: str, listener: Any) -> Producer:
        producer = Producer(self._brokers(), group=group, check_listener=listener, timeout_s=_TIMEOUT_S)
        return self._stack.enter_context(producer)

    async def _on_thread(self, function: Callable[P, R], /, *args: P.args, **options: P.kwargs) -> R:
        assert not options
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def sell(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        await self._on_thread(self._sell, serial, messages, local)

    async def sell_alongside(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        await self._on_thread(self._sell_alongside, serial, messages, local)

    async def keep(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        await self._on_thread(self._keep, serial, messages, local)

    async def sell_late(self, serial: str, messages: Sequence[Message], local: LocalWork) -> None:
        def sell_late() -> None:
            with self._sessions() as session, self._fenced.transaction(session) as tx:
                self._local(session, serial, local)
                for message in messages:
                    tx.send(message)

        await self._on_thread(sell_late)

    def _local(self, session: Session, serial: str, local: LocalWork) -> None:
        business.sell(session, serial)
        time.sleep(local.for_s)
        if local.is_refused:
            raise Refused

    async def send(self, messages: Sequence[Message]) -> None:
        await self._on_thread(self._classic.send_many, messages)

    async def half(self, messages: Sequence[Message]) -> Half:
        return await self._on_thread(self._classic.half, messages)

    async def end(self, half: Half, state: TransactionState) -> None:
        await self._on_thread(self._classic.end, half, state)

    async def begin_attempt(self, serial: str) -> None:
        def begin() -> None:
            with self._engine.begin() as connection:
                business.begin_attempt(connection, serial)

        await self._on_thread(begin)

    async def finish_attempt(self, serial: str, state: TransactionState) -> bool:
        def finish() -> bool:
            with self._engine.begin() as connection:
                return business.finish_attempt(connection, serial, state)

        return await self._on_thread(finish)


def _fenced_group(shards: Sequence[Sequence[str]]) -> str:
    """Any producer of a group relays its outbox, so all of them must use the same databases."""
    return f"fenced-{len(shards)}"


def _as_given(serial: str, messages: Sequence[Message], local: LocalWork) -> Sequence[Message]:
    return messages


async def _retried(start: Callable[[], Awaitable[R]]) -> R:
    """Retry, as a supervisor does: the business database with its fence may be disconnected now."""
    while True:
        try:
            return await start()
        except DISTURBED:
            await asyncio.sleep(_RESTART_S)
