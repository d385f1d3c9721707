"""Statements of the leases of queues, by which one broker delivers a queue.

Each makes all its changes in one statement, in autocommit, as those of the registry do. Each change of a lease raises
the epoch of leases, by which brokers notice it; a decision based on an earlier read is applied only if the epoch is
still the one that was read (compare and set).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from txmsg.administration.cluster import QueueLease
from txmsg.broker.store.connect import Connection
from txmsg.broker.store.delivery import plain_cursor, scalar_cursor
from txmsg.message import QueueId


class QueueRow(NamedTuple):
    """A queue with the broker that delivers it (None: no broker), and the one that is to."""

    queue_id: QueueId
    broker_id: str | None
    wanted_by: str | None


class LeaseRow(NamedTuple):
    """A queue that a broker delivers. wanted_by: the broker to hand it over to."""

    queue_id: QueueId
    epoch: int
    wanted_by: str | None


async def lease_epoch(conn: Connection) -> int:
    """Return the epoch of leases, which rises with every change of a queue's lease."""
    cursor = await scalar_cursor(conn).execute("select epoch from txmsg.lease_epoch")
    (epoch,) = await cursor.fetchall()
    return int(epoch)


async def queues(conn: Connection) -> list[QueueRow]:
    """Return every queue by id, with the broker that delivers it."""
    cursor = await plain_cursor(conn).execute(
        """
        select q.id, l.broker_id, l.wanted_by
          from txmsg.queue q left join txmsg.queue_lease l on l.queue_id = q.id order by q.id
        """
    )
    return [QueueRow._make(row) for row in await cursor.fetchall()]


async def leases_of(conn: Connection, broker_id: str) -> list[LeaseRow]:
    """Return the queues that a broker delivers."""
    cursor = await plain_cursor(conn).execute(
        "select queue_id, epoch, wanted_by from txmsg.queue_lease where broker_id = %s", (broker_id,)
    )
    return [LeaseRow._make(row) for row in await cursor.fetchall()]


async def leases_by_topic(conn: Connection) -> list[QueueLease]:
    """Return every queue with the broker that delivers it, by topic and number."""
    async with conn.cursor(binary=True, row_factory=class_row(QueueLease)) as cursor:
        await cursor.execute(
            """
            select t.name as topic, q.number as queue, l.broker_id as broker, coalesce(l.epoch, 0) as epoch, l.wanted_by
              from txmsg.queue q
              join txmsg.topic t on t.id = q.topic_id
              left join txmsg.queue_lease l on l.queue_id = q.id
             order by t.name, q.number
            """
        )
        return await cursor.fetchall()


async def queue_count(conn: Connection, broker_id: str) -> int:
    """Return the number of queues that a broker delivers."""
    cursor = await scalar_cursor(conn).execute(
        "select count(*) from txmsg.queue_lease where broker_id = %s", (broker_id,)
    )
    (count,) = await cursor.fetchall()
    return int(count)


async def hold_leases(
    conn: Connection, incarnation: UUID | None, broker_id: str, leases: Mapping[QueueId, int]
) -> set[QueueId]:
    """Return those of these queues (id: epoch) that a broker has leased. It keeps them until the transaction ends.

    incarnation: of the database; OTHER_INCARNATION if it is not current. Locks their rows FOR SHARE in queue order: a
    takeover passes them over meanwhile.
    """
    cursor = await scalar_cursor(conn).execute(
        """
        select l.queue_id from txmsg.queue_lease l
          join unnest(%(queue_ids)s::int[], %(epochs)s::bigint[]) h(queue_id, epoch)
            on h.queue_id = l.queue_id and h.epoch = l.epoch
         where l.broker_id = %(id)s and txmsg.require_incarnation(%(incarnation)s)
         order by l.queue_id for share of l
        """,
        {"incarnation": incarnation, "id": broker_id, "queue_ids": list(leases), "epochs": list(leases.values())},
    )
    return set(await cursor.fetchall())


async def assign(
    conn: Connection, seen_epoch: int, given: Mapping[QueueId, str], wanted: Mapping[QueueId, str | None]
) -> int | None:
    """Give queues (id: broker) without a live broker away under a new epoch, and mark others as wanted by a broker.

    Returns the new epoch; None if something has changed since `seen_epoch`: then nothing is done. A row that is locked
    (its holder writes failures at this moment, or was paused while it did) is left for the next time, and not waited
    for.
    """
    # The update of lease_epoch is the compare and set: every change below joins `raised`, so that a stale decision
    # changes no row. SKIP LOCKED, because a broker that is paused while it holds its leases FOR SHARE would stop the
    # assignment of all queues (decision 3).
    cursor = await scalar_cursor(conn).execute(
        """
        with raised as (
            update txmsg.lease_epoch set epoch = epoch + 1 where epoch = %(seen)s returning epoch),
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
            "seen": seen_epoch,
            "given": list(given),
            "to": list(given.values()),
            "wanted": list(wanted),
            "by": [broker_id or "" for broker_id in wanted.values()],
        },
    )
    epoch: int | None = await cursor.fetchone()
    return epoch


async def hand_over(
    conn: Connection, incarnation: UUID | None, broker_id: str, queues: Collection[tuple[QueueId, int]]
) -> None:
    """End this broker's leases of (queue id, epoch): the broker that wanted them has them now, under a new epoch.

    If that one is gone, no broker has them until they are assigned. incarnation: of the database; OTHER_INCARNATION if
    it is not current.
    """
    # Not compare and set by lease_epoch: a row that this broker still leases under this epoch is its own to give.
    await plain_cursor(conn).execute(
        """
        with raised as (
            update txmsg.lease_epoch set epoch = epoch + 1 where txmsg.require_incarnation(%(incarnation)s)
            returning epoch)
        update txmsg.queue_lease l
           set broker_id = (select b.id from txmsg.broker b where b.id = l.wanted_by and b.state <> 'dead'),
               epoch = raised.epoch, wanted_by = null
          from raised, unnest(%(queue_ids)s::int[], %(epochs)s::bigint[]) h(queue_id, epoch)
         where l.queue_id = h.queue_id and l.epoch = h.epoch and l.broker_id = %(id)s
        """,
        {
            "incarnation": incarnation,
            "id": broker_id,
            "queue_ids": [queue_id for queue_id, _ in queues],
            "epochs": [epoch for _, epoch in queues],
        },
    )
