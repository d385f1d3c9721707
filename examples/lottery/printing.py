"""The lottery system: prints a ticket for each entry, at its own pace. A consumer with its own database.

Start as many of these processes as there is work for, and stop them at any time: entries that one leaves are printed by
the others. `idempotent` makes a message that comes twice take effect once.

Configured by the environment: TICKETS_DATABASE_URL (SQLAlchemy), TXMSG_BROKERS, and PRINT_MS, how long a ticket takes.
"""

from __future__ import annotations

import os
import secrets
import time
from datetime import datetime
from uuid import UUID

from sqlalchemy import create_engine, func
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import txmsg
from txmsg import Consumer, ReceivedMessage, idempotent

TICKETS_AT_ONCE = 4

engine = create_engine(os.environ["TICKETS_DATABASE_URL"], pool_size=TICKETS_AT_ONCE)
SessionLocal = sessionmaker(engine)
consumer = Consumer(
    group="printing",
    concurrency=TICKETS_AT_ONCE,
    visibility_timeout_s=5,
)


class Base(DeclarativeBase):
    pass


class Ticket(Base):
    __tablename__ = "tickets"

    number: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(index=True)  # not unique: next year's lottery has tickets, too
    entry_id: Mapped[UUID]
    code: Mapped[str]
    printed_at: Mapped[datetime] = mapped_column(server_default=func.now())


@consumer.subscribe("lottery.entered")
@idempotent(SessionLocal)
def print_ticket(session: Session, message: ReceivedMessage) -> None:
    """Print a ticket. Delivered at least once; `idempotent` makes it take effect exactly once, in one transaction."""
    entry = message.json()
    time.sleep(int(os.environ.get("PRINT_MS", "20")) / 1000)  # stands for the printer
    session.add(Ticket(user_id=entry["user_id"], entry_id=UUID(entry["entry_id"]), code=secrets.token_hex(4)))


def create_tables() -> None:
    """Create the consumer's own table, and the inbox in which `idempotent` records handled messages."""
    Base.metadata.create_all(engine)
    txmsg.create_tables(engine)


if __name__ == "__main__":
    create_tables()
    consumer.run()
