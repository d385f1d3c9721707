"""Reads where a group stands in the database and builds its windows. The caller owns the transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from txmsg.broker.delivery.config import DeliveryConfig
from txmsg.broker.delivery.group import Feed, Group
from txmsg.broker.delivery.retrying import Retrying
from txmsg.broker.delivery.window import Window
from txmsg.broker.store import delivery as store

__all__ = ["Place", "load_feeds", "load_group", "write_progress"]


class Place(NamedTuple):
    """A queue that is to be delivered: what it is a queue of, its number there, and the epoch of its lease."""

    topic: str
    number: int
    epoch: int


async def load_group(conn: store.Connection, name: str, config: DeliveryConfig) -> Group:
    """The group, made when it is new, without any feeds yet."""
    group_id = await store.group_id(conn, name)
    if group_id is None:
        await store.create_group(conn, name)
        group_id = await store.group_id(conn, name)
        assert group_id is not None
    retrying = Retrying(count_max=config.retry_count_max, size_bytes_max=config.reply_size_bytes_max)
    return Group(group_id, name, retrying)


async def load_feeds(
    conn: store.Connection, group: Group, places: Mapping[int, Place], config: DeliveryConfig
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
            ),
            ends[cursor.queue_id],
        )
        for cursor in cursors
    ]


async def write_progress(conn: store.Connection, feeds: Sequence[Feed]) -> list[Feed]:
    """Writes the cursors of these feeds; returns those that were claimed under a younger epoch. One statement."""
    progress = [feed.window.progress() for feed in feeds]
    written = await store.write_cursors(
        conn,
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
