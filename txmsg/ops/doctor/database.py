"""Probes of the Notify database and its server. Each has a session of its own, which only reads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from psycopg.rows import namedtuple_row

from txmsg.binlog import status as mirror
from txmsg.broker import migrate
from txmsg.broker.store.connect import SESSIONS_MAX
from txmsg.broker.store.figures import DATA_DIRECTORY
from txmsg.checks.brokers import CUT, NOBODY_DELIVERS
from txmsg.checks.check import Finding
from txmsg.checks.database import (
    AUTOVACUUM,
    CONNECTIONS,
    DATA_CHECKSUMS,
    DATABASE_AWAY,
    DATABASE_REFUSES,
    DATABASE_UNUSABLE,
    DEAD_ROWS,
    FAILOVER_SLOTS,
    FULL_PAGE_WRITES,
    INDEX_INVALID,
    LONG_TRANSACTION,
    MIRROR_BEHIND,
    MIRROR_STOPPED,
    NO_MIRROR,
    NO_TABLES,
    PREPARED_TRANSACTION,
    SLOT_IN_DANGER,
    SLOT_KEEPS_LOG,
    SLOT_LOST,
    SLOT_UNLIMITED,
    SLOT_UNREAD,
    TRANSACTION_IDS,
)
from txmsg.checks.thresholds import DEFAULTS
from txmsg.errors import StorageError
from txmsg.ops.doctor.machine import different_clock, free_space, looked_into
from txmsg.ops.doctor.probe import CHECK_S_MAX, Probe, examine, on_one_line
from txmsg.runtime.postgres import KEEPALIVES, PINNED, connect, cut_after

# Read-only and with short limits: the doctor must not change or hold up a database that may already be in trouble.
_SETTINGS: Final = {**PINNED, "statement_timeout": "10s", "lock_timeout": "5s", "default_transaction_read_only": "on"}
_CONNECT_S_MAX: Final = 5

_OPEN_S_MAX: Final = 300
_CONNECTIONS_SHARE: Final = 0.8
_UNREAD_BYTES_MAX: Final = 1024**3
"""Maximum unread bytes of foreign slots, which may be read now and then."""
_DEAD_ROWS_MAX: Final = 200_000
_AGE_MAX: Final = 1_000_000_000
_FAILOVER_FROM: Final = 170000
_OF_BROKERS: Final = ("txmsg broker", "txmsg writer", "txmsg listener", "txmsg upkeep")
"""The application name of brokers' sessions."""


@dataclass(frozen=True, slots=True)
class ProbedDatabase:
    """The Notify database, and a session on it."""

    url: str
    session: psycopg.Connection[Any]

    def rows(self, statement: LiteralString, *parameters: object) -> list[Any]:
        """Return the rows of a query; values have the names of the columns."""
        with self.session.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(statement, parameters or None).fetchall()


@contextmanager
def _session(url: str) -> Iterator[ProbedDatabase]:
    with (
        connect(
            migrate.libpq_url(url),
            _SETTINGS,
            application_name="txmsg doctor",
            connect_timeout=_CONNECT_S_MAX,
            **KEEPALIVES,
        ) as session,
        cut_after(CHECK_S_MAX, session),
    ):
        yield ProbedDatabase(url, session)


def probe_database(url: str) -> Iterator[Finding]:
    """Yield all findings about the database. Only the first one, if the other probes need it."""
    found = list(examine(FIRST, lambda: nullcontext(url)))
    yield from found
    # All other probes would fail for the same reason, and bury it among their findings.
    if not found:
        yield from examine(PROBES, lambda: _session(url))


def is_missing(found: Iterable[Finding]) -> bool:
    """Return True if `probe_database` could examine nothing else."""
    return any(each.check in _MISSING for each in found)


def address_of_a_broker(url: str) -> str | None:
    """Return the address of a living broker of the database, for clients."""
    with _session(url) as database:
        found = database.rows(
            "select address from txmsg.broker where state <> 'dead' and expires_at > now() "
            "order by state = 'active' desc, id limit 1"
        )
    return found[0].address if found else None


def database_reachable(url: str) -> Iterator[Finding]:
    """Check that the database answers, and has the tables of txmsg."""
    try:
        revision = migrate.current(url)
    except StorageError as exc:
        error = on_one_line(exc)
        if migrate.is_refused(exc):
            yield DATABASE_REFUSES.found(error)
        else:
            yield (DATABASE_UNUSABLE if exc.__cause__ is None else DATABASE_AWAY).found(error)
        return
    if revision is None:
        yield NO_TABLES.found()


