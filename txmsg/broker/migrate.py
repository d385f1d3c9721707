"""Migrations: upgrades a Notify database to the revision of this release, and checks one.

Expand, then contract: a broker works with a range of revisions, so that brokers of two releases run side by side
(decision 45).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PGconn, Ping
from psycopg.rows import scalar_row

from txmsg.broker import findings, migrations
from txmsg.broker.findings import FindingsRow
from txmsg.checks import database
from txmsg.checks.check import Finding
from txmsg.checks.database import (
    REVISION_AHEAD,
    REVISION_MISSING,
    REVISION_NEWER,
    SCHEMA_DIFFERS,
)
from txmsg.errors import SchemaMismatch, StorageError
from txmsg.runtime.postgres import KEEPALIVES, WITHOUT_POOLER, connect, cut_after, require_utf8, shares_sessions

REVISIONS = ("0001",)
"""The revisions that this release works with, oldest first. `upgrade` goes to the last. A newer database states in
notify_db.works_from the first revision whose brokers may run on it."""

_NAMED_MAX = 5
_CONNECT_S_MAX = 10
_ANSWER_S_MAX = 30.0
"""Seconds for reading a revision and settings. A migration has no limit."""
_UPGRADE_LOCK = 7704  # two brokers that start together upgrade one after the other
# While a migration waits for one reader, all senders wait behind it. So it waits shortly, lets them pass, and tries
# again.
_LOCK_WAIT_MS = 1000
_LOCK_PAUSE_S = 1.0
_PASSING_CLASSES = {"08", "53", "57"}
"""Classes of SQLSTATE of errors that may pass: connection, resources, operator intervention."""
_REFUSAL = re.compile(r"failed: \w+:  (?!the database system is|sorry, too many clients|remaining connection slots)")
"""The form in which libpq reports an error of the server that waiting does not help: `SEVERITY: text`. libpq's own
errors have no severity."""

Connection = psycopg.Connection[Any]


@contextmanager
def _connect(url: str, *, any_server: bool = False, answer_s_max: float = _ANSWER_S_MAX) -> Iterator[Connection]:
    try:
        with _session(url) as connection, cut_after(answer_s_max, connection):
            if any_server:
                connection.autocommit = False
                yield connection
                return
            if _is_shared(connection, url):
                raise StorageError(
                    f"the Notify database {_shown(url)} is reached through a pooler in transaction mode, where txmsg's "
                    f"locks and prepared statements fail: {WITHOUT_POOLER}"
                )
            version = connection.info.server_version
            if version < database.VERSION_MIN:
                raise StorageError(
                    f"the Notify database {_shown(url)} is PostgreSQL {version // 10_000}: use "
                    f"{database.VERSION_MIN // 10_000} or newer"
                )
            require_utf8(connection)
            connection.autocommit = False
            yield connection
    except psycopg.Error as exc:
        # Without the parts of SQL that psycopg appends; errors from before there was a session have none.
        told = exc.diag.message_primary or exc
        raise StorageError(f"the Notify database {_shown(url)} cannot be used: {told}; {_advice(exc)}") from exc


def _session(url: str) -> Connection:
    return connect(libpq_url(url), application_name="txmsg", connect_timeout=_CONNECT_S_MAX, **KEEPALIVES)


def _is_shared(connection: Connection, url: str) -> bool:
    with _session(url) as another, cut_after(_ANSWER_S_MAX, another):
        return shares_sessions(connection, another)


def _shown(url: str) -> str:
    """Return the URL without its password, for messages. Any text is accepted."""
    return re.sub(r"([?&]password=)[^&]*", r"\1***", re.sub(r"(//[^:/?@]*):.*@", r"\1:***@", url))


def _advice(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return (
            "`grant create on database ... to ...` lets the role make the schema txmsg; where it is there already, run "
            "the broker as the role that ran `txmsg db upgrade`"
        )
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return (
            "this is a standby: name the primary, or all servers, as in "
            "postgresql://user@/database?host=db1,db2&target_session_attrs=read-write"
        )
    if _is_refusal(error):
        return "the server runs and refuses this: correct user, password and database in the URL, or its pg_hba.conf"
    return "check the URL (host, port, user, password, database), and that the server runs"


def _is_newer(revision: str | None) -> bool:
    """Return True if this revision is of a later release: this one has no migration to it."""
    return revision is not None and revision not in {*REVISIONS, *migrations.revisions()}


def _remedy_of_newer(revision: str | None) -> str:
    return REVISION_NEWER.found(value=revision, known=REVISIONS[-1]).fix


def _revision(connection: Connection) -> str | None:
    if _scalar(connection, "select to_regclass('txmsg.revision')") is None:
        return None
    found: str | None = _scalar(connection, "select version_num from txmsg.revision")
    return found


def _scalar(connection: Connection, statement: LiteralString) -> Any:
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(statement).fetchone()


def _is_lenient(connection: Connection, revision: str | None) -> bool:
    """Return True if this revision is of a later release, and brokers of this release still run on it."""
    if not _is_newer(revision):
        return False
    works_from: str = _scalar(connection, "select works_from from txmsg.notify_db")
    return works_from <= REVISIONS[-1]


def may_pass(error: StorageError, url: str) -> bool:
    """Return True if a retry can succeed: the server was not reached, was lost, or cannot work now.

    False after a refusal. Decided from the error itself: asking the server a moment later could hide the cause, as it
    may just be back.
    """
    cause = error.__cause__
    if not isinstance(cause, psycopg.OperationalError):
        return False
    if cause.sqlstate is not None:
        return cause.sqlstate[:2] in _PASSING_CLASSES
    if not is_refused(error):
        return True
    # A refusal while connecting has no SQLSTATE, and may be in any language. PQping tells if the server is only
    # starting.
    conninfo = make_conninfo(libpq_url(url), connect_timeout=_CONNECT_S_MAX)
    return PGconn.ping(conninfo.encode()) in {Ping.REJECT, Ping.NO_RESPONSE}


def is_refused(error: StorageError) -> bool:
    """Return True if the server runs and refused the connection, as with a wrong password."""
    return _is_refusal(error.__cause__)


def _is_refusal(cause: BaseException | None) -> bool:
    if not isinstance(cause, psycopg.OperationalError) or cause.sqlstate is not None:
        return False
    return _REFUSAL.search(str(cause)) is not None or (cause.pgconn is not None and cause.pgconn.needs_password)


def libpq_url(url: str) -> str:
    """Return the URL in libpq's form, without the driver of SQLAlchemy's form: postgresql+psycopg://...

    Raises StorageError for anything but a URL of PostgreSQL.
    """
    scheme, is_url, rest = url.partition("://")
    if not is_url or not re.fullmatch(r"\w+(\+\w+)?", scheme):
        raise StorageError(f"{_shown(url)!r} is not a database URL: write postgresql://user@host:5432/database")
    if scheme.partition("+")[0] not in {"postgresql", "postgres"}:  # libpq takes both
        raise StorageError(
            f"the Notify database {_shown(url)} is not PostgreSQL: write postgresql://user@host:5432/..."
        )
    plain = f"postgresql://{rest}"
    try:
        conninfo_to_dict(plain)
    except (psycopg.Error, ValueError) as exc:  # ValueError: NUL, half of a surrogate pair
        raise StorageError(
            f"{_shown(url)!r} is not a database URL ({exc}): write postgresql://user@host:5432/database"
        ) from exc
    return plain


def current(url: str) -> str | None:
    """Return the revision of the database, or None if it has no txmsg tables yet."""
    with _connect(url) as connection:
        return _revision(connection)


def upgrade(url: str, *, wait_s: float = 60.0) -> str:
    """Upgrade the database to the newest revision of this release, and return it. Idempotent.

    Senders and receivers wait for a moment at most. While sessions hold tables open it retries for `wait_s` seconds.
    Raises SchemaMismatch when the database is newer than this release, StorageError when it cannot be used, or when
    tables are held for too long: nothing has changed then.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return _upgrade_once(url)
        except _TablesHeld as exc:
            if time.monotonic() >= deadline:
                raise StorageError(
                    f"the Notify database {_shown(url)} was not upgraded: its tables are held open, for {wait_s:g} s "
                    f"at least, by {exc}: end these sessions, or wait for them, and upgrade again"
                ) from exc
        time.sleep(_LOCK_PAUSE_S)


