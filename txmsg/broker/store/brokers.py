"""Statements of the registry of brokers: the live ones, and since when they live.

Each makes all its changes in one statement, in autocommit: no lock is ever held while a broker is waited for, so a
broker that is paused at any moment delays no other (decision 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from txmsg.administration.cluster import BrokerSummary
from txmsg.broker.store import audit
from txmsg.broker.store.connect import Connection, after_session
from txmsg.broker.store.delivery import plain_cursor, scalar_cursor
from txmsg.wire.changes import change_of

_SHOWN_DEAD = "1 day"


class LiveBroker(NamedTuple):
    """A live broker, as others see it. state: active or draining."""

    id: str
    address: str
    state: str
    heartbeat_at: datetime


class DrainResult(NamedTuple):
    """The outcome of a request to drain a broker: it is alive, and it was drained if another active broker exists."""

    is_alive: bool
    is_another_active: bool


class DatabaseFacts(NamedTuple):
    """The id of a Notify database, its revision, the number of its queues, and of those that have a broker."""

    shard: UUID
    revision: str
    queues: int
    queues_assigned: int


async def join(
    conn: Connection,
    incarnation: UUID,
    broker_id: str,
    joined_at: datetime | None,
    *,
    silent_since: datetime | None = None,
    address: str,
    state: str,
    release: str,
    schema_revision: str,
    ttl_s: float,
) -> datetime | None:
    """Enter a broker without queues. Returns its joining time, or None if another live broker has this id.

    incarnation: of the database; OTHER_INCARNATION if it is not current. joined_at: when the caller joined last; it may
    replace that entry. silent_since: the last heartbeat of the broker that has this id, if the caller has seen it send
    none since.
    """
    # One statement enters the broker and frees the leases of the one that had this id: a crash between two would leave
    # the new broker with leases of queues that it has not loaded.
    cursor = await scalar_cursor(conn).execute(
        """
        with joined as (
            insert into txmsg.broker as b (id, address, state, release, schema_revision, expires_at)
            select %(id)s, %(address)s, %(state)s, %(release)s, %(revision)s,
                   now() + make_interval(secs => %(ttl_s)s)
             where txmsg.require_incarnation(%(incarnation)s)
            on conflict (id) do update
               set address = excluded.address, state = excluded.state, release = excluded.release,
                   schema_revision = excluded.schema_revision, started_at = excluded.started_at,
                   heartbeat_at = excluded.heartbeat_at, expires_at = excluded.expires_at
             where b.state = 'dead' or b.expires_at < now() or b.started_at = %(joined_at)s
                or b.heartbeat_at = %(silent_since)s
            returning started_at),
        freed as (
            update txmsg.queue_lease set broker_id = null, wanted_by = null
             where broker_id = %(id)s and exists (select from joined))
        select started_at from joined
        """,
        {
            "id": broker_id,
            "incarnation": incarnation,
            "joined_at": joined_at,
            "silent_since": silent_since,
            "address": address,
            "state": state,
            "release": release,
            "revision": schema_revision,
            "ttl_s": ttl_s,
        },
    )
    joined: datetime | None = await cursor.fetchone()
    return joined


async def registered(conn: Connection, broker_id: str) -> tuple[str, datetime] | None:
    """Return a broker's address and last heartbeat; None if the id is unknown."""
    cursor = await plain_cursor(conn).execute(
        "select address, heartbeat_at from txmsg.broker where id = %s", (broker_id,)
    )
    row = await cursor.fetchone()
    return None if row is None else (row[0], row[1])


async def beat(
    conn: Connection, incarnation: UUID, broker_id: str, joined_at: datetime, ttl_s: float
) -> tuple[str, float] | None:
    """Send a heartbeat, valid for ttl_s seconds. Returns the broker's state and the database's time, in s since 1970.

    None: the broker was marked as dead, or its id belongs to another one now. incarnation: of the database;
    OTHER_INCARNATION if it is not current.
    """
    cursor = await plain_cursor(conn).execute(
        """
        update txmsg.broker set heartbeat_at = now(), expires_at = now() + make_interval(secs => %(ttl_s)s)
         where id = %(id)s and started_at = %(joined_at)s and state <> 'dead'
           and txmsg.require_incarnation(%(incarnation)s)
        returning state, extract(epoch from clock_timestamp())::float8
        """,
        {"incarnation": incarnation, "id": broker_id, "joined_at": joined_at, "ttl_s": ttl_s},
    )
    row = await cursor.fetchone()
    return None if row is None else (row[0], row[1])


async def leave(conn: Connection, broker_id: str, joined_at: datetime) -> None:
    """Remove a broker. Its queues have no broker until they are assigned."""
    await plain_cursor(conn).execute(
        """
        with gone as (
            delete from txmsg.broker where id = %(id)s and started_at = %(joined_at)s returning id),
        freed as (
            update txmsg.queue_lease set broker_id = null, wanted_by = null
             where broker_id = %(id)s and exists (select from gone))
        update txmsg.lease_epoch set epoch = epoch + 1, left_at = now() where exists (select from gone)
        """,
        {"id": broker_id, "joined_at": joined_at},
    )