def live_broker(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that a broker is alive, and not drained."""
    if not database.rows("select from txmsg.broker where state = 'active' and expires_at > now()"):
        yield NOBODY_DELIVERS.found("no broker of this database is alive, or all are drained")


def database_settings(database: ProbedDatabase) -> Iterator[Finding]:
    """Check everything that `txmsg db check` covers: version, encoding, fsync, rights, standbys, schema."""
    yield from (row.finding for row in migrate.check(database.url) if row.finding is not None and not row.ok)


def durability(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that pages survive a crash of the machine.

    Does not check synchronous_commit: a broker sets it itself, by the topic's durability.
    """
    off = {
        row.name
        for row in database.rows(
            "select name from pg_settings where name in ('full_page_writes', 'data_checksums') and setting = 'off'"
        )
    }
    if "full_page_writes" in off:
        yield FULL_PAGE_WRITES.found()
    if "data_checksums" in off:
        yield DATA_CHECKSUMS.found()


def autovacuum(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that autovacuum runs."""
    for row in database.rows(
        "select name from pg_settings where name in ('autovacuum', 'track_counts') and setting = 'off'"
    ):
        yield AUTOVACUUM.found(setting=row.name)


def connections(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that the server has free connections, and enough for all its brokers."""
    [row] = database.rows(
        "select count(*) filter (where a.backend_type = 'client backend') as used, "
        "       count(*) filter (where a.application_name like 'txmsg%%') as own, "
        "       count(*) filter (where a.backend_type = 'client backend' and not "
        "           (a.datname = current_database() and a.application_name = any (%s))) as others, "
        "       (select count(*) from txmsg.broker where state <> 'dead' and expires_at > now()) as brokers, "
        "       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int "
        "           as allowed "
        "  from pg_stat_activity a",
        list(_OF_BROKERS),
    )
    # With what brokers may open under load, not what they have now: the lack would show at the worst moment.
    wanted = row.brokers * SESSIONS_MAX + row.others
    if row.used >= _CONNECTIONS_SHARE * row.allowed:
        yield CONNECTIONS.found(used=row.used, allowed=row.allowed, own=row.own)
    elif wanted > row.allowed:
        yield CONNECTIONS.found(
            f"{row.brokers} brokers may have {row.brokers * SESSIONS_MAX} connections, others have {row.others}, and "
            f"{row.allowed} are allowed"
        )


def replication_slots(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that each slot has a reader, and retains neither too much of the write-ahead log nor too little."""
    for slot in database.rows(_SLOTS):
        is_own = slot.name.startswith("txmsg_")
        if slot.wal_status == "lost":
            yield SLOT_LOST.found(slot=slot.name)
        elif slot.wal_status == "unreserved":
            yield SLOT_IN_DANGER.found(f"slot {slot.name} is lost at the next checkpoint: it is too far behind")
        elif not slot.active and (is_own or slot.kept_bytes > _UNREAD_BYTES_MAX):
            yield SLOT_UNREAD.found(slot=slot.name, value=slot.kept_bytes)
        elif slot.safe_bytes is not None and slot.safe_bytes < DEFAULTS.slot_safe_size_bytes:
            yield SLOT_IN_DANGER.found(
                f"slot {slot.name} is lost after {_mib(slot.safe_bytes)} more of write-ahead log"
            )
        elif slot.kept_bytes > DEFAULTS.slot_kept_size_bytes:
            yield SLOT_KEEPS_LOG.found(
                f"slot {slot.name} keeps {_mib(slot.kept_bytes)} of write-ahead log: its reader is behind"
            )
        if slot.is_unlimited and is_own:
            yield SLOT_UNLIMITED.found(slot=slot.name)


def failover_slots(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that standbys receive commits before mirrors do."""
    if database.session.info.server_version < _FAILOVER_FROM:
        return
    [row] = database.rows(
        "select (select count(*) from pg_replication_slots where slot_type = 'logical' and failover) as logical, "
        "       (select count(*) from pg_replication_slots where slot_type = 'physical') as physical, "
        "       current_setting('synchronized_standby_slots') as waited_for"
    )
    # Without synchronized_standby_slots a mirror can get commits that a standby lacks; after its promotion log and
    # table diverge.
    if row.logical and row.physical and not row.waited_for:
        yield FAILOVER_SLOTS.found(logical=row.logical)


def long_transactions(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that no transaction has been open for minutes."""
    found = database.rows(_OPEN, _OPEN_S_MAX)
    for row in found:
        yield LONG_TRANSACTION.found(pid=row.pid, who=row.who, state=row.state, value=round(row.open_s))
    if found and (left := found[0].all_of_them - len(found)):
        yield CUT.found(
            left=f"{left:,} more transactions have been open for more than {_OPEN_S_MAX} s, none longer than these"
        )
    for row in database.rows(
        "select gid, extract(epoch from now() - prepared)::float8 as open_s from pg_prepared_xacts "
        " where prepared < now() - make_interval(secs => %s)",
        _OPEN_S_MAX,
    ):
        gid = "'" + row.gid.replace("'", "''") + "'"
        yield PREPARED_TRANSACTION.found(gid=gid, value=round(row.open_s))


def invalid_indexes(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that every index can be used."""
    for row in database.rows(
        "select c.relname as name from pg_index i join pg_class c on c.oid = i.indexrelid "
        " where c.relnamespace = 'txmsg'::regnamespace and not (i.indisvalid and i.indisready) order by 1"
    ):
        yield INDEX_INVALID.found(index=row.name)


def dead_rows(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that no table holds far more dead rows than autovacuum leaves."""
    for row in database.rows(
        "select relname as name, n_dead_tup as dead, n_live_tup as live from pg_stat_user_tables "
        " where schemaname = 'txmsg' and n_dead_tup > %s and n_dead_tup > n_live_tup / 2 order by n_dead_tup desc",
        _DEAD_ROWS_MAX,
    ):
        yield DEAD_ROWS.found(table=row.name, dead=row.dead, live=row.live)


def transaction_ids(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that the database is far from using up its transaction ids."""
    [row] = database.rows("select age(datfrozenxid) as age from pg_database where datname = current_database()")
    if row.age > _AGE_MAX:
        yield TRANSACTION_IDS.found(value=row.age)


def database_clock(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that the clocks of the database and of this machine are equal."""
    begun = time.time()
    [row] = database.rows("select extract(epoch from clock_timestamp())::float8 as now")
    yield from different_clock("the database", row.now, begun, time.time())


def data_directory(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that the disk of the database has free space, and that no other user can read its files.

    Needs a server on this machine and a role that may see its path.
    """
    for directory in _directory(database):
        yield from free_space(directory, "the database")
        yield from looked_into(directory, "the database")


def _directory(database: ProbedDatabase) -> Iterator[Path]:
    # The path of a server on another machine may exist here by chance, and be another one's.
    found = database.rows(DATA_DIRECTORY)
    is_here = database.session.info.host.startswith("/") or database.session.info.hostaddr in {"127.0.0.1", "::1"}
    if found and is_here and os.path.isdir(found[0].path):  # False also for what this user may not look into
        yield Path(found[0].path).resolve()


def mirrors(database: ProbedDatabase) -> Iterator[Finding]:
    """Check that each mirror has its slot, mirrors all its queues, and is not behind."""
    for row in database.rows("select name from txmsg.mirror order by name"):
        found = mirror.status(database.session, row.name)
        if found.slot is None:
            yield NO_MIRROR.found(f"mirror {row.name} has no replication slot")
        for queue in found.stopped:
            yield MIRROR_STOPPED.found(
                f"mirror {row.name} has stopped at topic {queue.topic} queue {queue.queue}: {queue.stopped}"
            )
        if found.behind_s > DEFAULTS.mirror_behind_s:
            yield MIRROR_BEHIND.found(
                f"mirror {row.name} is {found.behind_s:.0f} s and {found.behind_messages} messages behind"
            )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**2:,.0f} MiB"


_MISSING: Final = (DATABASE_AWAY, DATABASE_REFUSES, DATABASE_UNUSABLE, NO_TABLES)
FIRST: Final[tuple[Probe[str], ...]] = (database_reachable,)
PROBES: Final[tuple[Probe[ProbedDatabase], ...]] = (
    live_broker,
    database_settings,
    durability,
    autovacuum,
    connections,
    replication_slots,
    failover_slots,
    long_transactions,
    invalid_indexes,
    dead_rows,
    transaction_ids,
    database_clock,
    data_directory,
    mirrors,
)

_SLOTS: Final = """
select s.slot_name as name, s.active, coalesce(s.wal_status, '') as wal_status, s.safe_wal_size as safe_bytes,
       coalesce(case when pg_is_in_recovery() then pg_last_wal_receive_lsn() else pg_current_wal_lsn() end
                - s.restart_lsn, 0)::bigint as kept_bytes,
       current_setting('max_slot_wal_keep_size') = '-1' as is_unlimited
  from pg_replication_slots s
 where s.database is null or s.database = current_database()
 order by 1
"""

_OPEN: Final = """
select a.pid, coalesce(a.state, '') as state, extract(epoch from now() - a.xact_start)::float8 as open_s,
       count(*) over () as all_of_them,
       concat_ws(', ', 'user ' || a.usename, nullif(a.application_name, '')) as who
  from pg_stat_activity a
 where a.datname = current_database() and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
   and a.xact_start < now() - make_interval(secs => %s)
 order by a.xact_start limit 5
"""
