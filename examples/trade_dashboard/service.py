"""The trade service. An order is a row in `orders`; each committed trade that changes it is published.

All four functions are called without the session, with orders that are traded together (the cart of a buyer, what a
bank has the money for, what leaves on one lorry) and the moment of the trade. All of them are traded, or none is:

    await create([order], at_us)
    await pay([order, another], at_us)

Messages of one order come in the order in which its trades were made, since its id is their ordering key. If this
process dies at any point, the FenceCheckListener of the next one says, from the database itself, what became of it.

`python -m examples.trade_dashboard.service` makes the tables. Configured by the environment: TRADES_DATABASE_URL
(SQLAlchemy, for asyncio) and TXMSG_BROKERS (host:port, comma separated).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from sqlalchemy import (
    ARRAY,
    BigInteger,
    BindParameter,
    CheckConstraint,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    Update,
    any_,
    bindparam,
    insert,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

import txmsg
from txmsg import AsyncProducer, FenceCheckListener, transactional_message

from .orders import Order, telling

engine = create_async_engine(os.environ["TRADES_DATABASE_URL"], pool_size=24, max_overflow=0, pool_timeout=60)
SessionLocal = async_sessionmaker(engine)
listener = FenceCheckListener(engine)
producer = AsyncProducer(group="trade-service", check_listener=listener)

metadata = MetaData()

orders = Table(
    "orders",
    metadata,
    Column("order_id", String(64), primary_key=True),
    Column("buyer", String(64), nullable=False),
    Column("seller", String(64), nullable=False),
    Column("province", String(32), nullable=False),
    Column("category", String(32), nullable=False),
    Column("item", String(64), nullable=False),
    Column("quantity", Integer, CheckConstraint("quantity > 0"), nullable=False),
    Column("amount_cents", BigInteger, CheckConstraint("amount_cents > 0"), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("paid_at_us", BigInteger),
    Column("shipped_at_us", BigInteger, CheckConstraint("shipped_at_us is null or paid_at_us is not null")),
    Column("refunded_at_us", BigInteger, CheckConstraint("refunded_at_us is null or paid_at_us is not null")),
    comment="An order; a trade that was not made has no time.",
)


class TradeRefused(Exception):
    """Raised if an order is not in the state for this trade. Nothing was changed, and no message is sent."""


@transactional_message(producer, session=SessionLocal, message=telling("created"))
async def create(session: AsyncSession, orders: Sequence[Order], at_us: int) -> None:
    """Check out a cart: an order for each item. Raises IntegrityError for an existing order."""
    await session.execute(_INSERT, [{**order._asdict(), "created_at_us": at_us} for order in orders])


@transactional_message(producer, session=SessionLocal, message=telling("paid"))
async def pay(session: AsyncSession, orders: Sequence[Order], at_us: int) -> None:
    """Record a payment. Raises TradeRefused unless the orders exist and are not paid."""
    await _change(session, _PAY, orders, at_us)


@transactional_message(producer, session=SessionLocal, message=telling("shipped"))
async def ship(session: AsyncSession, orders: Sequence[Order], at_us: int) -> None:
    """Ship the orders. Raises TradeRefused unless they are paid, and neither shipped nor refunded."""
    await _change(session, _SHIP, orders, at_us)


@transactional_message(producer, session=SessionLocal, message=telling("refunded"))
async def refund(session: AsyncSession, orders: Sequence[Order], at_us: int) -> None:
    """Refund the orders. Raises TradeRefused unless they are paid and not refunded."""
    await _change(session, _REFUND, orders, at_us)


_INSERT = insert(orders)
_paid, _shipped, _refunded = orders.c.paid_at_us, orders.c.shipped_at_us, orders.c.refunded_at_us
_these = orders.c.order_id == any_(bindparam("ids", type_=ARRAY(String)))
_at: BindParameter[int] = bindparam("at_us")
_PAY = update(orders).where(_these, _paid.is_(None)).values(paid_at_us=_at)
_SHIP = (
    update(orders).where(_these, _paid.is_not(None), _shipped.is_(None), _refunded.is_(None)).values(shipped_at_us=_at)
)
_REFUND = update(orders).where(_these, _paid.is_not(None), _refunded.is_(None)).values(refunded_at_us=_at)


async def _change(session: AsyncSession, change: Update, orders: Sequence[Order], at_us: int) -> None:
    connection = await session.connection()
    changed = await connection.execute(change, {"ids": [order.order_id for order in orders], "at_us": at_us})
    if changed.rowcount != len(orders):
        raise TradeRefused(f"{len(orders) - changed.rowcount} of {len(orders)} orders cannot be: all stay as they are")


async def create_tables() -> None:
    """Create the service's own table, and those of the fence, which belong to this database, too."""
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await txmsg.create_tables(engine)


async def _main() -> None:
    await create_tables()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(_main())
