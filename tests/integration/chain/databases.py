"""Business databases of services in a chain, inspected by plain SQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

KINDS = ("postgresql", "sqlite", "mariadb")
_ASYNC = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite", "mariadb": "mariadb+aiomysql"}


class BusinessDatabase:
    """A database with the table `paid`: payments by order id."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, directory: Path) -> None:
        self.kind = kind
        if kind == "sqlite":
            self.url = f"sqlite:///{directory / 'business.db'}"
        elif kind == "postgresql":
            url: str = request.getfixturevalue("database_url")
            self.url = url.replace("postgresql://", "postgresql+psycopg://")
        else:
            self.url = request.getfixturevalue("mariadb_url")
        # Without a key: a double write has to be visible, not prevented.
        self.execute("create table paid (order_id integer not null, amount integer not null)")

    @property
    def async_url(self) -> str:
        """The URL for an AsyncEngine."""
        return make_url(self.url).set(drivername=_ASYNC[self.kind]).render_as_string(hide_password=False)

    def execute(self, sql: str) -> list[tuple[object, ...]]:
        """Execute a statement in its own committed transaction and return its rows."""
        engine = create_engine(self.url, poolclass=NullPool)
        with engine.begin() as connection:
            result = connection.execute(text(sql))
            return [tuple(row) for row in result] if result.returns_rows else []

    def paid(self) -> list[tuple[object, ...]]:
        """Return all payments."""
        return self.execute("select order_id, amount from paid order by order_id, amount")