_HELD = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


class _TablesHeld(Exception):
    """Sessions hold locks on tables that a migration needs exclusively. The text names them."""


def _upgrade_once(url: str) -> str:
    with _connect(url, answer_s_max=math.inf) as connection:
        connection.execute("select pg_advisory_xact_lock(%s, 0)", (_UPGRADE_LOCK,))
        connection.execute("create schema if not exists txmsg")  # refused by a standby, also when all is up to date
        revision = _revision(connection)
        if _is_newer(revision):
            raise SchemaMismatch(f"the Notify database is at revision {revision}, {_remedy_of_newer(revision)}")
        if revision not in {None, REVISIONS[-1]} and (differences := _differences(connection)):
            raise StorageError(
                f"the Notify database {_shown(url)} was not upgraded, for its schema is not as revision {revision} "
                f"made it: {_named(differences)}: {SCHEMA_DIFFERS.fix}"
            )
        connection.execute("select set_config('lock_timeout', %s, true)", (str(_LOCK_WAIT_MS),))
        try:
            for following in migrations.revisions():
                if following > (revision or "") and following <= REVISIONS[-1]:
                    for statements in migrations.statements_of(following):
                        connection.execute(statements.encode())  # several statements in one text, so without parameters
                    connection.execute("update txmsg.revision set version_num = %s", (following,))
        except _HELD as exc:
            # The advisory lock ends with the transaction: another broker may upgrade during the pause.
            connection.rollback()
            holders = [name for (name,) in connection.execute(_HOLDERS)]
            raise _TablesHeld(", ".join(holders) or "others, in turn") from exc
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
    """Raise SchemaMismatch, with the remedy, unless this release works with the database as it is."""
    with _connect(url) as connection:
        revision = _revision(connection)
        if revision in REVISIONS or _is_lenient(connection, revision):
            return
    if _is_newer(revision):
        raise SchemaMismatch(f"the Notify database is at revision {revision}, {_remedy_of_newer(revision)}")
    raise SchemaMismatch(
        f"the Notify database is at revision {revision or '(none)'}, this release works with "
        f"{' to '.join(dict.fromkeys((REVISIONS[0], REVISIONS[-1])))}: run `txmsg db upgrade --storage {_shown(url)}`, "
        "or install the release that fits"
    )


