"""A business table for tests of the inbox: a row for each time that a message had its effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from txmsg.tables import create_tables


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"

    id: Mapped[int] = mapped_column(primary_key=True)
    message_id: Mapped[str]


@contextmanager
def business_database(url: str) -> Iterator[Engine]:
    """An engine on a database with the table and those of txmsg."""
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    create_tables(engine)
    yield engine
    engine.dispose()


def effects(engine: Engine) -> Counter[str]:
    """How often each message had its effect."""
    with engine.connect() as connection:
        return Counter(connection.execute(select(Effect.message_id)).scalars())
