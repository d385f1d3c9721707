"""Checks of the Notify database, its server and its mirrors."""

from __future__ import annotations

from typing import Final

from txmsg.checks.check import CRITICAL, NOTE, WARNING, Check
from txmsg.checks.conditions import JOB, LevelCondition, RiseCondition
from txmsg.runtime.postgres import WITHOUT_POOLER

VERSION_MIN: Final = 150000
"""PostgreSQL 15, as the server numbers it: the schema needs NULLS NOT DISTINCT."""
_NOTHING_RECEIVED: Final = "its mirror or standby receives nothing more"

# ---- whether it is there

DATABASE_AWAY: Final = Check(
    "database-reachable",
    CRITICAL,
    "the Notify database cannot be reached",
    why="no broker works without it",
    fix="start PostgreSQL, or name the right host and port with --storage",
)
DATABASE_REFUSES: Final = Check(
    "database-refuses",
    CRITICAL,
    "the Notify database refuses this user: {error}",
    why="no broker works without it",
    fix="PostgreSQL runs and refuses this: correct user, password and database in --storage (TXMSG_STORAGE), here and "
    "where brokers and tailers get it, or pg_hba.conf",
)
DATABASE_UNUSABLE: Final = Check(
    "database-unusable",
    CRITICAL,
    "the Notify database cannot be used: {error}",
    why="no broker works without it",
    fix="do what it says",
)
NO_TABLES: Final = Check(
    "no-tables",
    CRITICAL,
    "the database has no tables of txmsg",
    why="no broker runs on it",
    fix="run `txmsg db upgrade --storage URL`, or name the right database",
)

# ---- what brokers and tailers need of its server

VERSION: Final = Check(
    "version",
    CRITICAL,
    "the server is PostgreSQL {value}",
    why="brokers need what later versions have",
    fix=f"use PostgreSQL {VERSION_MIN // 10_000}+",
)
ENCODED: Final = Check(
    "encoding",
    CRITICAL,
    "the encoding of the database is {value}",
    why="not every message can be stored",
    fix="create another one by `createdb --encoding UTF8 --template template0 NAME`, and name that one: an encoding "
    "cannot be changed",
)
FSYNC: Final = Check(
    "fsync",
    CRITICAL,
    "fsync is {value}",
    why="accepted messages are lost, and tables damaged, when the machine stops",
    fix="set fsync = on",
)
WAL_LEVEL: Final = Check(
    "wal-level",
    NOTE,
    "wal_level is {value}",
    why="a tailer cannot mirror",
    fix="only `txmsg tailer` wants wal_level = logical",
)
REPLICATION_RIGHT: Final = Check(
    "replication-right",
    NOTE,
    "the role has no right to replicate",
    why="a tailer cannot mirror as this role",
    fix="only `txmsg tailer` wants alter role ... replication",
)
CREATE_RIGHT: Final = Check(
    "create-right",
    CRITICAL,
    "the role has no right to create",
    why="brokers create segments, and `txmsg db upgrade` tables",
    fix="grant create on database",
)
POOLER: Final = Check(
    "transaction-pooler",
    CRITICAL,
    "a pooler gives each transaction another session",
    why="txmsg's locks and prepared statements fail",
    fix=WITHOUT_POOLER,
)
REVISION_MISSING: Final = Check(
    "revision-missing",
    CRITICAL,
    "the database is at revision {value}",
    why="this release does not run on it",
    fix="run `txmsg db upgrade --storage URL`",
)
REVISION_NEWER: Final = Check(
    "revision-newer",
    CRITICAL,
    "the database is at revision {value}",
    why="this release does not run on it",
    fix="newer than this release of txmsg knows (up to {known}): install the release that upgraded it, or a newer one; "
    "a database is not downgraded",
)
REVISION_AHEAD: Final = Check(
    "revision-ahead",
    NOTE,
    "the database is at revision {value}",
    why="a later release has upgraded it",
    fix="newer than this release, whose brokers still run on it",
)
SCHEMA_DIFFERS: Final = Check(
    "schema-differs",
    CRITICAL,
    "the schema is not as its revision made it: {value}",
    why="statements fail, or are slow",
    fix="recreate it as txmsg.catalogue_of_revision describes it, or restore a backup",
)

# ---- standbys