async def mark_dead(conn: Connection, silent: Mapping[str, datetime], *, expired_at_s: float | None) -> list[str]:
    """Mark brokers as dead for good: they must join again. Returns their ids.

    silent: by id the last heartbeat of brokers that have sent none for too long by the caller's clock; they are dead
    unless they have sent one since. expired_at_s: brokers whose rows expire before this time of the database, in s
    since 1970, are dead, too.
    """
    # The heartbeat is compared as well as the id: a broker that has sent one since the caller's read is alive, and only
    # the database knows.
    cursor = await plain_cursor(conn).execute(
        """
        with forgotten as (delete from txmsg.broker where state = 'dead' and expires_at < now() - %s::interval)
        update txmsg.broker b set state = 'dead'
         where b.state <> 'dead'
           and (b.expires_at < to_timestamp(%s::float8) or (b.id, b.heartbeat_at) in (
                select s.id, s.heartbeat_at from unnest(%s::text[], %s::timestamptz[]) s(id, heartbeat_at)))
        returning b.id
        """,
        (_SHOWN_DEAD, expired_at_s, list(silent), list(silent.values())),
    )
    return [broker_id for (broker_id,) in await cursor.fetchall()]


async def live_brokers(conn: Connection) -> tuple[list[LiveBroker], int]:
    """Return the live brokers by id, and the id of the youngest queue."""
    cursor = await plain_cursor(conn).execute(
        """
        select b.id, b.address, b.state, b.heartbeat_at,
               (select coalesce(max(q.id), 0) from txmsg.queue q)
          from txmsg.broker b where b.state <> 'dead' order by b.id
        """
    )
    brokers, youngest_queue = [], 0
    for *values, youngest in await cursor.fetchall():
        brokers.append(LiveBroker._make(values))
        youngest_queue = youngest
    return brokers, youngest_queue


async def all_brokers(conn: Connection) -> list[BrokerSummary]:
    """Return the brokers that are alive or died within a day, by id."""
    async with conn.cursor(binary=True, row_factory=class_row(BrokerSummary)) as cursor:
        await cursor.execute(
            """
            select b.id, b.address, case when b.expires_at < now() then 'dead' else b.state end as state,
                   (select count(*) from txmsg.queue_lease l where l.broker_id = b.id) as queues,
                   b.release, b.schema_revision, b.started_at, b.heartbeat_at
              from txmsg.broker b order by b.id
            """
        )
        return await cursor.fetchall()


async def drain(conn: Connection, broker_id: str) -> DrainResult:
    """Set a broker draining if another one is active.

    Locks the live ones in the order of their ids: of brokers that are drained at the same moment, each sees the others.
    """
    # The entry of the audit log is written by the same statement, as all of this module is one statement each.
    noted = change_of("broker.drain", broker_id, after={"state": "draining"})
    cursor = await plain_cursor(conn).execute(
        f"""
        with live as materialized (
            select id, state from txmsg.broker where state <> 'dead' and expires_at >= now() order by id for update),
        drained as (
            update txmsg.broker set state = 'draining'
             where id in (select id from live where id = %(id)s)
               and exists (select from live where id <> %(id)s and state = 'active')
            returning id),
        noted as ({audit.ENTRY} from drained)
        select exists (select from live where id = %(id)s),
               exists (select from live where id <> %(id)s and state = 'active')
        """,
        {"id": broker_id, **noted._asdict()},
    )
    row = await cursor.fetchone()
    assert row is not None
    result = DrainResult._make(row)
    # Without both the statement has changed nothing, and written no entry of the audit log.
    if all(result):
        after_session(conn, noted.log_change)
    return result


async def resume(conn: Connection, broker_id: str) -> bool:
    """Set a broker active. Returns True if it is alive."""
    noted = change_of("broker.resume", broker_id, after={"state": "active"})
    cursor = await plain_cursor(conn).execute(
        f"""
        with resumed as (
            update txmsg.broker set state = 'active' where id = %(id)s and state <> 'dead' and expires_at >= now()
            returning id)
        {audit.ENTRY} from resumed
        """,
        {"id": broker_id, **noted._asdict()},
    )
    is_alive = cursor.rowcount == 1
    if is_alive:
        after_session(conn, noted.log_change)
    return is_alive


async def forget_broker(conn: Connection, broker_id: str) -> bool:
    """Delete a dead broker. Returns True if it existed. Its queues are assigned like those of any missing broker."""
    noted = change_of("broker.forget", broker_id, before={"state": "dead"})
    cursor = await plain_cursor(conn).execute(
        f"""
        with gone as (
            delete from txmsg.broker where id = %(id)s and (state = 'dead' or expires_at < now()) returning id)
        {audit.ENTRY} from gone
        """,
        {"id": broker_id, **noted._asdict()},
    )
    is_gone = cursor.rowcount == 1
    if is_gone:
        after_session(conn, noted.log_change)
    return is_gone


async def database_facts(conn: Connection) -> DatabaseFacts:
    """Return the facts of the database that `txmsg cluster show` prints."""
    cursor = await plain_cursor(conn).execute(
        """
        select d.shard, (select version_num from txmsg.revision), (select count(*) from txmsg.queue),
               (select count(*) from txmsg.queue_lease l where l.broker_id is not null)
          from txmsg.notify_db d
        """
    )
    row = await cursor.fetchone()
    assert row is not None
    return DatabaseFacts._make(row)
