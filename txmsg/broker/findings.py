"""The state of a Notify database's server, for operators: version, settings, rights, standbys.

Only reads, so it reports the same for a primary and for a hot standby. Knows nothing of revisions; migrate.py adds
those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg.rows import namedtuple_row, scalar_row

from txmsg.checks import database
from txmsg.checks.check import NOTE, Check, Finding
from txmsg.checks.database import (
    CREATE_RIGHT,
    ENCODED,
    FOLLOWS_NOTHING,
    FSYNC,
    HOT_STANDBY,
    POOLER,
    PRIMARY_UNSEEN,
    REPLAY_PAUSED,
    REPLICATION_RIGHT,
    STANDBY_MISSING,
    STANDBY_READS_SLOT,
    STANDBY_UNNAMED,
    STANDBYS_HIDDEN,
    STANDBYS_UNSEEN,
    VERSION,
    WAL_LEVEL,
)
from txmsg.runtime.postgres import ENCODING, encoding_of

Connection = psycopg.Connection[Any]


class FindingsRow(NamedTuple):
    """A line of `txmsg db check`: the name of a check, the value found, and the finding, if any."""

    name: str
    value: str
    finding: Finding | None = None

    @property
    def ok(self) -> bool:
        """True if no action is needed."""
        return self.finding is None or self.finding.severity is NOTE

    @property
    def fix(self) -> str:
        """The action to take; empty if nothing is wrong."""
        return self.finding.fix if self.finding and not self.ok else ""

    @property
    def note(self) -> str:
        """Information that needs no action."""
        return self.finding.fix if self.finding and self.ok else ""


def _row(name: str, value: str, check: Check, *, is_well: bool) -> FindingsRow:
    return FindingsRow(name, value, None if is_well else check.found(value=value))


def of_server(connection: Connection) -> Iterator[FindingsRow]:
    """Yield version, settings, and rights of the role. Ends the transaction in progress."""

    def scalar(statement: LiteralString) -> str:
        return str(_scalar(connection, statement))

    version = int(scalar("show server_version_num"))
    yield _row("version", scalar("show server_version"), VERSION, is_well=version >= database.VERSION_MIN)
    encoding = encoding_of(connection)
    yield _row("encoding", encoding, ENCODED, is_well=encoding == ENCODING)
    fsync = scalar("show fsync")
    yield _row("fsync", fsync, FSYNC, is_well=fsync == "on")
    wal_level = scalar("show wal_level")
    yield _row("wal_level", wal_level, WAL_LEVEL, is_well=wal_level == "logical")
    may_replicate = scalar("select rolreplication or rolsuper from pg_roles where rolname = current_user") == "True"
    yield _row("replication right", str(may_replicate).lower(), REPLICATION_RIGHT, is_well=may_replicate)
    may_create = scalar("select has_database_privilege(current_database(), 'CREATE')") == "True"
    yield _row("create right", str(may_create).lower(), CREATE_RIGHT, is_well=may_create)
    connection.rollback()


def of_pooler(*, is_shared: bool) -> FindingsRow:
    """Return a row on a pooler before the server that gives each transaction any session of the server."""
    return _row("transaction pooler", "seen" if is_shared else "none seen", POOLER, is_well=not is_shared)


def replicated_topics(connection: Connection) -> int:
    """Return the number of topics that ask for a synchronous standby. The tables must exist."""
    return int(_scalar(connection, "select count(*) from txmsg.topic t where t.durability = 'replicated'"))


def of_replication(connection: Connection, *, topics: int) -> Iterator[FindingsRow]:
    """Yield the role of this server, and the state of its standbys.

    topics: the number of topics of durability `replicated`, which wait for a standby.
    """
    if _scalar(connection, "select pg_is_in_recovery()"):
        yield from _of_standby(connection)
    else:
        yield from _of_primary(connection, topics)


def _of_primary(connection: Connection, topics: int) -> Iterator[FindingsRow]:
    yield FindingsRow("role of the server", "primary")
    names = str(_scalar(connection, "show synchronous_standby_names"))
    unnamed = STANDBY_UNNAMED.found(topics=topics) if topics and not names else None
    yield FindingsRow("synchronous_standby_names", names or "none", unnamed)
    standbys = _rows(connection, _STANDBYS)
    if any(standby.sync_state is None for standby in standbys):
        hidden = STANDBYS_HIDDEN.found(topics=topics) if topics else STANDBYS_UNSEEN.found()
        yield FindingsRow("standbys", f"{len(standbys)} attached", hidden)
        return
    if names and not any(standby.is_synchronous for standby in standbys):
        yield FindingsRow(
            "synchronous standby", "none attached", STANDBY_MISSING.found(topics=topics) if topics else None
        )
    for standby in standbys:
        yield _of_attached(standby)


def _of_attached(row: Any) -> FindingsRow:
    where = f" at {row.client_addr}" if row.client_addr else ""
    lag = "nothing confirmed yet"
    if row.flush_lag_bytes is not None:
        lag = f"{row.flush_lag_bytes} bytes behind on its disk, {row.replay_lag_bytes} in what it shows"
    name, keeps_copy = f"standby {row.application_name}{where}", not (row.is_logical and row.is_synchronous)
    return _row(name, f"{row.sync_state}, {row.state}, {lag}", STANDBY_READS_SLOT, is_well=keeps_copy)


def _of_standby(connection: Connection) -> Iterator[FindingsRow]:
    yield FindingsRow("role of the server", "hot standby", HOT_STANDBY.found())
    receivers = _rows(connection, _RECEIVER)
    if not receivers:
        yield FindingsRow("follows", "no primary", FOLLOWS_NOTHING.found())
    elif receivers[0].status is None:
        yield FindingsRow("follows", "a primary", PRIMARY_UNSEEN.found())
    else:
        yield FindingsRow("follows", f"{receivers[0].sender_host}:{receivers[0].sender_port}, {receivers[0].status}")
    replay = _rows(connection, _REPLAY)[0]
    last = f"; newest commit {replay.newest.isoformat(timespec='seconds')}" if replay.newest else ""
    value = f"{replay.lag_bytes} bytes behind what is received{last}"
    yield _row("replay", value, REPLAY_PAUSED, is_well=not replay.is_paused)


def _scalar(connection: Connection, statement: LiteralString) -> Any:
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(statement).fetchone()


def _rows(connection: Connection, statement: LiteralString) -> list[Any]:
    """Return the rows of a statement; their fields have the names of the columns."""
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
