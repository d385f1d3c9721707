"""Every statement of the registry of brokers and of the leases of queues.

Each changes everything it must in one statement, in autocommit: no lock ever waits for a broker, so one that is paused
at any moment holds up nobody. What was decided by reading first is applied only if lease 'delivery' is still at the
epoch that was read (compare and set); each change of a queue's lease raises that epoch, which is how brokers see it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from txmsg.broker.store.delivery import Connection, plain_cursor

__all__ = [
    "CHANNEL",
    "LEASE_NAME",
    "TOGETHER",
    "Beat",
    "BrokerRow",
    "Connection",
    "LeaseOfTopicRow",
    "LeaseRow",
    "QueueRow",
    "all_brokers",
    "assign",
    "beat",
    "bury_silent",
    "database_facts",
    "hand_over",
    "hold",
    "join",
    "lease_epoch",
    "leases_by_topic",
    "leases_of",
    "leave",
    "live_brokers",
    "notify",
    "queue_counts",
    "queues",
    "set_state",
    "take_delivery",
]

CHANNEL = "txmsg"
"""On which brokers tell each other that something has changed: "KIND TEXT"."""
LEASE_NAME = "delivery"
TOGETHER = "(cluster)"
"""The name under which brokers of this release hold lease 'delivery': to those of 0.1 it is another broker."""
_SHOWN_DEAD = "1 day"


class Beat(NamedTuple):
    """What a heartbeat found: epoch is None while a broker of release 0.1, the holder, delivers alone."""

    state: str
    epoch: int | None
    holder: str | None


class BrokerRow(NamedTuple):
    """A broker as the registry knows it."""

    id: str
    address: str
    state: str
    release: str
    schema_revision: str
    started_at: datetime
    heartbeat_at: datetime


class QueueRow(NamedTuple):
    """Who delivers a queue (None: nobody), and who is to."""

    queue_id: int
    broker_id: str | None
    wanted_by: str | None


class LeaseRow(NamedTuple):
    """A queue that a broker delivers; wanted_by: it is to be handed over to this one."""

    queue_id: int
    epoch: int
    wanted_by: str | None


class LeaseOfTopicRow(NamedTuple):
    """A queue as people know it, and who delivers it."""

    topic: str
    number: int
    broker_id: str | None
    epoch: int
    wanted_by: str | None


# ---- being there


async def join(
    conn: Connection,
    broker_id: str,
    incarnation: datetime | None,
    *,
    address: str,
    state: str,
    release: str,
    schema_revision: str,
    ttl_s: float,
) -> datetime | None:
    """Enters a broker; its new incarnation, or None if another live one has this id. Its former queues are nobody's.

    incarnation: the caller's last one, which it may take the place of.
    """
    cursor = await plain_cursor(conn).execute(
        """
        with joined as (
            insert into txmsg.broker as b (id, address, state, release, schema_revision, expires_at)
            values (%(id)s, %(address)s, %(state)s, %(release)s, %(revision)s,
                    now() + make_interval(secs => %(ttl_s)s))
            on conflict (id) do update
               set address = excluded.address, state = excluded.state, release = excluded.release,
                   schema_revision = excluded.schema_revision, started_at = excluded.started_at,
                   heartbeat_at = excluded.heartbeat_at, expires_at = excluded.expires_at
             where b.state = 'dead' or b.expires_at < now() or b.started_at = %(incarnation)s
            returning started_at),
        freed as (
            update txmsg.queue_lease set broker_id = null, wanted_by = null
             where broker_id = %(id)s and exists (select from joined))
        select started_at from joined
        """,
        {
            "id": broker_id,
            "incarnation": incarnation,
            "address": address,
            "state": state,
            "release": release,
            "revision": schema_revision,
            "ttl_s": ttl_s,
        },
    )
    row = await cursor.fetchone()
    return None if row is None else row[0]


async def beat(conn: Connection, broker_id: str, incarnation: datetime, ttl_s: float) -> Beat | None:
    """Says that a broker lives, for another ttl_s. None: it was taken for dead, or its id is another's now."""
    cursor = await plain_cursor(conn).execute(
        """
        with beat as (
            update txmsg.broker set heartbeat_at = now(), expires_at = now() + make_interval(secs => %(ttl_s)s)
             where id = %(id)s and started_at = %(incarnation)s and state <> 'dead' returning state),
        held as (
            update txmsg.lease
               set expires_at = greatest(expires_at, now() + make_interval(secs => %(ttl_s)s))
             where name = %(name)s and broker_id = %(together)s and exists (select from beat) returning epoch)
        select beat.state, (select epoch from held), (select broker_id from txmsg.lease where name = %(name)s) from beat
        """,
        {"id": broker_id, "incarnation": incarnation, "ttl_s": ttl_s, "name": LEASE_NAME, "together": TOGETHER},
    )
    row = await cursor.fetchone()
    return None if row is None else Beat(*row)


