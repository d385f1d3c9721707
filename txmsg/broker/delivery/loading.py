"""Reads where a group stands in the database and builds its windows. The caller owns the transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from txmsg.broker.delivery.backoff import Backoff
from txmsg.broker.delivery.config import DeliveryConfig
from txmsg.broker.delivery.group import Feed, Group
from txmsg.broker.delivery.members import Members
from txmsg.broker.delivery.memory import Memory
from txmsg.broker.delivery.pause import Pause
from txmsg.broker.delivery.retrying import Retrying
from txmsg.broker.delivery.settings import GroupSettings
from txmsg.broker.delivery.window import Window
from txmsg.broker.store import consumer_groups as groups_store
from txmsg.broker.store import delivery as store
from txmsg.broker.store import retries as failures_store
from txmsg.broker.store.consumer_groups import GroupRow

__all__ = ["Place", "load_feeds", "load_group", "settings_of", "write_progress"]


class Place(NamedTuple):
    """A queue that is to be delivered: what it is a queue of, its number there, and the epoch of its lease."""

    topic: str
    number: int
    epoch: int


async def load_group(conn: store.Connection, name: str, config: DeliveryConfig) -> Group:
    """The group, made when it is new, without any feeds yet."""
    row = await groups_store.group_row(conn, name)
    if row is None:
        # A broadcasting member is a group of its own.
        await groups_store.create_group(conn, name, config.broadcast_expires_s if "%" in name else None)
        row = await groups_store.group_row(conn, name)
        assert row is not None
    retrying = Retrying(count_max=config.retry_count_max, size_bytes_max=config.reply_size_bytes_max)
    members = Members(name, Pause(config.pause_failures))
    return Group(row.id, name, retrying, settings_of(row, config), members)


def settings_of(row: GroupRow, config: DeliveryConfig) -> GroupSettings:
    """What the group's row says; the broker's own setting where it says nothing."""
    backoff = Backoff(
        delays_s=config.backoff.delays_s if row.retry_delays_s is None else tuple(row.retry_delays_s),
        retries_max=config.backoff.retries_max if row.retries_max is None else row.retries_max,
    )
    return GroupSettings(
        backoff=backoff,
        parks_keys=row.poisoned_key == "park",
        deliver_rate_max=row.deliver_rate_max,
        version=row.version,
    )


async def load_feeds(
    conn: store.Connection,
    group: Group,
    places: Mapping[int, Place],
    config: DeliveryConfig,
    memory: Memory,
    *,
    now: float,
) -> list[Feed]:
    """Feeds for these queues (by id), from the cursors, claimed for the epochs of their leases.

    An offset that has a retry or a dead letter counts as acked whatever the cursor says: the row was made before
    the cursor was written. A queue whose cursor was claimed under a younger epoch is left out.
    """
    cursors = await store.claim_cursors(
        conn, group.id, [(queue_id, places[queue_id].epoch) for queue_id in sorted(places)]
    )
    acked: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    since = [cursor.next_offset for cursor in cursors]
    for queue_id, offset in await store.failed_offsets(conn, group.id, [c.queue_id for c in cursors], since):
        acked[queue_id].append((offset, offset + 1))
    held: defaultdict[int, list[str]] = defaultdict(list)
    for queue_id, key in await failures_store.held_keys(conn, group.id, [c.queue_id for c in cursors]):
        held[queue_id].append(key)
    ends = await store.queue_ends(conn, await store.open_segment(conn), [c.queue_id for c in cursors])
    return [
        Feed(
            group,
            *(places[cursor.queue_id].topic, places[cursor.queue_id].number),
            *(cursor.queue_id, places[cursor.queue_id].epoch),
            Window(
                cursor.next_offset,
                [*cursor.acked, *acked[cursor.queue_id]],
                count_max=config.window_count_max,
                size_bytes_max=config.window_size_bytes_max,
                held_keys=held[cursor.queue_id],
                memory=memory,
            ),
            ends[cursor.queue_id],
            generation=cursor.generation,
            opens_at=now + cursor.held_s if cursor.held_s else None,
        )
        for cursor in cursors
    ]


async def write_progress(conn: store.Connection, broker_id: str, feeds: Sequence[Feed]) -> list[Feed]:
    """Writes the cursors of these feeds; returns those whose leases are over. One statement."""
    progress = [feed.window.progress() for feed in feeds]
    written = await store.write_cursors(
        conn,
        broker_id,
        [
            store.CursorWrite(feed.group.id, feed.queue_id, feed.epoch, each.next_offset, each.acked)
            for feed, each in zip(feeds, progress, strict=True)
        ],
    )
    stale: list[Feed] = []
    for feed, each in zip(feeds, progress, strict=True):
        if (feed.group.id, feed.queue_id) in written:
            feed.window.written(each)
        else:
            stale.append(feed)
    return stale
