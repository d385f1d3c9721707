"""Creates, reads and drops the publication and the replication slot of a mirror.

The publication is created first, because the server decodes each change by the publications of that moment. A change
from before it is skipped silently on PostgreSQL 18; before 18 the slot fails at it, at each attempt, and is recreated.
Changes that a slot has lost that way, or because it is new, are read from the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from txmsg.binlog.database import Session
from txmsg.binlog.replication import lsn_of
from txmsg.binlog.rows import COLUMNS
from txmsg.errors import BrokerUnavailable, StorageError
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_FAILOVER_FROM: Final = 170000
_MAKE_S_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSlot:
    """A replication slot as the server reports it."""

    name: str
    active_pid: int | None
    confirmed: int
    """The position before which everything is in the log."""
    wal_status: str
    """reserved, extended, unreserved (it will be lost soon) or lost."""
    kept_bytes: int
    """Bytes of the write-ahead log that the server keeps for the slot."""
    behind_bytes: int
    safe_bytes: int | None
    """Bytes that may be written before the slot is in danger; None: max_slot_wal_keep_size has no limit."""
    failover: bool

    @property
    def is_lost(self) -> bool:
        """True if the server has deleted write-ahead log that this slot needs."""
        return self.wal_status == "lost"


class MirrorSlot:
    """The slot and the publication of one mirror. Runs statements only; keeps no state."""

    def __init__(self, session: Session, mirror: str) -> None:
        self._session = session
        # Slots have one space of names in a whole server, and the databases of one may all have a mirror `metaq`.
        ((oid,),) = session.execute("select oid from pg_database where datname = current_database()").fetchall()
        self.slot = f"txmsg_{mirror}_{oid}"
        self.publication = f"txmsg_{mirror}"

    # ---- publication

    def make_publication(self) -> bool:
        """Create the publication unless it exists. Returns True if it was created."""
        found = self._session.execute("select from pg_publication where pubname = %s", (self.publication,)).fetchone()
        if found is not None:
            return False
        columns = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
        self._session.execute(
            sql.SQL(
                "create publication {} for table txmsg.message ({}) "
                "with (publish = 'insert', publish_via_partition_root = true)"
            ).format(sql.Identifier(self.publication), columns)
        )
        return True

    def check_publication(self) -> None:
        """Raise StorageError if the publication was changed so that rows would be missed."""
        complete = self._session.execute(
            "select from pg_publication p where p.pubname = %s and p.pubinsert and p.pubviaroot "
            "   and exists (select from pg_publication_tables t where t.pubname = p.pubname "
            "     and t.schemaname = 'txmsg' and t.tablename = 'message' and t.rowfilter is null)",
            (self.publication,),
        ).fetchone()
        if complete is None:
            raise StorageError(
                f"publication {self.publication} was changed: it does not publish all rows of txmsg.message by its "
                "root; run `txmsg tailer drop` and `txmsg tailer create`: nothing that is mirrored is lost"
            )

    # ---- slot

    def read_slot(self) -> ReplicationSlot | None:
        """Return the slot, or None. Raises StorageError if another kind of slot has its name."""
        row = self._session.execute(
            "select to_jsonb(s), pg_current_wal_lsn() - s.restart_lsn, pg_current_wal_lsn() - s.confirmed_flush_lsn "
            "from pg_replication_slots s where s.slot_name = %s",
            (self.slot,),
        ).fetchone()
        if row is None:
            return None
        told: dict[str, Any]
        told, kept_bytes, behind_bytes = row
        if told["plugin"] != "pgoutput":
            raise StorageError(
                f"replication slot {self.slot} is of another kind ({told['plugin']}): drop it, or give the mirror "
                "another --name"
            )
        confirmed = told["confirmed_flush_lsn"]
        return ReplicationSlot(
            name=self.slot,
            active_pid=told["active_pid"],
            confirmed=0 if confirmed is None else lsn_of(confirmed),
            wal_status=told["wal_status"] or "lost",
            kept_bytes=int(kept_bytes or 0),
            behind_bytes=max(0, int(behind_bytes or 0)),
            safe_bytes=told["safe_wal_size"],
            failover=bool(told.get("failover")),
        )

    def make_slot(self) -> bool:
        """Create the slot unless it exists; a lost one is recreated. Returns True if it was created.

        Waits for running transactions. Raises StorageError with the way out when the server is not set up for it.
        """
        slot = self.read_slot()
        if slot is not None and slot.is_lost:
            _log.error(
                "mirror.slot_lost",
                "replication slot %(slot)s is lost: the server has thrown away what it needed "
                "(max_slot_wal_keep_size); it is made again, and what it has missed is read from the table",
                slot=slot.name,
            )
            self.drop_slot()
            slot = None
        if slot is not None:
            return False
        # From 17 on the server can keep the slot in sync on standbys, so that the mirror continues there after a
        # promotion.
        failover = ", true" if self._session.info.server_version >= _FAILOVER_FROM else ""
        try:
            # Creating a slot waits for every transaction that is open now. The limit turns a wait without end into an
            # error that names the oldest of them.
            with self._session.transaction():
                self._session.execute(f"set local statement_timeout = '{_MAKE_S_MAX}s'")
                self._session.execute(
                    f"select pg_create_logical_replication_slot(%s, 'pgoutput', false, false{failover})", (self.slot,)
                )
        except psycopg.errors.DuplicateObject:
            return False  # by another tailer, this moment
        except psycopg.errors.QueryCanceled as exc:
            raise BrokerUnavailable(
                f"replication slot {self.slot} is not ready: it waits for older transactions, the oldest in process "
                f"{self._oldest()}: end it, or wait"
            ) from exc
        except psycopg.errors.ObjectNotInPrerequisiteState as exc:
            raise StorageError(
                f"the Notify database does not write its log for mirrors ({exc.diag.message_primary}): set wal_level "
                "= logical and restart PostgreSQL"
            ) from exc
        except psycopg.errors.ConfigurationLimitExceeded as exc:
            raise StorageError(
                "all replication slots of the server are in use: raise max_replication_slots and restart PostgreSQL, "
                "or drop an unused one (see pg_replication_slots)"
            ) from exc
        return True

    def _oldest(self) -> str:
        found = self._session.execute(
            "select format('%s (user %s%s, since %s)', pid, usename, ', ' || nullif(application_name, ''), xact_start) "
            "from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid() "
            "order by xact_start limit 1"
        )
        for (holder,) in found:
            return str(holder)
        return "that has ended by now"

    def drop_slot(self) -> bool:
        """Drop the slot. Returns True if it existed. Raises psycopg.errors.ObjectInUse while a tailer reads it."""
        cursor = self._session.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", (self.slot,)
        )
        return cursor.rowcount == 1

    def drop_undecodable(self, error: psycopg.errors.UndefinedObject) -> None:
        """Drop the slot if it met a change from before the publication, and raise BrokerUnavailable: the tailer
        retries.
        """
        if self.publication not in (error.diag.message_primary or ""):  # in quotes as the server's language has them
            return
        self.drop_slot()
        raise BrokerUnavailable(
            f"publication {self.publication} was dropped, and replication slot {self.slot} has changes from before it "
            "was made again, which PostgreSQL before 18 does not decode: the slot is made again, and what it has "
            "missed is read from the table"
        ) from error

    def drop_publication(self) -> None:
        """Drop the publication if it exists."""
        self._session.execute(sql.SQL("drop publication if exists {}").format(sql.Identifier(self.publication)))


def wal_end(session: Session) -> int:
    """Return the position up to which the server has written its write-ahead log."""
    ((lsn,),) = session.execute("select pg_current_wal_insert_lsn()::text").fetchall()
    return lsn_of(lsn)


def wal_flushed(session: Session) -> int:
    """Return the position up to which the server's write-ahead log is on disk, and so is sent. May lag behind
    `wal_end`.
    """
    ((lsn,),) = session.execute("select pg_current_wal_flush_lsn()::text").fetchall()
    return lsn_of(lsn)


def end_holder(session: Session, pid: int) -> None:
    """End the server process of a tailer that has lost its lock and may not know it yet."""
    session.execute("select pg_terminate_backend(%s)", (pid,))