async def bury_silent(conn: Connection) -> list[str]:
    """Marks the brokers whose time is over as dead, for good: they must join anew. Returns them."""
    cursor = await plain_cursor(conn).execute(
        """
        with forgotten as (delete from txmsg.broker where state = 'dead' and expires_at < now() - %s::interval)
        update txmsg.broker set state = 'dead' where state <> 'dead' and expires_at < now() returning id
        """,
        (_SHOWN_DEAD,),
    )
    return [row[0] for row in await cursor.fetchall()]


async def live_brokers(conn: Connection) -> tuple[list[BrokerRow], int]:
    """The brokers that are there, by id, and the id of the youngest queue."""
    cursor = await plain_cursor(conn).execute(
        """
        select b.id, b.address, b.state, b.release, b.schema_revision, b.started_at, b.heartbeat_at,
               (select coalesce(max(q.id), 0) from txmsg.queue q)
          from txmsg.broker b where b.state <> 'dead' order by b.id
        """
    )
    rows = await cursor.fetchall()
    return [BrokerRow(*row[:7]) for row in rows], (rows[0][7] if rows else 0)


async def all_brokers(conn: Connection) -> list[BrokerRow]:
    """The brokers that are there or died within a day, by id."""
    cursor = await plain_cursor(conn).execute(
        """
        select id, address, case when expires_at < now() then 'dead' else state end, release, schema_revision,
               started_at, heartbeat_at
          from txmsg.broker order by id
        """
    )
    return [BrokerRow(*row) for row in await cursor.fetchall()]


async def set_state(conn: Connection, broker_id: str, state: str) -> bool:
    """Sets a broker active or draining; whether it is alive."""
    cursor = await plain_cursor(conn).execute(
        """
        update txmsg.broker set state = %(state)s
         where id = %(id)s and state <> 'dead' and expires_at >= now()
        """,
        {"id": broker_id, "state": state},
    )
    return cursor.rowcount == 1


async def database_facts(conn: Connection) -> tuple[UUID, str, str | None, int]:
    """The database's id and revision, who holds lease 'delivery' (None: nobody), and how many queues there are."""
    cursor = await plain_cursor(conn).execute(
        """
        select d.home, (select version_num from txmsg.revision),
               (select broker_id from txmsg.lease where name = %s and expires_at >= now()),
               (select count(*) from txmsg.queue)
          from txmsg.notify_db d
        """,
        (LEASE_NAME,),
    )
    row = await cursor.fetchone()
    assert row is not None
    return UUID(str(row[0])), row[1], row[2], row[3]


async def leases_by_topic(conn: Connection) -> list[LeaseOfTopicRow]:
    """Every queue and who delivers it, by topic and number."""
    cursor = await plain_cursor(conn).execute(
        """
        select t.name, q.number, l.broker_id, coalesce(l.epoch, 0), l.wanted_by
          from txmsg.queue q
          join txmsg.topic t on t.id = q.topic_id
          left join txmsg.queue_lease l on l.queue_id = q.id
         order by t.name, q.number
        """
    )
    return [LeaseOfTopicRow(*row) for row in await cursor.fetchall()]


