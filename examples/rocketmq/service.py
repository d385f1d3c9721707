"""Places orders in a database, with the fence of txmsg: python -m examples.rocketmq.service COUNT.

When the table has COUNT orders, no more are placed. If the program is killed, the broker asks the next one, whose
FenceCheckListener answers from the database.

Configured by the environment: ORDERS_DATABASE_URL (SQLAlchemy) and TXMSG_BROKERS (host:port, comma separated).
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from uuid import uuid4

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import txmsg
from txmsg import BrokerUnavailable, FenceCheckListener, Producer, transactional_message

from . import TOPIC

_CUSTOMER_S = 0.1
"""Seconds until the next customer."""

engine = create_engine(os.environ["ORDERS_DATABASE_URL"], pool_pre_ping=True)
SessionLocal = sessionmaker(engine, expire_on_commit=False)
listener = FenceCheckListener(engine)
producer = Producer(group="shop", check_listener=listener)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    order_id: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


@transactional_message(producer, topic=TOPIC, key="order_id", session=SessionLocal)
def place(session: Session, order_id: str, cents: int) -> Order:
    """Place an order: call `place(order_id, cents)`. The message is sent if and only if the row is committed."""
    order = Order(order_id=order_id, cents=cents)
    session.add(order)
    return order


def main(count: int) -> None:
    """Create missing tables, place missing orders, and answer check-backs until the parent exits."""
    Base.metadata.create_all(engine)
    txmsg.create_tables(engine)
    with producer:
        print("placing", flush=True)
        with SessionLocal() as session:
            placed = session.scalar(select(func.count()).select_from(Order)) or 0
        while placed < count:
            with suppress(BrokerUnavailable):  # nothing was written then: the next attempt is another order
                place(str(uuid4()), 100 + placed % 900)
                placed += 1
            time.sleep(_CUSTOMER_S)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
