"""The Notify database of a run of pytest, emptied for each test.

Emptied, not made anew: that takes a few milliseconds where a copy of a database takes a few hundred.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from txmsg.broker import migrate
from txmsg.broker.schema import metadata
from txmsg.embedded import EmbeddedPostgres
from txmsg.errors import StorageError
from txmsg.postgres import connect

__all__ = ["NotifyDatabase"]

_CONNECT_S_MAX = 10
_KEPT = frozenset({"txmsg.notify_db", "txmsg.segment", "txmsg.lease"})
"""What makes the database usable, and the epochs: a consumer that outlives a test refuses lower ones."""


class NotifyDatabase:
    """A database at the newest revision. `url` names it."""

    def __init__(self, url: str) -> None:
        self.url = url
        migrate.upgrade(url)

    def empty(self) -> None:
        """Forgets everything, and makes it another Notify database. No broker may be running."""
        tables = [table.fullname for table in reversed(metadata.sorted_tables) if table.fullname not in _KEPT]
        with connect(self.url, autocommit=False, connect_timeout=_CONNECT_S_MAX) as connection:
            for table in tables:
                connection.execute(sql.SQL("delete from {}").format(sql.Identifier(*table.split("."))))
            connection.execute("update txmsg.notify_db set shard = gen_random_uuid()")

    @classmethod
    @contextmanager
    def made(cls, storage: str | None, data_dir: Path) -> Iterator[NotifyDatabase]:
        """A new one on the server that `storage` names, or on an embedded one in `data_dir`; dropped in the end."""
        name = f"txmsg_test_{os.getpid()}_{uuid4().hex[:6]}"
        if storage is None:
            with EmbeddedPostgres(data_dir) as server:
                yield cls(server.create_database(name))
                server.drop_database(name)
        else:
            url = migrate.libpq_url(storage)
            _execute(url, sql.SQL("create database {} template template0").format(sql.Identifier(name)))
            yield cls(make_url(url).set(database=name).render_as_string(hide_password=False))
            _execute(url, sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _execute(url: str, statement: sql.Composed) -> None:
    try:
        with connect(url, connect_timeout=_CONNECT_S_MAX) as connection:
            connection.execute(statement)
    except psycopg.Error as exc:
        raise StorageError(
            f"--txmsg-storage {make_url(url)}: {str(exc).strip()}: name a PostgreSQL whose role may create databases, "
            "or leave the option out: txmsg brings its own"
        ) from exc