async def leave(conn: Connection, broker_id: str, incarnation: datetime) -> None:
    """Takes a broker out; its queues are nobody's. After the last one a broker of 0.1 may deliver at once."""
    await plain_cursor(conn).execute(
        """
        with gone as (
            delete from txmsg.broker where id = %(id)s and started_at = %(incarnation)s returning id),
        freed as (
            update txmsg.queue_lease set broker_id = null, wanted_by = null
             where broker_id = %(id)s and exists (select from gone))
        update txmsg.lease
           set epoch = epoch + 1,
               expires_at = case when exists (
                   select from txmsg.broker where id <> %(id)s and state <> 'dead' and expires_at > now())
                   then expires_at else now() end
         where name = %(name)s and broker_id = %(together)s and exists (select from gone)
        """,
        {"id": broker_id, "incarnation": incarnation, "name": LEASE_NAME, "together": TOGETHER},
    )


# ---- leases of queues


async def take_delivery(conn: Connection, ttl_s: float) -> int | None:
    """Takes lease 'delivery' for the brokers of this release, if it is free; its new epoch. All queues are nobody's."""
    cursor = await plain_cursor(conn).execute(
        """
        with taken as (
            insert into txmsg.lease as l (name, broker_id, epoch, expires_at)
            values (%(name)s, %(together)s, 1, now() + make_interval(secs => %(ttl_s)s))
            on conflict (name) do update
               set broker_id = excluded.broker_id, epoch = l.epoch + 1, expires_at = excluded.expires_at
             where l.broker_id <> excluded.broker_id and l.expires_at < now()
            returning epoch),
        freed as (
            update txmsg.queue_lease set broker_id = null, wanted_by = null
             where broker_id is not null and exists (select from taken))
        select epoch from taken
        """,
        {"name": LEASE_NAME, "together": TOGETHER, "ttl_s": ttl_s},
    )
    row = await cursor.fetchone()
    return None if row is None else int(row[0])


async def lease_epoch(conn: Connection) -> int:
    """The epoch of lease 'delivery': it rises with every change of a queue's lease."""
    cursor = await plain_cursor(conn).execute("select epoch from txmsg.lease where name = %s", (LEASE_NAME,))
    row = await cursor.fetchone()
    return 0 if row is None else int(row[0])


async def queues(conn: Connection) -> list[QueueRow]:
    """Every queue, by id, and who delivers it."""
    cursor = await plain_cursor(conn).execute(
        """
        select q.id, l.broker_id, l.wanted_by
          from txmsg.queue q left join txmsg.queue_lease l on l.queue_id = q.id order by q.id
        """
    )
    return [QueueRow(*row) for row in await cursor.fetchall()]


async def leases_of(conn: Connection, broker_id: str) -> list[LeaseRow]:
    """The queues that a broker delivers."""
    cursor = await plain_cursor(conn).execute(
        "select queue_id, epoch, wanted_by from txmsg.queue_lease where broker_id = %s", (broker_id,)
    )
    return [LeaseRow(*row) for row in await cursor.fetchall()]


async def hold(conn: Connection, broker_id: str, leases: Mapping[int, int]) -> bool:
    """Whether a broker has the leases of these queues (id: epoch), and keeps them so until the transaction ends.

    Locks their rows FOR SHARE in queue order: a takeover passes them over meanwhile.
    """
    cursor = await plain_cursor(conn).execute(
        """
        select l.queue_id from txmsg.queue_lease l
          join unnest(%(queue_ids)s::int[], %(epochs)s::bigint[]) h(queue_id, epoch)
            on h.queue_id = l.queue_id and h.epoch = l.epoch
         where l.broker_id = %(id)s order by l.queue_id for share of l
        """,
        {"id": broker_id, "queue_ids": list(leases), "epochs": list(leases.values())},
    )
    return len(await cursor.fetchall()) == len(leases)


async def queue_counts(conn: Connection) -> dict[str, int]:
    """How many queues each broker delivers."""
    cursor = await plain_cursor(conn).execute(
        "select broker_id, count(*) from txmsg.queue_lease where broker_id is not null group by broker_id"
    )
    return {broker_id: count for broker_id, count in await cursor.fetchall()}


