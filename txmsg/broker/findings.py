"""The state of a Notify database's server, for operators: version, settings, rights, standbys.

Only reads, so it says the same of a primary and of a hot standby. Knows nothing of revisions; migrate.py adds those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.rows import namedtuple_row, scalar_row

from txmsg.postgres import ENCODING, ENCODING_ADVICE, WITHOUT_POOLER, encoding_of

VERSION_MIN = 150000
"""PostgreSQL 15, as the server numbers it: the schema needs NULLS NOT DISTINCT."""

Connection = psycopg.Connection[Any]

_FOR_THE_TAILER = "only `txmsg tailer` wants {}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `fix` says what to do; it is empty if nothing is wrong."""

    name: str
    value: str
    fix: str = ""
    note: str = ""
    """Information that needs no action."""

    @property
    def ok(self) -> bool:
        return not self.fix


def of_server(connection: Connection) -> Iterator[Finding]:
    """Version, settings, rights of the role. Ends the transaction under way."""

    def scalar(statement: LiteralString) -> str:
        return str(_scalar(connection, statement))

    version = int(scalar("show server_version_num"))
    yield Finding("version", scalar("show server_version"), "" if version >= VERSION_MIN else "use PostgreSQL 15+")
    encoding = encoding_of(connection)
    yield Finding("encoding", encoding, "" if encoding == ENCODING else ENCODING_ADVICE)
    fsync = scalar("show fsync")
    yield Finding("fsync", fsync, "" if fsync == "on" else "set fsync = on")
    wal_level = scalar("show wal_level")
    missing = "" if wal_level == "logical" else _FOR_THE_TAILER.format("wal_level = logical")
    yield Finding("wal_level", wal_level, note=missing)
    may_replicate = scalar("select rolreplication or rolsuper from pg_roles where rolname = current_user") == "True"
    missing = "" if may_replicate else _FOR_THE_TAILER.format("alter role ... replication")
    yield Finding("replication right", str(may_replicate).lower(), note=missing)
    may_create = scalar("select has_database_privilege(current_database(), 'CREATE')") == "True"
    yield Finding("create right", str(may_create).lower(), "" if may_create else "grant create on database")
    connection.rollback()


def of_pooler(*, is_shared: bool) -> Finding:
    """A pooler between here and the server that hands each transaction to any session of the server."""
    return Finding("transaction pooler", "seen" if is_shared else "none seen", WITHOUT_POOLER if is_shared else "")


def replicated_topics(connection: Connection) -> int:
    """How many topics ask for a synchronous standby. The tables exist."""
    return int(_scalar(connection, "select count(*) from txmsg.topic t where t.durability = 'replicated'"))


def of_replication(connection: Connection, *, topics: int) -> Iterator[Finding]:
    """Which of both servers this is, and whether what `topics` topics of durability `replicated` wait for is there."""
    if _scalar(connection, "select pg_is_in_recovery()"):
        yield from _of_standby(connection)
    else:
        yield from _of_primary(connection, topics)


def _of_primary(connection: Connection, topics: int) -> Iterator[Finding]:
    yield Finding("role of the server", "primary")
    needed = f"needed by topics of durability replicated ({topics}), which are refused meanwhile" if topics else ""
    names = str(_scalar(connection, "show synchronous_standby_names"))
    fix = f"name a standby: {needed}" if needed and not names else ""
    yield Finding("synchronous_standby_names", names or "none", fix)
    standbys = _rows(connection, _STANDBYS)
    if any(standby.sync_state is None for standby in standbys):
        grant = "grant pg_read_all_stats to the role, which may not see their state"
        yield Finding("standbys", f"{len(standbys)} attached", f"{grant}: {needed}" if needed else "", grant)
        return
    if names and not any(standby.is_synchronous for standby in standbys):
        fix = (
            f"attach one (pg_basebackup -R), or `txmsg topic alter NAME --durability sync`: {needed}" if needed else ""
        )
        yield Finding("synchronous standby", "none attached", fix)
    for standby in standbys:
        yield _of_attached(standby)


def _of_attached(row: Any) -> Finding:
    where = f" at {row.client_addr}" if row.client_addr else ""
    lag = "nothing confirmed yet"
    if row.flush_lag_bytes is not None:
        lag = f"{row.flush_lag_bytes} bytes behind on its disk, {row.replay_lag_bytes} in what it shows"
    fix = ""
    if row.is_logical and row.is_synchronous:
        fix = "it reads a logical slot and keeps no copy: name the standbys in synchronous_standby_names instead of '*'"
    return Finding(f"standby {row.application_name}{where}", f"{row.sync_state}, {row.state}, {lag}", fix)


def _of_standby(connection: Connection) -> Iterator[Finding]:
    note = "takes no writes: brokers and `txmsg db upgrade` want the primary"
    yield Finding("role of the server", "hot standby", note=note)
    receivers = _rows(connection, _RECEIVER)
    if not receivers:
        fix = "it receives nothing: look at primary_conninfo and at its log, or promote it if the primary is lost"
        yield Finding("follows", "no primary", fix)
    elif receivers[0].status is None:
        yield Finding("follows", "a primary", note="grant pg_read_all_stats to the role to see which one")
    else:
        yield Finding("follows", f"{receivers[0].sender_host}:{receivers[0].sender_port}, {receivers[0].status}")
    replay = _rows(connection, _REPLAY)[0]
    fix = "`select pg_wal_replay_resume()`: it shows nothing newer meanwhile" if replay.is_paused else ""
    last = f"; newest commit {replay.newest.isoformat(timespec='seconds')}" if replay.newest else ""
    yield Finding("replay", f"{replay.lag_bytes} bytes behind what is received{last}", fix)


def _scalar(connection: Connection, statement: LiteralString) -> Any:
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(statement).fetchone()


def _rows(connection: Connection, statement: LiteralString) -> list[Any]:
    """Their values have the names of the columns."""
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(statement).fetchall()


_STANDBYS = """
select r.application_name, host(r.client_addr) as client_addr, r.state, r.sync_state,
       r.sync_state in ('sync', 'quorum') as is_synchronous,
       exists (select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical') as is_logical,
       case when r.flush_lsn is not null then greatest(pg_current_wal_flush_lsn() - r.flush_lsn, 0) end
           as flush_lag_bytes,
       greatest(pg_current_wal_flush_lsn() - coalesce(r.replay_lsn, r.flush_lsn), 0) as replay_lag_bytes
  from pg_stat_replication r
 where r.state is distinct from 'backup'
 order by r.application_name, r.pid
"""

_RECEIVER = "select w.status, w.sender_host, w.sender_port from pg_stat_wal_receiver w where w.pid is not null"

_REPLAY = """
select pg_is_wal_replay_paused() as is_paused, pg_last_xact_replay_timestamp() as newest,
       greatest(pg_last_wal_receive_lsn() - pg_last_wal_replay_lsn(), 0) as lag_bytes
"""
