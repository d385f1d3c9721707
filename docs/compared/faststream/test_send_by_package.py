import asyncio

from faststream.rabbit import TestRabbitBroker
from receive import broker, mail
from send_by_package import engine, metadata, outbox, place
from sqlalchemy import text


async def test_an_order_is_relayed() -> None:
    async with engine.begin() as connection:
        await connection.execute(text("drop table if exists orders"))
        await connection.execute(text("create table orders (id integer primary key)"))
        await connection.run_sync(metadata.drop_all)
        await connection.run_sync(metadata.create_all)
    async with TestRabbitBroker(broker, connect_only=False), outbox:
        await outbox.start()
        await place(42)
        async with asyncio.timeout(20):
            while not mail.mock.called:  # noqa: ASYNC110 - wait_call sees none from another broker
                await asyncio.sleep(0.1)
        mail.mock.assert_called_once_with(42)
    await engine.dispose()