async def assign(
    conn: Connection, seen_epoch: int, given: Mapping[int, str], wanted: Mapping[int, str | None]
) -> int | None:
    """Gives queues (id: broker) that nobody alive delivers, under a new epoch, and marks others as wanted by a broker.

    The new epoch; None if something has changed since `seen_epoch`: then nothing is done. A row that is locked (its
    holder writes failures at this moment, or was paused while it did) is left for the next time: nobody waits for it.
    """
    cursor = await plain_cursor(conn).execute(
        """
        with raised as (
            update txmsg.lease set epoch = epoch + 1
             where name = %(name)s and broker_id = %(together)s and epoch = %(seen)s returning epoch),
        free as (
            select l.queue_id from txmsg.queue_lease l
             where l.queue_id = any(%(given)s::int[])
               and not exists (select from txmsg.broker b where b.id = l.broker_id and b.state <> 'dead')
             order by l.queue_id for update skip locked),
        taken as (
            update txmsg.queue_lease l set broker_id = g.broker_id, epoch = raised.epoch, wanted_by = null
              from raised, unnest(%(given)s::int[], %(to)s::text[]) g(queue_id, broker_id)
             where l.queue_id = g.queue_id and l.queue_id in (select queue_id from free)),
        added as (
            insert into txmsg.queue_lease (queue_id, broker_id, epoch)
            select g.queue_id, g.broker_id, raised.epoch
              from raised, unnest(%(given)s::int[], %(to)s::text[]) g(queue_id, broker_id)
             where not exists (select from txmsg.queue_lease l where l.queue_id = g.queue_id)
               and exists (select from txmsg.queue q where q.id = g.queue_id)
             order by g.queue_id
            on conflict do nothing),
        held as (
            select l.queue_id from txmsg.queue_lease l
             where l.queue_id = any(%(wanted)s::int[]) and l.broker_id is not null
             order by l.queue_id for update skip locked),
        marked as (
            update txmsg.queue_lease l set wanted_by = nullif(w.broker_id, '')
              from raised, unnest(%(wanted)s::int[], %(by)s::text[]) w(queue_id, broker_id)
             where l.queue_id = w.queue_id and l.queue_id in (select queue_id from held))
        select epoch from raised
        """,
        {
            "name": LEASE_NAME,
            "together": TOGETHER,
            "seen": seen_epoch,
            "given": list(given),
            "to": list(given.values()),
            "wanted": list(wanted),
            "by": [each or "" for each in wanted.values()],
        },
    )
    row = await cursor.fetchone()
    return None if row is None else int(row[0])


async def hand_over(conn: Connection, broker_id: str, queues: Collection[tuple[int, int]]) -> None:
    """Ends this broker's leases of (queue id, epoch): whoever wanted them has them now, under a new epoch.

    If that one is not there any more, nobody has them until they are assigned.
    """
    await plain_cursor(conn).execute(
        """
        with raised as (
            update txmsg.lease set epoch = epoch + 1
             where name = %(name)s and broker_id = %(together)s returning epoch)
        update txmsg.queue_lease l
           set broker_id = (select b.id from txmsg.broker b where b.id = l.wanted_by and b.state <> 'dead'),
               epoch = raised.epoch, wanted_by = null
          from raised, unnest(%(queue_ids)s::int[], %(epochs)s::bigint[]) h(queue_id, epoch)
         where l.queue_id = h.queue_id and l.epoch = h.epoch and l.broker_id = %(id)s
        """,
        {
            "name": LEASE_NAME,
            "together": TOGETHER,
            "id": broker_id,
            "queue_ids": [queue_id for queue_id, _ in queues],
            "epochs": [epoch for _, epoch in queues],
        },
    )


async def notify(conn: Connection, channel: str, payload: str) -> None:
    """Tells all brokers that listen."""
    await conn.execute("select pg_notify(%s, %s)", (channel, payload))
