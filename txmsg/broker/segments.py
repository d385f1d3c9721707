"""Segments: the open one, and opening the next by age or size. The next one is created ahead of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime

from psycopg.errors import LockNotAvailable

from txmsg.broker.config import BrokerConfig
from txmsg.broker.periodic import repeat
from txmsg.broker.store import segments as store
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.segments import SegmentRow
from txmsg.runtime.logs import EventLog, HourlyLog

_log = EventLog(__name__)

_ROTATE_WAIT_S = 1.0
"""Seconds that a rotation waits for batches. Every sender waits behind it, as behind a batch that its standby does not
confirm."""
_SHARE_OF_RETENTION = 10
"""A segment holds at most 1/10 of retention_size_bytes, so that dropping one leaves most of them."""


def is_full(kept: Sequence[SegmentRow], config: BrokerConfig) -> bool:
    """Return True if the open segment, the last of those kept, is old or large enough to be closed.

    A segment younger than the outcome memory stays open at any size: outcomes are looked up in the open and the
    previous segment only. When half of segments_max exist, each further tenth doubles age and size, so that the bound
    is not reached: with the defaults, 30 days of unread messages are about 115 segments.
    """
    segment = kept[-1]
    if segment.age_s < config.outcome_memory_s or len(kept) >= config.segments_max:
        return False
    size_bytes_max = config.segment_size_bytes
    if config.retention_size_bytes:
        size_bytes_max = min(size_bytes_max, config.retention_size_bytes // _SHARE_OF_RETENTION)
    tenths = 10 * len(kept) // config.segments_max
    growth = 2.0 ** max(0, tenths - 4)
    return segment.age_s >= config.segment_age_s * growth or segment.size_bytes >= size_bytes_max * growth


class Segments:
    """The open segment and the one before it, whose outcomes are still remembered.

    A segment is closed by a broker that has itself seen it open for as long as outcomes are remembered: by the
    database's clock alone, which may be set forward at any moment, outcomes would be forgotten early.
    """

    def __init__(self, pool: Pool, config: BrokerConfig, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._config = config
        self._monotonic = monotonic
        self._hourly = HourlyLog(_log)
        self._seen_open: tuple[int, datetime] | None = None
        self._seen_at = 0.0
        self.open = 0
        self.previous = 0
        self.kept: Sequence[SegmentRow] = ()
        """All segments, as last read."""

    @property
    def pool(self) -> Pool:
        """Connections to the database of these segments."""
        return self._pool

    def apply_settings(self, config: BrokerConfig) -> None:
        """Apply these settings from the next run on."""
        self._config = config

    async def refresh(self) -> None:
        """Read which segment is open. Another broker may have rotated."""
        async with session(self._pool) as connection:
            self.open, self.previous = await store.open_and_previous(connection)

    async def run_once(self) -> bool:
        """Make sure that the next segment exists, and open it when it is time. Returns True if it was opened."""
        async with session(self._pool) as connection:
            # Ahead of time: the rotation itself then only changes rows, and holds up the batches for a moment.
            await store.add_segment(connection)
            if lost := await store.look_after_memory(connection):
                _log.error(
                    "database.memory_lost",
                    "%(queues)d queues of durability memory have lost their messages: PostgreSQL was not stopped in "
                    "order",
                    queues=lost,
                )
            kept = self.kept = await store.segments(connection)
            segment = kept[-1].id
            if len(kept) >= self._config.segments_max:
                self._hourly.error(
                    "segment.bound_reached",
                    "%(segments)d segments are kept, which is segments_max: segment %(segment)d stays open however "
                    "large it grows; the log of the broker that drops segments says what keeps the oldest",
                    segments=len(kept),
                    segment=segment,
                )
            if self._open_s(kept[-1]) >= self._config.outcome_memory_s and is_full(kept, self._config):
                try:
                    await store.rotate(connection, segment, lock_timeout_s=_ROTATE_WAIT_S)
                except LockNotAvailable:
                    _log.warning(
                        "segment.kept_open",
                        "segment %(segment)d stays open for now: a batch is not committed yet",
                        segment=segment,
                    )
        await self.refresh()
        if self.open != segment:
            _log.info("segment.opened", "segment %(segment)d is open", segment=self.open)
        return self.open != segment

    def _open_s(self, segment: SegmentRow) -> float:
        """Return the seconds for which this broker has seen this segment open, and no other in between."""
        now, seen = self._monotonic(), (segment.id, segment.opened_at)
        if seen != self._seen_open:
            self._seen_open, self._seen_at = seen, now
        return now - self._seen_at

    async def run(self) -> None:
        """Repeat `run_once` until cancelled."""
        await repeat("creating segments", self.run_once, self._config.segment_check_s)
