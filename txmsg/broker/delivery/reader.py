"""Readers, which fill windows from the segment that holds the next offset."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.errors import UndefinedTable

from txmsg.broker.delivery.group import GroupQueueReader
from txmsg.broker.delivery.state import DeliveryState
from txmsg.broker.store import delivery as store
from txmsg.broker.store.connect import Connection
from txmsg.broker.store.rows import StoredRow
from txmsg.errors import BrokerUnavailable, StorageError
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)
_SMALL_READ_COUNT, _SMALL_READ_BYTES = 10, 64 * 1024
"""The size of a read when memory is full, or for a probe."""


class WindowReader:
    """Reads the feeds that wait to be read. Several run at once."""

    def __init__(self, state: DeliveryState) -> None:
        self._state = state

    async def run(self) -> None:
        """Read until it is cancelled."""
        while True:
            await self._state.reads.acquire()
            feed = self._state.to_read.pop()
            try:
                await self.read_once(feed)
            except BrokerUnavailable as exc:
                _log.debug("delivery.read_failed", "%(error)s", error=exc)
            except Exception:  # noqa: BLE001 - the root of a task
                _log.exception(
                    "delivery.read_failed",
                    "group %(group)s: reading topic %(topic)s queue %(queue)d failed; it is tried again",
                    group=feed.group.name,
                    topic=feed.topic,
                    queue=feed.number,
                )

    async def read_once(self, feed: GroupQueueReader) -> None:
        """Read a feed once, and wake members for the new messages."""
        config = self._state.config
        try:
            if not self._state.is_delivered(feed):
                return
            count_max, size_bytes_max = config.read_count_max, config.window_size_bytes_max
            if self._state.memory.is_full or feed.group.members.pause.is_on:
                # During a pause members get single messages, and a full memory is shared by all queues: a full read
                # would only be dropped, or take the room of others.
                count_max, size_bytes_max = min(count_max, _SMALL_READ_COUNT), _SMALL_READ_BYTES
            async with self._state.session() as conn:
                count = await _read(conn, feed, count_max, size_bytes_max)
        finally:
            self._state.was_read(feed)
        if count:
            feed.group.wake((feed.topic,), count)
            self._state.read_soon(feed)


async def _read(conn: Connection, feed: GroupQueueReader, count_max: int, size_bytes_max: int) -> int:
    """Read the next messages of a feed into its window. Returns their number; 0 at the current end of the queue.

    Reads one segment at a time, with one statement if the segment is still the same, else two. StorageError if offsets
    are missing, which must never happen: delivery of the queue stops.
    """
    window = feed.window
    # Twice at most: an empty read before the known end means that the position has moved into the next segment.
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
            rows = []  # dropped meanwhile: the next read finds the new start of the queue
        if rows:
            _check_dense(feed, position, rows)
            window.put_rows(rows)
            return len(rows)
        if window.position >= feed.end:
            return 0
        feed.segment = None  # another segment may have been opened
    return 0


async def _locate(conn: Connection, feed: GroupQueueReader) -> None:
    """Find the segment of the window's position: the last one that starts at or before it."""
    window = feed.window
    spans = await store.segments_of_queue(conn, feed.queue_id)
    assert spans, "there is always one open segment"
    if window.position < spans[0].base:
        _log.warning(
            "delivery.offsets_lost",
            "group %(group)s has lost offsets %(first_offset)d to %(last_offset)d of topic %(topic)s queue %(queue)d: "
            "their segment was dropped before they were read",
            group=feed.group.name,
            first_offset=window.position,
            last_offset=spans[0].base - 1,
            topic=feed.topic,
            queue=feed.number,
        )
        window.skip_to(spans[0].base)
    last = max(i for i, span in enumerate(spans) if span.base <= window.position)
    feed.segment = spans[last].segment
    feed.segment_end = spans[last + 1].base if last + 1 < len(spans) else None


def _check_dense(feed: GroupQueueReader, position: int, rows: Sequence[StoredRow]) -> None:
    first, last = rows[0].offset, rows[-1].offset
    if (first, last - first + 1) != (position, len(rows)):
        raise StorageError(
            f"topic {feed.topic} queue {feed.number} (id {feed.queue_id}) lacks offsets between {position} and {last} "
            f"in segment {feed.segment}: its delivery stops; compare the table txmsg.message with its backup"
        )
