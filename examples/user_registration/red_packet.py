"""Subscriber "red_packet": gives every new user a red packet with a few yuan. Has its own database.

Configured by the environment: DATABASE_URL, TXMSG_BROKERS, and STEP_MS, how long the work takes.
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from uuid import UUID

from sqlalchemy import create_engine, func
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import txmsg
from txmsg import Consumer, ReceivedMessage, idempotent

engine = create_engine(os.environ["DATABASE_URL"], pool_size=16, pool_pre_ping=True)
SessionLocal = sessionmaker(engine)
consumer = Consumer(group="red_packet", concurrency=8, visibility_timeout_s=10)


class Base(DeclarativeBase):
    pass


class RedPacket(Base):
    __tablename__ = "red_packets"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[UUID] = mapped_column(index=True)  # not unique: users get more packets in later years
    amount_fen: Mapped[int]
    given_at: Mapped[datetime] = mapped_column(server_default=func.now())


def give_red_packet(session: Session, user_id: UUID) -> None:
    """Write the effect. The caller owns the transaction."""
    time.sleep(int(os.environ.get("STEP_MS", "10")) / 1000)  # stands for the work: drawing the amount
    session.add(RedPacket(user_id=user_id, amount_fen=888))


@consumer.subscribe("user.registered")
@idempotent(SessionLocal)
def on_user_registered(session: Session, message: ReceivedMessage) -> None:
    """Handle a message. Delivered at least once; `idempotent` makes it take effect exactly once, in one transaction."""
    give_red_packet(session, UUID(message.json()["user_id"]))


def create_tables() -> None:
    """Create the subscriber's own table, and the inbox in which `idempotent` records handled messages."""
    Base.metadata.create_all(engine)
    txmsg.create_tables(engine)


if __name__ == "__main__":
    create_tables()
    consumer.run()