_REFUSED: Final = "topics of durability replicated ({topics}) are refused meanwhile"
_NEEDED: Final = "needed by topics of durability replicated ({topics}), which are refused meanwhile"
STANDBY_UNNAMED: Final = Check(
    "standby-unnamed",
    CRITICAL,
    "synchronous_standby_names names no standby",
    why=_REFUSED,
    fix=f"name a standby: {_NEEDED}",
)
STANDBY_MISSING: Final = Check(
    "standby-missing",
    CRITICAL,
    "no synchronous standby is attached",
    why=_REFUSED,
    fix=f"attach one (pg_basebackup -R), or `txmsg topic alter NAME --durability sync`: {_NEEDED}",
)
STANDBYS_HIDDEN: Final = Check(
    "standbys-hidden",
    CRITICAL,
    "the role may not see the state of standbys",
    why=_REFUSED,
    fix=f"grant pg_read_all_stats to the role, which may not see their state: {_NEEDED}",
)
STANDBYS_UNSEEN: Final = Check(
    "standbys-unseen",
    NOTE,
    "the role may not see the state of standbys",
    why="this command cannot show it",
    fix="grant pg_read_all_stats to the role, which may not see their state",
)
STANDBY_READS_SLOT: Final = Check(
    "standby-reads-slot",
    CRITICAL,
    "what counts as a synchronous standby reads a logical slot: {value}",
    why="what it confirms is on one disk only",
    fix="it reads a logical slot and keeps no copy: name the standbys in synchronous_standby_names instead of '*'",
)
HOT_STANDBY: Final = Check(
    "hot-standby",
    NOTE,
    "this server is a hot standby",
    why="nothing can be stored here",
    fix="takes no writes: brokers and `txmsg db upgrade` want the primary",
)
FOLLOWS_NOTHING: Final = Check(
    "standby-follows-nothing",
    CRITICAL,
    "the standby receives nothing",
    why="after a failover to it, what it has not received is missing",
    fix="it receives nothing: look at primary_conninfo and at its log, or promote it if the primary is lost",
)
PRIMARY_UNSEEN: Final = Check(
    "primary-unseen",
    NOTE,
    "the role may not see what the standby follows",
    why="this command cannot show it",
    fix="grant pg_read_all_stats to the role to see which one",
)
REPLAY_PAUSED: Final = Check(
    "replay-paused",
    CRITICAL,
    "the standby does not replay what it receives: {value}",
    why="it shows nothing newer meanwhile",
    fix="`select pg_wal_replay_resume()`: it shows nothing newer meanwhile",
)

# ---- how its server runs

FULL_PAGE_WRITES: Final = Check(
    "full-page-writes",
    CRITICAL,
    "full_page_writes is off",
    why="pages that were only partly written when the machine stopped are damaged for good",
    fix="`alter system set full_page_writes = on`, then `select pg_reload_conf()`",
)
DATA_CHECKSUMS: Final = Check(
    "data-checksums",
    WARNING,
    "the server has no data checksums",
    why="wrong pages of a faulty disk are not detected, and get into the backups",
    fix="stop PostgreSQL, and run `pg_checksums --enable -D DIRECTORY`",
)
AUTOVACUUM: Final = Check(
    "autovacuum",
    CRITICAL,
    "{setting} is off",
    why="half messages, retries and cursors leave dead rows, which make every statement slower",
    fix="`alter system set {setting} = on`, then `select pg_reload_conf()`",
)
CONNECTIONS: Final = Check(
    "connections",
    WARNING,
    "{used} of {allowed} connections are used, {own} of them by txmsg",
    why="a broker that gets no connection accepts and delivers nothing",
    fix="raise max_connections and restart PostgreSQL, end sessions of others (pg_stat_activity), or run fewer brokers",
)
LONG_TRANSACTION: Final = Check(
    "long-transactions",
    WARNING,
    "process {pid} ({who}, {state}) has had a transaction open for {value} s",
    why="meanwhile no dead row is removed, and segments that it has read cannot be dropped",
    fix="`select pg_terminate_backend({pid})`; idle_in_transaction_session_timeout prevents idle ones",
)
PREPARED_TRANSACTION: Final = Check(
    "prepared-transactions",
    WARNING,
    "transaction {gid} has been prepared for {value} s",
    why="meanwhile no dead row is removed, even after a restart",
    fix="`commit prepared {gid}` or `rollback prepared {gid}`",
)
INDEX_INVALID: Final = Check(
    "invalid-indexes",
    CRITICAL,
    "index {index} is invalid",
    why="statements that need it read whole tables",
    fix="`reindex index concurrently txmsg.{index}`",
)
DEAD_ROWS: Final = Check(
    "dead-rows",
    WARNING,
    "table {table} has {dead} dead rows, and {live} live ones",
    why="statements read past them, and the table grows",
    fix="`vacuum (verbose) txmsg.{table}` says what holds them: mostly a long transaction or a slot",
)
TRANSACTION_IDS: Final = Check(
    "transaction-ids",
    CRITICAL,
    "the oldest row is {value} transactions old, of 2 billion",
    why="when they are used up, the server accepts no more writes",
    fix="end long transactions and drop unused slots, then `vacuumdb --freeze`",
)
LOOKED_INTO: Final = Check(
    "data-permissions",
    WARNING,
    "other users can look into the directory of {whose}, {directory} (mode {mode})",
    why="it holds messages, and keys of erasable topics, and who may write there can falsify them",
    fix="chmod 700 {quoted}",
)

