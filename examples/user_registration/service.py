"""The registration service. Its only task is a row in `users`; a message notifies others once the row is committed.

Whoever calls `register` waits for this database and for the broker, and for no subscriber. If the function raises, the
row is rolled back and nobody hears of the user. If this process dies at any point, the broker asks another process
of the group "user-service" what became of the transaction: FenceCheckListener answers from the database itself.

`python -m examples.user_registration.service` makes the tables. Processes of the service call `producer.start()` when
they begin, so that they answer for transactions which an earlier process left undecided.

Configured by the environment: USERS_DATABASE_URL (SQLAlchemy) and TXMSG_BROKERS (host:port, comma separated).
"""

from __future__ import annotations

import os
from datetime import datetime
from uuid import UUID

from sqlalchemy import create_engine, func
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import txmsg
from txmsg import FenceCheckListener, Producer, transactional_message

engine = create_engine(os.environ["USERS_DATABASE_URL"], pool_size=16, pool_pre_ping=True)
SessionLocal = sessionmaker(engine, expire_on_commit=False)
listener = FenceCheckListener(engine)
producer = Producer(group="user-service", check_listener=listener)


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    registered_at: Mapped[datetime] = mapped_column(server_default=func.now())


class RegistrationRefused(Exception):
    """Raised by the business logic. The row written so far is rolled back, and the message with it."""


def create_user(session: Session, user_id: UUID, email: str) -> User:
    """Write the user, the core step. Knows nothing of messages; the caller owns the transaction."""
    user = User(id=user_id, email=email)
    session.add(user)
    session.flush()
    if email.endswith("@disposable.example"):
        raise RegistrationRefused(f"{email} is a throw-away address: register with a lasting one")
    return user


@transactional_message(producer, topic="user.registered", key="user_id", session=SessionLocal)
def register(session: Session, user_id: UUID, email: str) -> User:
    """Register a user: call `register(user_id, email)`. Commits; the message is sent if and only if it commits."""
    return create_user(session, user_id, email)


def create_tables() -> None:
    """Create the service's own table, and those of the fence, which belong to this database, too."""
    Base.metadata.create_all(engine)
    txmsg.create_tables(engine)


if __name__ == "__main__":
    create_tables()
