"""Brings a Notify database to the revision this release works with, and tells what is wrong with one.

Expand, then contract: a broker works with a range of revisions, so that brokers of two releases run side by side.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from txmsg.broker import findings
from txmsg.broker.findings import Finding
from txmsg.broker.store.connect import cut
from txmsg.errors import SchemaMismatch, StorageError

__all__ = ["REVISIONS", "check", "current", "is_away", "libpq_url", "require", "upgrade"]

REVISIONS = ("0002",)
"""The revisions this release works with, oldest first. `upgrade` goes to the last. A newer database says in
notify_db.works_from from which revision on brokers may run on it."""

_INSTALL_NEWER = (
    f"newer than this release of txmsg knows (up to {REVISIONS[-1]}): install the release that upgraded it, or a newer "
    "one; a database is not downgraded"
)
_CONNECT_S_MAX = 10
_ANSWER_S_MAX = 30.0
"""For reading a revision and settings. A migration may take as long as it takes."""
_UPGRADE_LOCK = 7704  # two brokers that start together upgrade one after the other
# A migration that waits for a reader keeps all senders waiting behind it: so it waits shortly, then lets them pass.
_LOCK_WAIT_MS = 1000
_LOCK_PAUSE_S = 1.0


@contextmanager
def _connect(url: str, *, any_version: bool = False, answer_s_max: float = _ANSWER_S_MAX) -> Iterator[Connection]:
    parsed = _parsed(url)
    engine = create_engine(
        parsed.set(drivername="postgresql+psycopg"), connect_args={"connect_timeout": _CONNECT_S_MAX}
    )
    try:
        with engine.connect() as connection, _cut_after(answer_s_max, connection):
            version = int(connection.execute(text("show server_version_num")).scalar_one())
            if version < findings.VERSION_MIN and not any_version:
                raise StorageError(
                    f"the Notify database {parsed} is PostgreSQL {version // 10_000}: use "
                    f"{findings.VERSION_MIN // 10_000} or newer"
                )
            yield connection
    except DBAPIError as exc:
        # Without the scraps of SQL that psycopg appends; what failed before there was a session has no such part.
        told = exc.orig.diag.message_primary if isinstance(exc.orig, psycopg.Error) else None
        raise StorageError(f"the Notify database {parsed} cannot be used: {told or exc.orig}; {_advice(exc)}") from exc
    finally:
        engine.dispose()


@contextmanager
def _cut_after(timeout_s: float, connection: Connection) -> Iterator[None]:
    """For a server that takes a connection and says nothing more. No end for math.inf."""
    driver_connection = connection.connection.driver_connection
    assert isinstance(driver_connection, psycopg.Connection)
    timer = threading.Timer(min(timeout_s, threading.TIMEOUT_MAX), cut, (driver_connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _parsed(url: str) -> URL:
    """The URL, whose text hides the password. Raises StorageError for anything but one of PostgreSQL."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as exc:  # ValueError: a port that is no number
        without_password = re.sub(r":[^:@/]*@", ":***@", url)
        raise StorageError(
            f"{without_password!r} is not a database URL: write postgresql://user@host:5432/database"
        ) from exc
    if parsed.get_backend_name() not in {"postgresql", "postgres"}:  # libpq takes both
        raise StorageError(f"the Notify database {parsed} is none of PostgreSQL: write postgresql://user@host:5432/...")
    return parsed


def _advice(error: DBAPIError) -> str:
    if isinstance(error.orig, psycopg.errors.InsufficientPrivilege):
        return (
            "`grant create on database ... to ...` lets the role make the schema txmsg; where it is there already, run "
            "the broker as the role that ran `txmsg db upgrade`"
        )
    if isinstance(error.orig, psycopg.errors.ReadOnlySqlTransaction):
        return (
            "this is a standby: name the primary, or all servers, as in "
            "postgresql://user@/database?host=db1,db2&target_session_attrs=read-write"
        )
    return "check the URL (host, port, user, password, database), and that the server runs"


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def _is_newer(revision: str | None) -> bool:
    """Whether a later release has made this revision: this one has no script that leads to it."""
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    return revision is not None and revision not in known


def _revision(connection: Connection) -> str | None:
    options = {"version_table": "revision", "version_table_schema": "txmsg"}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def _is_lenient(connection: Connection, revision: str | None) -> bool:
    """Whether a later release has made this revision so that brokers of this one still run on it."""
    if not _is_newer(revision):
        return False
    works_from: str = connection.execute(text("select works_from from txmsg.notify_db")).scalar_one()
    return works_from <= REVISIONS[-1]


