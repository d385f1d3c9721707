"""Stock: deducts paid items from stock, and never more than available. A consumer with its own database.

Of each paid order there is one row in `deductions`: it was deducted, or it is short, which somebody has to settle with
the buyer. `idempotent` makes a message that comes twice take effect once. What is refunded does not come back: goods do
so days later, and are looked at first.

Configured by the environment: STOCK_DATABASE_URL (SQLAlchemy) and TXMSG_BROKERS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from sqlalchemy import (
    CheckConstraint,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
    text,
)
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

import txmsg
from txmsg import Consumer, ReceivedMessage, idempotent

from .orders import TOPIC

CALLERS = 8

engine = create_engine(os.environ["STOCK_DATABASE_URL"])  # to set up; handlers have connections of their own
SessionLocal = async_sessionmaker(create_async_engine(engine.url, pool_size=CALLERS))
consumer = Consumer(group="stock", concurrency=CALLERS, visibility_timeout_s=10)

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

# One statement: condition and change are the same moment, so no two orders take the last piece, and the row of an
# item that everybody wants is locked for no longer than its commit takes.
_TAKE_OUT = text("""
with taken as (
    update stock set available = available - :quantity where item = :item and available >= :quantity returning item
)
insert into deductions (order_id, item, quantity, outcome)
select :order_id, :item, :quantity, case when exists (select from taken) then 'deducted' else 'short' end
""")


@consumer.subscribe(TOPIC, tag="paid")
@idempotent(SessionLocal)
async def on_paid(session: AsyncSession, message: ReceivedMessage) -> None:
    """Deduct an order. Delivered at least once; `idempotent` makes it take effect exactly once, in one transaction."""
    order = message.json()
    await session.execute(_TAKE_OUT, {name: order[name] for name in ("order_id", "item", "quantity")})


def create_tables() -> None:
    """Create the consumer's own tables, and the inbox in which `idempotent` records handled messages."""
    metadata.create_all(engine)
    txmsg.create_tables(engine)


def take_in(pieces: Mapping[str, int]) -> None:
    """Add so many pieces of each item. Done once, before the first order; existing items are unchanged."""
    with engine.begin() as connection:
        known = set(connection.scalars(select(stock.c.item)))
        rows = [
            {"item": item, "initial": count, "available": count} for item, count in pieces.items() if item not in known
        ]
        if rows:
            connection.execute(insert(stock), rows)


if __name__ == "__main__":
    create_tables()
    consumer.run()
