"""A business table for tests of the inbox, with a row for each effect of a message."""

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
    """Return the number of effects of each message."""
    with engine.connect() as connection:
        return Counter(connection.execute(select(Effect.message_id)).scalars())
