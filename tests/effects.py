"""A business table for tests of the inbox: a row for each time that a message had its effect."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"

    id: Mapped[int] = mapped_column(primary_key=True)
    message_id: Mapped[str]


def effects(engine: Engine) -> Counter[str]:
    """How often each message had its effect."""
    with engine.connect() as connection:
        return Counter(connection.execute(select(Effect.message_id)).scalars())
