"""Subscriber "social_import": imports every new user into the social network, which is slow. Has its own database.

Slowness costs nobody but this subscriber: the work runs 16 at a time, and what does not fit waits in the log.
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

engine = create_engine(os.environ["DATABASE_URL"], pool_size=24, pool_pre_ping=True)
SessionLocal = sessionmaker(engine)
consumer = Consumer(group="social_import", concurrency=16, visibility_timeout_s=10)


class Base(DeclarativeBase):
    pass


class SocialImport(Base):
    __tablename__ = "imports"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[UUID] = mapped_column(index=True)  # not unique: users are imported into one network after another
    imported_at: Mapped[datetime] = mapped_column(server_default=func.now())


def import_into_social_network(session: Session, user_id: UUID) -> None:
    """Write the effect. The caller owns the transaction."""
    time.sleep(int(os.environ.get("STEP_MS", "200")) / 1000)  # stands for the work: the network takes its time
    session.add(SocialImport(user_id=user_id))


@consumer.subscribe("user.registered")
@idempotent(SessionLocal)
def on_user_registered(session: Session, message: ReceivedMessage) -> None:
    """Handle a message. Delivered at least once; `idempotent` makes it take effect exactly once, in one transaction."""
    import_into_social_network(session, UUID(message.json()["user_id"]))


def create_tables() -> None:
    """Create the subscriber's own table, and the inbox in which `idempotent` records handled messages."""
    Base.metadata.create_all(engine)
    txmsg.create_tables(engine)


if __name__ == "__main__":
    create_tables()
    consumer.run()
