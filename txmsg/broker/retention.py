"""Retention: drops old segments, oldest first. Pure functions decide on the segments; one broker at a time drops.

The segments kept are always consecutive, up to the open one, so that queues have no holes. The open segment and the one
before it are never dropped: they remember outcomes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from psycopg.errors import LockNotAvailable

from txmsg.broker.config import BrokerConfig
from txmsg.broker.periodic import repeat
from txmsg.broker.store import segments as store
from txmsg.broker.store.body_keys import drop_expired
from txmsg.broker.store.connect import Connection, upkeep_session
from txmsg.broker.store.segments import Pin, SegmentRow
from txmsg.runtime.logs import EventLog, HourlyLog

_log = EventLog(__name__)


@dataclass(slots=True)
class DropCounts:
    """Counts of what this broker has dropped since it started."""

    segments: int = 0
    unread_messages: int = 0
    """Messages dropped unread, counted once for each group that had not read them."""


class RetentionVerdict(Enum):
    """The fate of a segment past its retention."""

    DROP = "every group has read it"
    DROP_UNREAD = "what is unread is older than retention_max_s, and its topics say: drop"
    WAIT = "a group has not read it yet"
    KEEP = "what is unread is older than retention_max_s, and a topic says: keep"


def past_their_time(kept: Sequence[SegmentRow], config: BrokerConfig) -> Iterator[SegmentRow]:
    """Yield the segments to drop by age, or because all are too large together; oldest first. `kept` is in order."""
    size_bytes = sum(segment.size_bytes for segment in kept)
    closed = [segment for segment in kept if segment.state == "closed"]
    # Not the last closed one: it remembers outcomes. The first segment that stays ends the loop, so that those kept are
    # consecutive.
    for segment in closed[:-1]:
        is_too_much = 0 < config.retention_size_bytes < size_bytes
        if segment.age_s < config.retention_s and not is_too_much:
            return
        size_bytes -= segment.size_bytes
        yield segment


def verdict(segment: SegmentRow, pins: Sequence[Pin], config: BrokerConfig) -> RetentionVerdict:
    """Return the fate of a segment past its retention in which `pins` are unread."""
    if not pins:
        return RetentionVerdict.DROP
    if segment.age_s < config.retention_max_s:
        return RetentionVerdict.WAIT
    return RetentionVerdict.KEEP if any(pin.unread == "keep" for pin in pins) else RetentionVerdict.DROP_UNREAD


class Retention:
    """Checks every retention_check_s. Several brokers may check at once; one of them drops."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._hourly = HourlyLog(_log)
        self.counts = DropCounts()

    def apply_settings(self, config: BrokerConfig) -> None:
        """Apply these settings from the next run on."""
        self._config = config

    async def run_once(self) -> int:
        """Mark the segments that are due, and drop those marked and expired keys of bodies.

        Returns the number of segments.
        """
        async with upkeep_session(self._config.storage) as conn:
            if not await store.try_upkeep_lock(conn):
                return 0
            await self._give_up(conn)
            dropped = await self._drop(conn)
            await drop_expired(conn)
            await store.release_upkeep_lock(conn)
            return dropped

    async def run(self) -> None:
        """Repeat `run_once` until cancelled."""
        await repeat("dropping segments", self.run_once, self._config.retention_check_s)

    async def _give_up(self, conn: Connection) -> None:
        kept = [segment for segment in await store.segments(conn) if not segment.dropping]
        following = {segment.id: after.id for segment, after in pairwise(kept)}
        for segment in past_their_time(kept, self._config):
            pins = await store.pins(conn, segment.id, following[segment.id])
            match verdict(segment, pins, self._config):
                case RetentionVerdict.WAIT:
                    return
                case RetentionVerdict.KEEP:
                    self._alert_kept(segment, pins)
                    return
                case RetentionVerdict.DROP:
                    await store.mark_dropping(conn, segment.id)
                case RetentionVerdict.DROP_UNREAD:
                    if await store.mark_dropping(conn, segment.id):
                        self._alert_lost(segment, pins)

    def _alert_kept(self, segment: SegmentRow, pins: Sequence[Pin]) -> None:
        keeping = next(pin for pin in pins if pin.unread == "keep")
        self._hourly.error(
            "retention.unread_kept",
            "segment %(segment)d and all later ones are kept past retention_max_s: %(reader)s has not read "
            "%(messages)d messages of topic %(topic)s queue %(queue)d, from offset %(first_offset)d on, closed "
            "%(age_s).0f s ago; bring it up, delete it, or let the topic drop what is unread",
            segment=segment.id,
            reader=keeping.reader,
            messages=keeping.messages,
            topic=keeping.topic,
            queue=keeping.number,
            first_offset=keeping.first,
            age_s=segment.age_s,
        )

    def _alert_lost(self, segment: SegmentRow, pins: Sequence[Pin]) -> None:
        self.counts.unread_messages += sum(pin.messages for pin in pins)
        for pin in pins:
            _log.error(
                "retention.unread_dropped",
                "%(reader)s has lost %(messages)d messages of topic %(topic)s queue %(queue)d, in offsets "
                "%(first_offset)d to %(last_offset)d: unread for %(age_s).0f s, they are dropped with segment "
                "%(segment)d",
                reader=pin.reader,
                messages=pin.messages,
                topic=pin.topic,
                queue=pin.number,
                first_offset=pin.first,
                last_offset=pin.last,
                age_s=segment.age_s,
                segment=segment.id,
            )

    async def _drop(self, conn: Connection) -> int:
        dropped = 0
        for segment in await store.segments(conn):
            if not segment.dropping:
                continue
            try:
                await _drop_whole(conn, segment.id)
            except LockNotAvailable:
                self._hourly.error(
                    "segment.held",
                    "segment %(segment)d cannot be dropped yet: a transaction that has read it is open; see "
                    "pg_stat_activity for the oldest",
                    segment=segment.id,
                )
                return dropped
            dropped += 1
            self.counts.segments += 1
            _log.info(
                "segment.dropped",
                "segment %(segment)d is dropped: %(size_bytes)d bytes",
                segment=segment.id,
                size_bytes=segment.size_bytes,
            )
        return dropped


async def _drop_whole(conn: Connection, segment: int) -> None:
    for kind in store.PARTITIONS:
        await store.detach(conn, kind, segment)
        await store.drop_table(conn, kind, segment)
    await store.forget_segment(conn, segment)
