"""@transactional_message on coroutines, with a real broker and a real business database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from tests.broker_process import BrokerProcess
from tests.business import POOL_OF_ONE, awkward_async_sessions
from tests.integration.client_harness import WAIT_S, collecting, counts, half_count, nothing_comes
from tests.integration.transactional.users import Base, Refused, User, users
from tests.waiting import until_async
from txmsg.checker.fence import FenceCheckListener
from txmsg.client import AsyncProducer, transactional_message
from txmsg.errors import MisuseError


@asynccontextmanager
async def in_async(
    broker: BrokerProcess, engine: Engine
) -> AsyncIterator[tuple[AsyncProducer, async_sessionmaker[AsyncSession]]]:
    async_engine = create_async_engine(engine.url, **POOL_OF_ONE)
    listener = FenceCheckListener(async_engine)
    async with AsyncProducer(
        broker.address, group="async-service", timeout_s=WAIT_S, check_listener=listener
    ) as producer:
        yield producer, awkward_async_sessions(async_engine, Base)
    await async_engine.dispose()


async def test_coroutines_commit_and_roll_back_like_functions(
    broker: BrokerProcess, engine: Engine, notify_url: str
) -> None:
    async with in_async(broker, engine) as (producer, sessions):

        @transactional_message(producer, topic="user", key="email", session=sessions)
        async def register(session: AsyncSession, email: str) -> User:
            user = User(id=uuid4(), email=email)
            session.add(user)
            if email == "bad":
                raise Refused
            async with session.begin_nested():
                session.add(User(id=uuid4(), email=f"friend of {email}"))
            return user

        assert (await register("good")).email == "good"
        with pytest.raises(Refused):
            await register("bad")
        with pytest.raises(IntegrityError):
            await register("good")
    assert (users(engine), *counts(notify_url)) == (2, 0, 1)


async def test_a_commit_inside_a_coroutine_is_refused(broker: BrokerProcess, engine: Engine, notify_url: str) -> None:
    async with in_async(broker, engine) as (producer, sessions):

        @transactional_message(producer, topic="user", session=sessions)
        async def register(session: AsyncSession) -> None:
            session.add(User(id=uuid4(), email="e"))
            await session.commit()

        with pytest.raises(MisuseError, match="commit inside"):
            await register()
    assert (users(engine), *counts(notify_url)) == (0, 0, 0)


async def test_a_coroutine_cancelled_in_its_body_rolls_back(
    broker: BrokerProcess, engine: Engine, notify_url: str
) -> None:
    async with in_async(broker, engine) as (producer, sessions):
        inside = asyncio.Event()

        @transactional_message(producer, topic="user", session=sessions)
        async def register(session: AsyncSession) -> None:
            session.add(User(id=uuid4(), email="e"))
            await session.flush()
            inside.set()
            await asyncio.Event().wait()

        call = asyncio.create_task(register())
        await inside.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # A cancelled caller waits no longer, so UNKNOWN is sent, and the check-back finds the rollback.
        await until_async(lambda: half_count(notify_url) == 0)
    assert (users(engine), *counts(notify_url)) == (0, 0, 0)


async def test_a_coroutine_cancelled_in_its_commit_is_resolved_by_the_fence(
    broker: BrokerProcess, engine: Engine
) -> None:
    """The row may exist although the caller saw a cancellation: then the message must exist as well."""

    async with in_async(broker, engine) as (producer, sessions):
        calls: list[asyncio.Task[None]] = []

        @transactional_message(producer, topic="user", session=sessions)
        async def register(session: AsyncSession, email: str) -> None:
            session.add(User(id=uuid4(), email=email))
            event.listen(session.sync_session, "before_commit", lambda _: calls[0].cancel())

        calls.append(asyncio.create_task(register("e")))
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        with collecting(broker.address, "user") as got:
            count = await asyncio.to_thread(users, engine)
            if count:
                message = await asyncio.to_thread(got.get, timeout=WAIT_S)
                assert json.loads(message.body) == {"email": "e"}
            else:
                assert await asyncio.to_thread(nothing_comes, got, within_s=1)


async def test_a_coroutine_whose_listener_has_a_plain_engine_raises_its_own_error(
    broker: BrokerProcess, engine: Engine, notify_url: str
) -> None:
    async_engine = create_async_engine(engine.url)
    async with AsyncProducer(
        broker.address, group="u", timeout_s=WAIT_S, check_listener=FenceCheckListener(engine)
    ) as producer:

        @transactional_message(producer, topic="user", session=async_sessionmaker(async_engine))
        async def register(session: AsyncSession) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await register()
    await async_engine.dispose()
    assert half_count(notify_url) == 0
