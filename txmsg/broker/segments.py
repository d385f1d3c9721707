"""Which segment is open, and when the next one takes over: made ahead, opened by age or size, never in a hurry."""

from __future__ import annotations

import asyncio
import logging

from txmsg.broker.config import BrokerConfig
from txmsg.broker.store.connect import Pool, session
from txmsg.errors import BrokerUnavailable

__all__ = ["Segments"]

logger = logging.getLogger(__name__)


class Segments:
    """The open segment and the one before it, whose outcomes are still remembered."""

    def __init__(self, pool: Pool, config: BrokerConfig) -> None:
        self._pool = pool
        self._config = config
        self.open = 0
        self.previous = 0

    async def refresh(self) -> None:
        """Reads which segment is open. Another broker may have rotated."""
        async with session(self._pool) as connection:
            cursor = await connection.execute(
                "select (select id from txmsg.segment where state = 'open'), "
                "(select coalesce(max(id), 0) from txmsg.segment where state = 'closed')"
            )
            row = await cursor.fetchone()
        assert row is not None
        self.open, self.previous = row

    async def run_once(self) -> bool:
        """Makes sure that the next segment exists, and moves on to it when it is time. True if it moved on.

        A segment younger than the outcome memory stays open however large it is: outcomes are looked up in the
        open and the previous segment only.
        """
        async with session(self._pool) as connection:
            await connection.execute("select txmsg.add_segment_1()")
            cursor = await connection.execute(
                "select id, extract(epoch from now() - opened_at)::float8, "
                "coalesce(pg_total_relation_size(format('txmsg.message_%s', id)::regclass), 0) "
                "from txmsg.segment where state = 'open'"
            )
            row = await cursor.fetchone()
            assert row is not None
            segment: int = row[0]
            _, age_s, size_bytes = row
            config = self._config
            due = age_s >= config.segment_age_s or size_bytes >= config.segment_size_bytes
            if due and age_s >= config.outcome_memory_s:
                await connection.execute("select txmsg.rotate_1(%s)", (segment,))
        await self.refresh()
        return self.open != segment

    async def run(self) -> None:
        """Repeats `run_once`, also while the database is away."""
        while True:
            try:
                if await self.run_once():
                    logger.info("segment %d is open", self.open)
            except BrokerUnavailable as exc:
                logger.warning("segments were not looked at: %s", exc)
            except Exception:  # a read-only or failing database must not end the broker
                logger.exception("segments were not looked at")
            await asyncio.sleep(self._config.segment_check_s)
