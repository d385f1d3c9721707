"""Reads queues from the segment that holds the next offset. The caller owns the connection."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from psycopg.errors import UndefinedTable

from txmsg.broker.delivery.group import Feed
from txmsg.broker.store import delivery as store
from txmsg.broker.store.rows import Row
from txmsg.errors import StorageError

_log = logging.getLogger(__name__)


async def read_feed(conn: store.Connection, feed: Feed, count_max: int, size_bytes_max: int) -> int:
    """Reads the next messages of a feed into its window. Returns how many; 0 at the current end of the queue.

    Reads one segment at a time, with one statement if the segment is still the same, else two. StorageError if offsets
    are missing, which must never happen: delivery of the queue stops.
    """
    window = feed.window
    for _ in range(2):
        if feed.segment is None or (feed.segment_end is not None and window.position >= feed.segment_end):
            await _locate(conn, feed)
        assert feed.segment is not None
        count = min(count_max, window.room_count())
        if count == 0:
            return 0
        position, size_bytes = window.position, min(size_bytes_max, window.room_bytes())
        try:
            rows = await store.read_messages(
                conn, feed.segment, feed.queue_id, position, count=count, size_bytes=size_bytes
            )
        except UndefinedTable:
            rows = []  # dropped meanwhile: the next read finds where the queue starts now
        if rows:
            _check_dense(feed, position, rows)
            window.put(rows)
            return len(rows)
        if window.position >= feed.end:
            return 0
        feed.segment = None  # another segment may have been opened
    return 0


async def _locate(conn: store.Connection, feed: Feed) -> None:
    """Finds the segment of the window's position: the last one that starts at or before it."""
    window = feed.window
    spans = await store.segments_of_queue(conn, feed.queue_id)
    assert spans, "there is always one open segment"
    if window.position < spans[0].base:
        _log.warning(
            "group %s has lost offsets %d to %d of topic %s queue %d: their segment was dropped before they were read",
            *(feed.group.name, window.position, spans[0].base - 1, feed.topic, feed.number),
        )
        window.skip_to(spans[0].base)
    last = max(i for i, span in enumerate(spans) if span.base <= window.position)
    feed.segment = spans[last].segment
    feed.segment_end = spans[last + 1].base if last + 1 < len(spans) else None


def _check_dense(feed: Feed, position: int, rows: Sequence[Row]) -> None:
    first, last = rows[0][0], rows[-1][0]
    if (first, last - first + 1) != (position, len(rows)):
        raise StorageError(
            f"topic {feed.topic} queue {feed.number} (id {feed.queue_id}) lacks offsets between "
            f"{position} and {last} in segment {feed.segment}: delivery of it stops; compare the table "
            "txmsg.message with its backup"
        )
