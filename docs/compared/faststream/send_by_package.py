from faststream import FastStream
from faststream_outbox import ConstantRetry, OutboxBroker, make_outbox_table
from receive import broker, orders
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

engine = create_async_engine("postgresql+asyncpg:///shop")
metadata = MetaData()
outbox = OutboxBroker(engine, outbox_table=make_outbox_table(metadata, table_name="outbox"))
app = FastStream(outbox, on_startup=[broker.connect])


async def place(order_id: int) -> None:
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(text("insert into orders values (:id)"), {"id": order_id})
        await outbox.publish(order_id, queue="order.placed", session=session)


@broker.publisher(orders, persist=True)
@outbox.subscriber("order.placed", retry_strategy=ConstantRetry(delay_seconds=1))
async def relay(order_id: int) -> int:
    return order_id
