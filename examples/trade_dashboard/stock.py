"""Stock: what is paid is taken out of stock, and never more than there is. A consumer with a database of its own.

Of each paid order there is one row in `deductions`: it was deducted, or it is short, which somebody has to settle with
the buyer. `idempotent` makes a message that comes twice take effect once. What is refunded does not come back: goods do
so days later, and are looked at first.

Configured by the environment: STOCK_DATABASE_URL (SQLAlchemy, for asyncio) and TXMSG_BROKERS.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping

from sqlalchemy import CheckConstraint, Column, Integer, MetaData, String, Table, bindparam, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from examples.trade_dashboard.orders import TOPIC
from txmsg import AsyncConsumer, ReceivedMessage, create_inbox_tables, idempotent

__all__ = ["SessionLocal", "consumer", "create_tables", "deductions", "engine", "metadata", "stock", "take_in"]

engine = create_async_engine(os.environ["STOCK_DATABASE_URL"], pool_size=16, max_overflow=0, pool_timeout=60)
SessionLocal = async_sessionmaker(engine)
consumer = AsyncConsumer(
    os.environ.get("TXMSG_BROKERS", "localhost:7700"), group="stock", concurrency=16, invisible_s=10
)

metadata = MetaData()

stock = Table(
    "stock",
    metadata,
    Column("item", String(64), primary_key=True),
    Column("initial", Integer, nullable=False, comment="What came in."),
    Column("available", Integer, CheckConstraint("available >= 0"), nullable=False),
)

deductions = Table(
    "deductions",
    metadata,
    Column("order_id", String(64), primary_key=True),
    Column("item", String(64), nullable=False),
    Column("quantity", Integer, nullable=False),
    Column("outcome", String(8), CheckConstraint("outcome in ('deducted', 'short')"), nullable=False),
    comment="One row for each paid order: short is what was paid and is not there.",
)

# The condition and the change are one statement, so no two orders take the last piece.
_TAKE_OUT = (
    update(stock)
    .where(stock.c.item == bindparam("wanted"), stock.c.available >= bindparam("pieces"))
    .values(available=stock.c.available - bindparam("pieces"))
)
_DEDUCT = insert(deductions)


@consumer.subscribe(TOPIC, tag="paid")
@idempotent(SessionLocal)
async def on_paid(session: AsyncSession, message: ReceivedMessage) -> None:
    """Delivered at least once; `idempotent` lets it take effect exactly once, in one transaction with its note."""
    order = json.loads(message.body)
    connection = await session.connection()
    taken = await connection.execute(_TAKE_OUT, {"wanted": order["item"], "pieces": order["quantity"]})
    await connection.execute(
        _DEDUCT,
        {
            "order_id": order["order_id"],
            "item": order["item"],
            "quantity": order["quantity"],
            "outcome": "deducted" if taken.rowcount == 1 else "short",
        },
    )


async def create_tables() -> None:
    """The consumer's own tables, and the inbox in which `idempotent` notes what has taken effect."""
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.run_sync(create_inbox_tables)


async def take_in(pieces: Mapping[str, int]) -> None:
    """So many pieces of each item come in. Done once, before the first order; items that are there stay as they are."""
    async with engine.begin() as connection:
        known = set(await connection.scalars(select(stock.c.item)))
        rows = [
            {"item": item, "initial": count, "available": count} for item, count in pieces.items() if item not in known
        ]
        if rows:
            await connection.execute(insert(stock), rows)


async def _main() -> None:
    await create_tables()
    await consumer.run()


if __name__ == "__main__":
    asyncio.run(_main())
