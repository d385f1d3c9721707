from collections.abc import AsyncIterator

import pytest
from faststream.rabbit import TestRabbitBroker
from receive import broker
from send import Base, engine, place, relay
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError


@pytest.fixture(autouse=True)
async def in_memory() -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.execute(text("drop table if exists orders"))
        await connection.execute(text("create table orders (id integer primary key)"))
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
    async with TestRabbitBroker(broker):
        yield
    await engine.dispose()


async def test_an_order_is_mailed(capsys: pytest.CaptureFixture[str]) -> None:
    await place(42)
    await relay()
    assert capsys.readouterr().out == "mail for order 42\n"


async def test_an_order_that_is_rolled_back_is_not_mailed(capsys: pytest.CaptureFixture[str]) -> None:
    await place(42)
    with pytest.raises(IntegrityError):
        await place(42)
    await relay()
    assert capsys.readouterr().out == "mail for order 42\n"
