"""Checks of the Notify database and its server. Each has a session of its own, which only reads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
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
from txmsg.checks.thresholds import DEFAULTS
from txmsg.doctor.disk import free_space, looked_into
from txmsg.doctor.finding import CHECK_S_MAX, Check, Finding, cut, examine, name_of, on_one_line, problem, warning
from txmsg.errors import StorageError
from txmsg.postgres import KEEPALIVES, PINNED, connect, cut_after

_SETTINGS: Final = {**PINNED, "statement_timeout": "10s", "lock_timeout": "5s", "default_transaction_read_only": "on"}
_CONNECT_S_MAX: Final = 5

CLOCK_S_MAX: Final = 1.0
KEEP_LESS: Final = "give it a larger disk, or keep less: `txmsg config set broker.retention_size_bytes 50GiB`"
_OPEN_S_MAX: Final = 300
_CONNECTIONS_SHARE: Final = 0.8
_SLOT_BYTES_MAX: Final = DEFAULTS.slot_safe_size_bytes
_SLOT_KEPT_BYTES_MAX: Final = DEFAULTS.slot_kept_size_bytes
_DEAD_ROWS_MAX: Final = 200_000
_AGE_MAX: Final = 1_000_000_000
_MIRROR_BEHIND_S_MAX: Final = DEFAULTS.mirror_behind_s
_FAILOVER_FROM: Final = 170000
_OF_BROKERS: Final = ("txmsg broker", "txmsg writer", "txmsg listener", "txmsg upkeep")
"""What the sessions of brokers are called."""


@dataclass(frozen=True, slots=True)
class Database:
    """The Notify database, and a session on it."""

    url: str
    session: psycopg.Connection[Any]

    def rows(self, statement: LiteralString, *parameters: object) -> list[Any]:
        """Their values have the names of the columns."""
        with self.session.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(statement, parameters or None).fetchall()


@contextmanager
def _session(url: str) -> Iterator[Database]:
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
        yield Database(url, session)


def look(url: str) -> Iterator[Finding]:
    """Everything that is wrong with the database. The first thing only, where the others need it."""
    found = list(examine(FIRST, lambda: nullcontext(url)))
    yield from found
    if not found:
        yield from examine(CHECKS, lambda: _session(url))


def address_of_a_broker(url: str) -> str | None:
    """Where clients reach a broker of the database that is alive."""
    with _session(url) as database:
        found = database.rows(
            "select address from txmsg.broker where state <> 'dead' and expires_at > now() "
            "order by state = 'active' desc, id limit 1"
        )
    return found[0].address if found else None


def database_reachable(url: str) -> Iterator[Finding]:
    """The database answers, and has the tables of txmsg."""
    try:
        revision = migrate.current(url)
    except StorageError as exc:
        yield problem(
            on_one_line(exc),
            why="no broker works without it",
            fix=_way_in(exc),
        )
        return
    if revision is None:
        yield problem(
            "the database has no tables of txmsg",
            why="no broker runs on it",
            fix="`txmsg db upgrade --storage URL`, or name the right database",
        )


def _way_in(error: StorageError) -> str:
    if migrate.is_refused(error):
        return (
            "PostgreSQL runs and refuses this: correct user, password and database in --storage (TXMSG_STORAGE), here "
            "and where brokers and tailers get it, or pg_hba.conf"
        )
    if error.__cause__ is None:
        return "do what it says"
    return "start PostgreSQL, or name the right host and port with --storage"


def live_broker(database: Database) -> Iterator[Finding]:
    """A broker is alive, and not drained."""
    if not database.rows("select from txmsg.broker where state = 'active' and expires_at > now()"):
        yield problem(
            "no broker of this database is alive, or all are drained",
            why="no message is accepted or delivered",
            fix="start `txmsg broker --storage URL`; `txmsg cluster resume BROKER` ends a drain",
        )


def database_settings(database: Database) -> Iterator[Finding]:
    """Everything that `txmsg db check` covers: version, encoding, fsync, rights, standbys, schema."""
    for found in migrate.check(database.url):
        if not found.ok:
            yield problem(
                f"{found.name}: {found.value}",
                why="brokers need another value; `txmsg db check` shows it",
                fix=found.fix,
            )


def durability(database: Database) -> Iterator[Finding]:
    """Pages survive a crash of the machine. (A broker sets synchronous_commit itself, by the topic's durability.)"""
    off = {
        row.name
        for row in database.rows(
            "select name from pg_settings where name in ('full_page_writes', 'data_checksums') and setting = 'off'"
        )
    }
    if "full_page_writes" in off:
        yield problem(
            "full_page_writes is off",
            why="pages that were only partly written when the machine stopped are damaged for good",
            fix="`alter system set full_page_writes = on`, then `select pg_reload_conf()`",
        )
    if "data_checksums" in off:
        yield warning(
            "the server has no data checksums",
            why="wrong pages of a faulty disk are not detected, and get into the backups",
            fix="stop PostgreSQL, and run `pg_checksums --enable -D DIRECTORY`",
        )


def autovacuum(database: Database) -> Iterator[Finding]:
    """Autovacuum runs."""
    for row in database.rows(
        "select name from pg_settings where name in ('autovacuum', 'track_counts') and setting = 'off'"
    ):
        yield problem(
            f"{row.name} is off",
            why="half messages, retries and cursors leave dead rows, which make every statement slower",
            fix=f"`alter system set {row.name} = on`, then `select pg_reload_conf()`",
        )


def connections(database: Database) -> Iterator[Finding]:
    """The server has free connections, and enough for all its brokers."""
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
    wanted = row.brokers * SESSIONS_MAX + row.others
    if row.used >= _CONNECTIONS_SHARE * row.allowed:
        yield warning(
            f"{row.used} of {row.allowed} connections are used, {row.own} of them by txmsg",
            why="a broker that gets no connection accepts and delivers nothing",
            fix="raise max_connections and restart PostgreSQL, or end sessions of others (pg_stat_activity)",
        )
    elif wanted > row.allowed:
        yield warning(
            f"{row.brokers} brokers may have {row.brokers * SESSIONS_MAX} connections, others have {row.others}, and "
            f"{row.allowed} are allowed",
            why="under load a broker gets no connection, and accepts and delivers nothing",
            fix="raise max_connections and restart PostgreSQL, or run fewer brokers on it",
        )


def replication_slots(database: Database) -> Iterator[Finding]:
    """Each slot has a reader, and retains neither too much of the write-ahead log nor too little."""
    for slot in database.rows(_SLOTS):
        is_own = slot.name.startswith("txmsg_")
        refill = "start `txmsg tailer run`: it makes the slot again, and reads what is missing from the table"
        if slot.wal_status == "lost":
            yield problem(
                f"slot {slot.name} is lost: the server has thrown away what it needed",
                why="its mirror or standby receives nothing more",
                fix=refill
                if is_own
                else f"`select pg_drop_replication_slot('{slot.name}')`, and make its standby again",
            )
        elif slot.wal_status == "unreserved":
            yield problem(
                f"slot {slot.name} is lost at the next checkpoint: it is too far behind",
                why="its mirror or standby then receives nothing more",
                fix="let its reader catch up, and raise max_slot_wal_keep_size",
            )
        elif not slot.active and (is_own or slot.kept_bytes > _SLOT_BYTES_MAX):
            yield warning(
                f"nothing reads slot {slot.name}, which keeps {_mib(slot.kept_bytes)} of write-ahead log",
                why="the write-ahead log grows until the slot is read",
                fix="start `txmsg tailer run`, or `txmsg tailer drop` if the mirror is not wanted any more"
                if is_own
                else f"start its reader, or `select pg_drop_replication_slot('{slot.name}')`",
            )
        elif slot.safe_bytes is not None and slot.safe_bytes < _SLOT_BYTES_MAX:
            yield warning(
                f"slot {slot.name} is lost after {_mib(slot.safe_bytes)} more of write-ahead log",
                why="its mirror or standby then receives nothing more",
                fix="let its reader catch up, and raise max_slot_wal_keep_size",
            )
        elif slot.kept_bytes > _SLOT_KEPT_BYTES_MAX:
            yield warning(
                f"slot {slot.name} keeps {_mib(slot.kept_bytes)} of write-ahead log: its reader is behind",
                why="the write-ahead log grows until the slot is read, and fills the disk of the database",
                fix="`txmsg tailer status` and the tailer's log say why it is behind, such as a log whose disk is full"
                if is_own
                else "look at the log of its reader",
            )
        if slot.is_unlimited and is_own:
            yield warning(
                f"slot {slot.name} may keep write-ahead log without a limit",
                why="a stopped mirror fills the disk, and the database stops; a lost slot can be refilled",
                fix="`alter system set max_slot_wal_keep_size = '64GB'`, then `select pg_reload_conf()`",
            )


def failover_slots(database: Database) -> Iterator[Finding]:
    """Standbys receive commits before mirrors do."""
    if database.session.info.server_version < _FAILOVER_FROM:
        return
    [row] = database.rows(
        "select (select count(*) from pg_replication_slots where slot_type = 'logical' and failover) as logical, "
        "       (select count(*) from pg_replication_slots where slot_type = 'physical') as physical, "
        "       current_setting('synchronized_standby_slots') as waited_for"
    )
    if row.logical and row.physical and not row.waited_for:
        yield warning(
            f"{row.logical} logical slots fail over, and synchronized_standby_slots names no standby",
            why="a mirror may have messages that the standby does not have when it is promoted: log and table then "
            "differ",
            fix="`alter system set synchronized_standby_slots = 'SLOT_OF_THE_STANDBY'`, then `select pg_reload_conf()`",
        )


def long_transactions(database: Database) -> Iterator[Finding]:
    """No transaction has been open for minutes."""
    found = database.rows(_OPEN, _OPEN_S_MAX)
    for row in found:
        yield warning(
            f"process {row.pid} ({row.who}, {row.state}) has had a transaction open for {row.open_s:.0f} s",
            why="meanwhile no dead row is removed, and segments that it has read cannot be dropped",
            fix=f"`select pg_terminate_backend({row.pid})`; idle_in_transaction_session_timeout prevents idle ones",
        )
    if found and (left := found[0].all_of_them - len(found)):
        yield cut(f"{left:,} more transactions have been open for more than {_OPEN_S_MAX} s, none longer than these")
    for row in database.rows(
        "select gid, extract(epoch from now() - prepared)::float8 as open_s from pg_prepared_xacts "
        " where prepared < now() - make_interval(secs => %s)",
        _OPEN_S_MAX,
    ):
        gid = "'" + row.gid.replace("'", "''") + "'"
        yield warning(
            f"transaction {row.gid!r} has been prepared for {row.open_s:.0f} s",
            why="meanwhile no dead row is removed, even after a restart",
            fix=f"`commit prepared {gid}` or `rollback prepared {gid}`",
        )


def invalid_indexes(database: Database) -> Iterator[Finding]:
    """Every index can be used."""
    for row in database.rows(
        "select c.relname as name from pg_index i join pg_class c on c.oid = i.indexrelid "
        " where c.relnamespace = 'txmsg'::regnamespace and not (i.indisvalid and i.indisready) order by 1"
    ):
        yield problem(
            f"index {row.name} is invalid",
            why="statements that need it read whole tables",
            fix=f"`reindex index concurrently txmsg.{row.name}`",
        )


def dead_rows(database: Database) -> Iterator[Finding]:
    """No table holds far more dead rows than autovacuum leaves."""
    for row in database.rows(
        "select relname as name, n_dead_tup as dead, n_live_tup as live from pg_stat_user_tables "
        " where schemaname = 'txmsg' and n_dead_tup > %s and n_dead_tup > n_live_tup / 2 order by n_dead_tup desc",
        _DEAD_ROWS_MAX,
    ):
        yield warning(
            f"table {row.name} has {row.dead} dead rows, and {row.live} live ones",
            why="statements read past them, and the table grows",
            fix=f"`vacuum (verbose) txmsg.{row.name}` says what holds them: mostly a long transaction or a slot",
        )


def transaction_ids(database: Database) -> Iterator[Finding]:
    """The database is far from using up its transaction ids."""
    [row] = database.rows("select age(datfrozenxid) as age from pg_database where datname = current_database()")
    if row.age > _AGE_MAX:
        yield problem(
            f"the oldest row is {row.age} transactions old, of 2 billion",
            why="when they are used up, the server accepts no more writes",
            fix="end long transactions and drop unused slots, then `vacuumdb --freeze`",
        )


def database_clock(database: Database) -> Iterator[Finding]:
    """The clocks of the database and of this machine are equal."""
    begun = time.time()
    [row] = database.rows("select extract(epoch from clock_timestamp())::float8 as now")
    yield from different_clock("the database", row.now, begun, time.time())


def data_disk(database: Database) -> Iterator[Finding]:
    """The disk of the database has free space. Needs a server on this machine and a role that may see its path."""
    for directory in _directory(database):
        yield from free_space(directory, "the database", KEEP_LESS)


def data_permissions(database: Database) -> Iterator[Finding]:
    """No other user can read the database's files. Needs a server on this machine and a role that may see its path."""
    for directory in _directory(database):
        yield from looked_into(directory, "the database", "it holds all messages, and keys of erasable topics")


def _directory(database: Database) -> Iterator[Path]:
    found = database.rows(DATA_DIRECTORY)
    is_here = database.session.info.host.startswith("/") or database.session.info.hostaddr in {"127.0.0.1", "::1"}
    if found and is_here and os.path.isdir(found[0].path):  # False also for what this user may not look into
        yield Path(found[0].path).resolve()


def mirrors(database: Database) -> Iterator[Finding]:
    """Each mirror has its slot, mirrors all its queues, and is not behind."""
    for row in database.rows("select name from txmsg.mirror order by name"):
        found = mirror.status(database.session, row.name)
        if found.slot is None:
            yield problem(
                f"mirror {row.name} has no replication slot",
                why="its log receives nothing more, and retention keeps the missing messages",
                fix="start `txmsg tailer run`, or `txmsg tailer drop` if the mirror is not wanted any more",
            )
        for queue in found.stopped:
            yield problem(
                f"mirror {row.name} has stopped at topic {queue.topic} queue {queue.queue}: {queue.stopped}",
                why="its log receives nothing more of this queue, and retention keeps the missing messages",
                fix="`txmsg tailer status` says more; `txmsg tailer fork` if log and table differ",
            )
        if found.behind_s > _MIRROR_BEHIND_S_MAX:
            yield warning(
                f"mirror {row.name} is {found.behind_s:.0f} s and {found.behind_messages} messages behind",
                why="readers of the log see messages late, and retention keeps the missing ones",
                fix="check that `txmsg tailer run` runs, then the disk of its log and `txmsg tailer status`",
            )


def different_clock(whose: str, now: float, begun: float, ended: float) -> Iterator[Finding]:
    """A clock against that of this machine, which was asked between begun and ended."""
    ahead_s = now - (begun + ended) / 2
    how = "ahead of" if ahead_s > 0 else "behind"
    if abs(ahead_s) - (ended - begun) / 2 > CLOCK_S_MAX:
        yield warning(
            f"the clock of {whose} is {abs(ahead_s):.1f} s {how} that of this machine",
            why="times of messages, positions by time and delayed messages are off by this difference",
            fix="`chronyc tracking` or `timedatectl` on both machines says which of them is not synchronised",
        )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**2:,.0f} MiB"


FIRST: Final[tuple[Check[str], ...]] = (database_reachable,)
REACHABLE: Final = name_of(database_reachable)
CHECKS: Final[tuple[Check[Database], ...]] = (
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
    data_disk,
    data_permissions,
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