# ---- mirrors, and the slots by which they read

SLOT_LOST: Final = Check(
    "slot-lost",
    CRITICAL,
    "slot {slot} is lost: the server has thrown away what it needed",
    why=_NOTHING_RECEIVED,
    fix="of a mirror: start `txmsg tailer run`, which makes the slot again, and reads what is missing from the table; "
    "of a standby: `select pg_drop_replication_slot('{slot}')`, and make its standby again",
)
SLOT_IN_DANGER: Final = Check(
    "slot-in-danger",
    CRITICAL,
    "the slot of a mirror is lost after {value:size} more",
    why=f"after that {_NOTHING_RECEIVED}, until it is refilled from the table",
    fix="let its reader catch up, or raise max_slot_wal_keep_size",
    condition=LevelCondition("txmsg_mirror_safe_bytes", "<", lambda alerts: alerts.slot_safe_size_bytes),
    for_s=60,
)
SLOT_KEEPS_LOG: Final = Check(
    "slot-keeps-log",
    WARNING,
    "a replication slot keeps {value:size} of write-ahead log",
    why="it grows until the slot is read, and fills the disk of the database",
    fix="`txmsg doctor --storage` names it, `txmsg tailer status` says why a tailer is behind. Start its tailer or "
    "standby, or drop it if it is not wanted any more; set max_slot_wal_keep_size, so that it cannot fill the disk",
    condition=LevelCondition("txmsg_slot_kept_bytes", ">", lambda alerts: alerts.slot_kept_size_bytes, by=JOB),
    for_s=300,
)
SLOT_UNREAD: Final = Check(
    "slot-unread",
    WARNING,
    "nothing reads slot {slot}, which keeps {value:size} of write-ahead log",
    why="it grows until the slot is read",
    fix="start its reader: of a mirror `txmsg tailer run`. If it is not wanted any more, `txmsg tailer drop`, or "
    "`select pg_drop_replication_slot('{slot}')` for another one",
)
SLOT_UNLIMITED: Final = Check(
    "slot-unlimited",
    WARNING,
    "slot {slot} may keep write-ahead log without a limit",
    why="a stopped mirror fills the disk, and the database stops; a lost slot can be refilled",
    fix="`alter system set max_slot_wal_keep_size = '64GB'`, then `select pg_reload_conf()`",
)
FAILOVER_SLOTS: Final = Check(
    "failover-slots",
    WARNING,
    "{logical} logical slots fail over, and synchronized_standby_slots names no standby",
    why="a mirror may have messages that the standby does not have when it is promoted: log and table then differ",
    fix="`alter system set synchronized_standby_slots = 'SLOT_OF_THE_STANDBY'`, then `select pg_reload_conf()`",
)
NO_MIRROR: Final = Check(
    "no-mirror",
    CRITICAL,
    "no tailer mirrors",
    why="readers of the log see nothing new, and the database keeps write-ahead log meanwhile",
    fix="start `txmsg tailer run`, or `txmsg tailer drop` if the mirror is not wanted any more; the tailers' logs "
    "give the reason",
    condition=LevelCondition("txmsg_mirror_tailing", "==", 0, by=JOB),
    for_s=120,
)
MIRROR_BEHIND: Final = Check(
    "mirror-behind",
    WARNING,
    "the mirror is {value:duration} behind",
    why="readers of the log see messages late, and retention keeps the missing ones",
    fix="check that `txmsg tailer run` runs, then the disk of the log, and `txmsg tailer status`",
    condition=LevelCondition("txmsg_mirror_lag_seconds", ">", lambda alerts: alerts.mirror_behind_s, by=JOB),
    for_s=300,
)
MIRROR_STOPPED: Final = Check(
    "mirror-stopped",
    CRITICAL,
    "{value} queues are no longer mirrored",
    why="the log receives nothing more of them, and retention keeps the missing messages",
    fix="`txmsg tailer status` shows the reason; `txmsg tailer fork` if log and table differ",
    condition=LevelCondition("txmsg_mirror_stopped_queues", ">", 0),
    for_s=60,
)
MIRROR_INCOMPLETE: Final = Check(
    "mirror-incomplete",
    CRITICAL,
    "messages were dropped before they were mirrored",
    why="the log has holes at their offsets",
    fix="keep a tailer running, or raise the retention",
    condition=RiseCondition("txmsg_mirror_missing_messages_total", 3600),
)
TAILER_WAITS: Final = Check(
    "tailer-waits",
    CRITICAL,
    "{reason}",
    why="readers of the log see nothing new, and the database keeps write-ahead log meanwhile",
    fix="wait while it takes over; else its log says which of database and log is away",
)
