"""The Notify database of a run of pytest, emptied for each test.

Emptied, not recreated: this takes a few milliseconds, a copy of a database a few hundred.
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
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.errors import StorageError
from txmsg.runtime.postgres import connect

_CONNECT_S_MAX = 10
# Tables that make the database usable stay, and the epochs: a consumer that outlives a test refuses lower ones. Tables
# that refer to others come first.
_EMPTIED = """
with recursive refers(oid, depth) as (
    select c.oid, 0 from pg_class c
     where c.relnamespace = 'txmsg'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    union all
    select k.conrelid, refers.depth + 1 from refers join pg_constraint k on k.confrelid = refers.oid and k.contype = 'f'
)
select relname from refers join pg_class using (oid)
 where relname not in ('notify_db', 'segment', 'lease_epoch', 'revision', 'catalogue_of_revision')
 group by relname order by max(depth) desc, relname
"""


class NotifyDatabase:
    """A Notify database at the newest revision. `url` names it."""

    def __init__(self, url: str) -> None:
        self.url = url
        migrate.upgrade(url)

    def empty(self) -> None:
        """Delete all data, and give the database a new identity. No broker may be running."""
        with connect(self.url, autocommit=False, connect_timeout=_CONNECT_S_MAX) as connection:
            connection.execute("set local txmsg.forgets_audit = on")  # Without it the audit log refuses: append-only.
            for (table,) in connection.execute(_EMPTIED).fetchall():
                connection.execute(sql.SQL("delete from {}").format(sql.Identifier("txmsg", table)))
            connection.execute("update txmsg.notify_db set shard = gen_random_uuid()")

    @classmethod
    @contextmanager
    def made(cls, storage: str | None, data_dir: Path) -> Iterator[NotifyDatabase]:
        """Create a database on the server of `storage`, or on an embedded one in `data_dir`; dropped at the end."""
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
