"""Which messages wait for a standby, and a writer that keeps them apart from all others.

How safely a batch is committed is decided in the database, by the strongest durability of the queues it touches. What
is decided here is only who waits with whom: a standby that is away must stop no topic that does not ask for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from txmsg.broker.config import BrokerConfig
from txmsg.broker.segments import Segments
from txmsg.broker.store import levels as store
from txmsg.broker.store.batch import Batch, Problem
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.incarnation import same_incarnation
from txmsg.broker.writer import Writer
from txmsg.errors import BrokerUnavailable, OutcomeUnknown

__all__ = ["LeveledWriter", "Levels", "Writers"]

logger = logging.getLogger(__name__)


class Levels:
    """The queues of topics with durability `replicated`, as they were when last looked at."""

    def __init__(self, pool: Pool, segments: Segments) -> None:
        self._pool = pool
        self._segments = segments
        self._queues: frozenset[int] | None = None
        pool.incarnation.on_end(self._forget)

    def _forget(self, _: str) -> None:
        self._queues = None

    async def refresh(self) -> frozenset[int]:
        """Reads them anew, and returns them. Raises BrokerUnavailable."""
        async with same_incarnation(self._pool), session(self._pool) as conn:
            found = await store.replicated_queues(conn)
        self._queues = found
        return found

    async def run(self, interval_s: float) -> None:
        """Repeats `refresh`, also while the database is away."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.refresh()
            except BrokerUnavailable as exc:
                logger.warning("durabilities were not looked at: %s", exc)
            except Exception:  # a failing database must not end the broker
                logger.exception("durabilities were not looked at")

    async def replicated(self, batch: Batch) -> set[bytes]:
        """The transactions in a batch with a message that waits for a standby. Of outcomes, the database knows."""
        queues = await self.refresh() if self._queues is None else self._queues
        if not queues:
            return set()
        found = {
            each
            for columns in (batch.half, batch.plain)
            for each, queue in zip(columns.ids, columns.queue, strict=True)
            if queue in queues
        }
        if ends := batch.ends():
            segments = [self._segments.previous, self._segments.open]
            async with session(self._pool) as conn:
                found |= await store.replicated_transactions(conn, ends, queues, segments)
        return found


class LeveledWriter:
    """Writes what waits for a standby with a writer of its own, so that nothing else waits behind it."""

    def __init__(self, levels: Levels, writer: Writer, replicated: Writer) -> None:
        self._levels = levels
        self._writer = writer
        self._replicated = replicated

    async def write(self, batch: Batch, size_bytes: int) -> Mapping[bytes, Problem]:
        """As `Writer.write`. Of a batch of both kinds, each part fails by itself: its errors are problems."""
        apart = await self._levels.replicated(batch)
        if not apart:
            return await self._writer.write(batch, size_bytes)
        rest = batch.ids() - apart
        if not rest:
            return await self._replicated.write(batch, size_bytes)
        parts = batch.only(rest), batch.only(apart)
        share = size_bytes * len(parts[0]) // len(batch)
        problems = await asyncio.gather(
            _write(self._writer, parts[0], share), _write(self._replicated, parts[1], size_bytes - share)
        )
        return {**problems[0], **problems[1]}


async def _write(writer: Writer, batch: Batch, size_bytes: int) -> Mapping[bytes, Problem]:
    try:
        return await writer.write(batch, size_bytes)
    except (BrokerUnavailable, OutcomeUnknown) as exc:
        return dict.fromkeys(batch.ids(), exc)


class Writers:
    """All writers of a broker. A connection is made when its writer first has something to write."""

    def __init__(
        self,
        pool: Pool,
        config: BrokerConfig,
        segments: Segments,
        *,
        on_ends: Callable[[Mapping[int, int]], None],
    ) -> None:
        self._levels = Levels(pool, segments)
        self._look_s = config.topic_refresh_s
        half = Writer(config, segments, on_ends=on_ends)
        other = Writer(config, segments, on_ends=on_ends)
        # So that a sender hears why its message is not confirmed.
        standby_wait_s = min(config.standby_wait_s, 0.75 * config.request_timeout_s)
        replicated = Writer(config, segments, on_ends=on_ends, standby_wait_s=standby_wait_s)
        self._all = (half, other, replicated)
        self.half = LeveledWriter(self._levels, half, replicated)
        """For half messages, which take no queue lock: so they never wait behind outcomes, nor outcomes behind them."""
        self.other = LeveledWriter(self._levels, other, replicated)
        """For outcomes and plain messages."""

    def on_due(self, note: Callable[[int], None]) -> None:
        """Has this told when the first of the delayed messages is due that a batch has stored."""
        for each in self._all:
            each.on_due = note

    def look_again(self, ids: list[bytes]) -> None:
        """As `Writer.look_again`."""
        self._all[1].look_again(ids)

    async def refresh(self) -> None:
        """Reads which topics are replicated. Raises BrokerUnavailable."""
        await self._levels.refresh()

    async def run(self) -> None:
        """Writes until cancelled, or until `close` was called and nothing waits."""
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._levels.run(self._look_s), name="levels")
            await asyncio.wait([tasks.create_task(each.run(), name="writer") for each in self._all])
            looking.cancel()

    def close(self) -> None:
        """Refuses new work; `run` ends when what was accepted is written."""
        for each in self._all:
            each.close()