def is_away(url: str) -> bool:
    """Whether no server answers there, or one that is still starting or stopping: then waiting may help."""
    conninfo = make_conninfo(libpq_url(url), connect_timeout=_CONNECT_S_MAX)
    return PGconn.ping(conninfo.encode()) in {Ping.REJECT, Ping.NO_RESPONSE}


def libpq_url(url: str) -> str:
    """The URL as psycopg takes it, without what SQLAlchemy writes of a driver: postgresql+psycopg://...

    Raises StorageError for anything but a URL of PostgreSQL.
    """
    _parsed(url)
    return "postgresql://" + url.partition("://")[2]


def current(url: str) -> str | None:
    """The revision of the database, or None when it has no txmsg tables yet."""
    with _connect(url) as connection:
        return _revision(connection)


def upgrade(url: str, *, wait_s: float = 60.0) -> str:
    """Brings the database to the newest revision of this release and returns it. Doing so twice is fine.

    Whoever sends or receives meanwhile waits for a moment, not longer. Where sessions hold tables open it tries again
    for `wait_s`. Raises SchemaMismatch when the database is newer than this release, StorageError when it cannot be
    used, or when tables are held for too long: nothing has changed then.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return _upgrade_once(url)
        except _TablesHeld as exc:
            if time.monotonic() >= deadline:
                raise StorageError(
                    f"the Notify database {_parsed(url)} was not upgraded: its tables are held open, for {wait_s:g} s "
                    f"at least, by {exc}: end these sessions, or wait for them, and upgrade again"
                ) from exc
        time.sleep(_LOCK_PAUSE_S)


class _TablesHeld(Exception):
    """Sessions hold tables that a migration needs for itself. The text names them."""


def _upgrade_once(url: str) -> str:
    with _connect(url, answer_s_max=math.inf) as connection:
        connection.execute(text(f"select pg_advisory_xact_lock({_UPGRADE_LOCK}, 0)"))
        connection.execute(text("create schema if not exists txmsg"))
        revision = _revision(connection)
        if _is_newer(revision):
            raise SchemaMismatch(f"the Notify database is at revision {revision}, {_INSTALL_NEWER}")
        config = _config()
        config.attributes["connection"] = connection
        connection.execute(text(f"set local lock_timeout = {_LOCK_WAIT_MS}"))
        try:
            command.upgrade(config, REVISIONS[-1])
        except DBAPIError as exc:
            if not isinstance(exc.orig, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                raise
            connection.rollback()
            raise _TablesHeld(", ".join(connection.scalars(text(_HOLDERS))) or "others, in turn") from exc
        connection.commit()
    return REVISIONS[-1]


_HOLDERS = """
select format('process %s (user %s%s, %s)', a.pid, a.usename,
              coalesce(', ' || nullif(a.application_name, ''), ''), a.state)
  from pg_stat_activity a
 where a.pid <> pg_backend_pid() and a.xact_start < now() - interval '1 second'
   and exists (select from pg_locks l join pg_class c on c.oid = l.relation
                where l.pid = a.pid and l.granted and c.relnamespace = 'txmsg'::regnamespace)
 order by a.xact_start limit 5
"""


def require(url: str) -> None:
    """Returns when this release works with the database as it is; else raises SchemaMismatch with the remedy."""
    with _connect(url) as connection:
        revision = _revision(connection)
        if revision in REVISIONS or _is_lenient(connection, revision):
            return
    if _is_newer(revision):
        raise SchemaMismatch(f"the Notify database is at revision {revision}, {_INSTALL_NEWER}")
    shown = make_url(url).render_as_string(hide_password=True)
    raise SchemaMismatch(
        f"the Notify database is at revision {revision or '(none)'}, this release works with "
        f"{' to '.join(dict.fromkeys((REVISIONS[0], REVISIONS[-1])))}: run `txmsg db upgrade --storage {shown}`, "
        "or install the release that fits"
    )


def check(url: str) -> list[Finding]:
    """What an operator should know of the database: its server, what holds of standbys, its revision. Only reads."""
    with _connect(url, any_version=True) as connection:
        found = list(findings.of_server(connection))
        revision = _revision(connection)
        is_lenient = _is_lenient(connection, revision)
        topics = findings.replicated_topics(connection) if revision in REVISIONS or is_lenient else 0
        found += findings.of_replication(connection, topics=topics)
        note = "newer than this release, whose brokers still run on it" if is_lenient else ""
        found.append(Finding("revision", revision or "none", "" if is_lenient else _fix_of(revision), note))
        return found


def _fix_of(revision: str | None) -> str:
    if revision in REVISIONS:
        return ""
    return _INSTALL_NEWER if _is_newer(revision) else "run `txmsg db upgrade --storage URL`"
