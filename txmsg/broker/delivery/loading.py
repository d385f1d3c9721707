"""Reads where a group stands in the database and builds its windows. The caller owns the transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from txmsg.broker.delivery.config import DeliveryConfig
from txmsg.broker.delivery.group import Feed, Group
from txmsg.broker.delivery.retrying import Retrying
from txmsg.broker.delivery.window import Window
from txmsg.broker.store import delivery as store
from txmsg.errors import BrokerUnavailable

__all__ = ["load_feeds", "load_group", "write_progress"]


async def load_group(conn: store.Connection, name: str, epoch: int, config: DeliveryConfig) -> Group:
    """The group, made when it is new, without any feeds yet."""
    group_id = await store.group_id(conn, name)
    if group_id is None:
        await store.create_group(conn, name)
        group_id = await store.group_id(conn, name)
        assert group_id is not None
    retrying = Retrying(count_max=config.retry_count_max, size_bytes_max=config.reply_size_bytes_max)
    return Group(group_id, name, epoch, retrying)


async def load_feeds(
    conn: store.Connection, group: Group, places: Mapping[int, tuple[str, int]], config: DeliveryConfig
) -> list[Feed]:
    """Feeds for these queues (id: topic and number), from the cursors, claimed for the group's epoch.

    An offset that has a retry or a dead letter counts as acked whatever the cursor says: the row was made before
    the cursor was written. BrokerUnavailable if a cursor was claimed under a younger epoch.
    """
    cursors = await store.claim_cursors(conn, group.id, sorted(places), group.epoch)
    if len(cursors) < len(places):
        raise BrokerUnavailable(f"epoch {group.epoch} of the delivery lease is over: another broker delivers; retry")
    acked: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    since = [cursor.next_offset for cursor in cursors]
    for queue_id, offset in await store.failed_offsets(conn, group.id, [c.queue_id for c in cursors], since):
        acked[queue_id].append((offset, offset + 1))
    ends = await store.queue_ends(conn, await store.open_segment(conn), sorted(places))
    return [
        Feed(
            group,
            *places[cursor.queue_id],
            cursor.queue_id,
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


async def write_progress(conn: store.Connection, epoch: int, feeds: Sequence[Feed]) -> bool:
    """Writes the cursors of these feeds; False if one of them was claimed under a younger epoch. One statement."""
    progress = [feed.window.progress() for feed in feeds]
    cursors = [
        (feed.group.id, feed.queue_id, each.next_offset, each.acked) for feed, each in zip(feeds, progress, strict=True)
    ]
    count = await store.write_cursors(conn, epoch, cursors)
    if count < len(feeds):
        return False
    for feed, each in zip(feeds, progress, strict=True):
        feed.window.written(each)
    return True