def check(url: str) -> list[FindingsRow]:
    """Return the findings on the database: its server, its standbys, its revision and schema. Only reads."""
    with _connect(url, any_server=True) as connection:
        found = list(findings.of_server(connection))
        connection.autocommit = True
        found.append(findings.of_pooler(is_shared=_is_shared(connection, url)))
        connection.autocommit = False
        revision = _revision(connection)
        is_lenient = _is_lenient(connection, revision)
        topics = findings.replicated_topics(connection) if revision in REVISIONS or is_lenient else 0
        found += findings.of_replication(connection, topics=topics)
        found.append(FindingsRow("revision", revision or "none", _of_revision(revision, is_lenient=is_lenient)))
        if revision is not None:
            value = _named(differences) if (differences := _differences(connection)) else "as its revision made it"
            found.append(FindingsRow("schema", value, SCHEMA_DIFFERS.found(value=value) if differences else None))
        return found


def _differences(connection: Connection) -> list[str]:
    """Return the objects that the last revision made and that are missing or changed.

    Additions of others are ignored.
    """
    cursor = connection.execute(
        "select kind || ' ' || name from ("
        "select * from txmsg.catalogue_of_revision except select * from txmsg.catalogue) difference "
        "order by kind desc, name"  # a view or a table before what it consists of
    )
    return [name for (name,) in cursor.fetchall()]


def _named(differences: Sequence[str]) -> str:
    more = [f"{len(differences) - _NAMED_MAX} more"] if len(differences) > _NAMED_MAX else []
    return f"missing or changed: {', '.join([*differences[:_NAMED_MAX], *more])}"


def _of_revision(revision: str | None, *, is_lenient: bool) -> Finding | None:
    if revision in REVISIONS:
        return None
    if is_lenient:
        return REVISION_AHEAD.found(value=revision)
    if _is_newer(revision):
        return REVISION_NEWER.found(value=revision, known=REVISIONS[-1])
    return REVISION_MISSING.found(value=revision or "none")
