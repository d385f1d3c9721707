"""The embedded PostgreSQL that tests share: in memory, without fsync, with a database for each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests import unclosed
from txmsg.broker.embedded import EmbeddedPostgres


class MemoryPostgres(EmbeddedPostgres):
    """An EmbeddedPostgres that creates and drops databases over one session and copies their files, in half the time.

    Copying files needs a checkpoint before and after, which costs nothing without a disk.
    """

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._session: psycopg.Connection[Any] | None = None

    def stop(self) -> None:
        if self._session is not None:
            self._session.close()
        super().stop()

    def create_database(self, name: str = "txmsg", *, template: str | None = None) -> str:
        """Create a database and return its URL."""
        statement = sql.SQL("create database {} template {} strategy file_copy")
        self._execute(statement.format(sql.Identifier(name), sql.Identifier(template or "template0")))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drops the database and ends its connections. Idempotent."""
        self._execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composed) -> None:
        if self._session is None:
            with unclosed.not_judged():  # the server's, not that of the first test
                self._session = psycopg.connect(self.url("postgres"), autocommit=True, connect_timeout=10)
        self._session.execute(statement)
