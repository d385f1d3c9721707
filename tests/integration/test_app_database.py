"""An application with `database=`: its decorated functions, their tables, and the arguments of its handlers."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from txmsg import Txmsg
from txmsg.errors import MisuseError

WAIT_S = 30.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with made.begin() as connection:
        connection.execute(text("create table orders (id integer)"))
    yield made
    made.dispose()


@pytest.mark.parametrize("make", [lambda engine: engine, sessionmaker])
def test_calls_before_and_during_the_run_send_if_they_commit(broker: BrokerProcess, engine: Engine, make: Any) -> None:
    app = Txmsg(broker.address, group="shop", database=make(engine))
    mailed: queue.Queue[int] = queue.Queue()

    @app.transactional_message("order.placed", key="order_id")
    def place(session: Session, order_id: int, *, fails: bool = False) -> int:
        session.execute(text("insert into orders values (:id)"), {"id": order_id})
        if fails:
            raise ArithmeticError
        return order_id + 1

    @app.subscribe("order.placed", group="mailer")
    def mail(order_id: int) -> None:
        mailed.put(order_id)

    assert place(1) == 2
    with app:
        with pytest.raises(ArithmeticError):
            place(2, fails=True)
        assert place(order_id=3) == 4
        assert sorted(mailed.get(timeout=WAIT_S) for _ in range(2)) == [1, 3]
    with app:  # again
        place(4)
        assert mailed.get(timeout=WAIT_S) == 4
    with engine.connect() as connection:
        assert connection.execute(text("select id from orders order by id")).scalars().all() == [1, 3, 4]


@pytest.mark.parametrize("make", [lambda engine: engine, async_sessionmaker])
async def test_coroutines_use_an_async_engine(broker: BrokerProcess, engine: Engine, make: Any) -> None:
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{engine.url.database}")
    app = Txmsg(broker.address, group="shop", database=make(async_engine))
    mailed: asyncio.Queue[int] = asyncio.Queue()

    @app.transactional_message("order.placed", key="order_id")
    async def place(session: AsyncSession, order_id: int) -> None:
        await session.execute(text("insert into orders values (:id)"), {"id": order_id})

    @app.subscribe("order.placed", group="mailer")
    async def mail(order_id: int) -> None:
        mailed.put_nowait(order_id)

    await place(1)
    async with app:
        await place(2)
        found = [await asyncio.wait_for(mailed.get(), WAIT_S) for _ in range(2)]
        assert sorted(found) == [1, 2]
    await async_engine.dispose()


def test_start_creates_missing_tables(broker: BrokerProcess, engine: Engine) -> None:
    with Txmsg(broker.address, database=engine):
        assert {"txmsg_fence", "txmsg_inbox", "txmsg_outbox"} <= set(inspect(engine).get_table_names())


def test_missing_settings_for_decorated_functions_are_named(engine: Engine) -> None:
    async def coroutine(session: AsyncSession) -> None: ...

    with pytest.raises(MisuseError, match=r"Txmsg\(\.\.\., group=\.\.\., database=engine\)"):
        Txmsg("localhost:1", group="shop").transactional_message("t")
    with pytest.raises(MisuseError, match=r"Txmsg\(\.\.\., group=\.\.\., database=engine\)"):
        Txmsg("localhost:1", database=engine).transactional_message("t")
    with pytest.raises(MisuseError, match="coroutine is async def, the producer is a Producer"):
        Txmsg("localhost:1", group="shop", database=engine).transactional_message("t")(coroutine)
    with pytest.raises(MisuseError, match="without a topic"):
        Txmsg("localhost:1", group="shop", database=engine).transactional_message(coroutine)  # type: ignore[arg-type]
    for wrong in ("sqlite://", Session(engine), sessionmaker()):
        with pytest.raises(MisuseError, match="give the Engine or AsyncEngine of the business database"):
            Txmsg("localhost:1", database=wrong)  # type: ignore[arg-type]
