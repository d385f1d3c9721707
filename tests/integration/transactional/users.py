"""A business database with a table of users."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)


class Refused(Exception):
    pass


def users(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(User)).scalar_one()
