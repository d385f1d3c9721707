import asyncio
import logging

from receive import broker, orders
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

engine = create_async_engine("sqlite+aiosqlite:///shop.db")


class Base(DeclarativeBase):
    pass


class Outbox(Base):
    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


async def place(order_id: int) -> None:
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(text("insert into orders values (:id)"), {"id": order_id})
        session.add(Outbox(order_id=order_id))


async def relay() -> None:
    async with AsyncSession(engine) as session, session.begin():
        oldest = select(Outbox).order_by(Outbox.id).limit(100).with_for_update(skip_locked=True)
        for row in await session.scalars(oldest):
            await broker.publish(row.order_id, orders, persist=True)
            await session.delete(row)


async def main() -> None:
    async with broker:
        while True:
            try:
                await relay()
            except Exception:
                logging.exception("the relay tries again")
            await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main())
