"""Durability levels: finds messages that wait for a standby, and keeps them apart with a writer of their own.

The database decides how a batch is committed, by the strongest durability of its queues. This module decides only which
messages share a batch: a standby that is away must not stop topics that do not need it (decision 15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from txmsg.broker.config import BrokerConfig
from txmsg.broker.periodic import repeat
from txmsg.broker.segments import Segments
from txmsg.broker.store import levels as store
from txmsg.broker.store.batch import Problem, WriteBatch
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.incarnation import same_incarnation
from txmsg.broker.writer import Writer
from txmsg.errors import BrokerUnavailable, OutcomeUnknown
from txmsg.message import QueueId


class DurabilityLevels:
    """The queues of topics with durability `replicated`, as last read."""

    def __init__(self, pool: Pool, segments: Segments) -> None:
        self._pool = pool
        self._segments = segments
        self._queues: frozenset[QueueId] | None = None
        pool.incarnation.on_end(self._forget_queues)

    def _forget_queues(self, _: str) -> None:
        self._queues = None

    async def refresh(self) -> frozenset[QueueId]:
        """Read and return the queues. Raises BrokerUnavailable."""
        async with same_incarnation(self._pool), session(self._pool) as conn:
            found = await store.replicated_queues(conn)
        self._queues = found
        return found

    async def run(self, interval_s: float) -> None:
        """Repeat `refresh` until cancelled."""
        await repeat("reading durabilities", self.refresh, interval_s)

    async def replicated(self, batch: WriteBatch) -> set[bytes]:
        """Return the transactions of a batch that have a message that waits for a standby.

        For outcomes the database is asked, since a broker does not know their topics. Raises BrokerUnavailable.
        """
        queues = await self.refresh() if self._queues is None else self._queues
        if not queues:
            return set()
        found = {
            transaction_id
            for columns in (batch.half, batch.plain)
            for transaction_id, queue in zip(columns.transaction_id, columns.queue, strict=True)
            if queue in queues
        }
        if ends := batch.ends():
            segments = [self._segments.previous, self._segments.open]
            async with session(self._pool) as conn:
                found |= await store.replicated_transactions(conn, ends, queues, segments)
        return found


class LeveledWriter:
    """Writes messages that wait for a standby with a separate writer, so that no others wait behind them."""

    def __init__(self, levels: DurabilityLevels, writer: Writer, replicated: Writer) -> None:
        self._levels = levels
        self._writer = writer
        self._replicated = replicated

    async def write(self, batch: WriteBatch, size_bytes: int) -> Mapping[bytes, Problem]:
        """Write a batch as `Writer.write`.

        The two parts of a mixed batch fail independently: their errors are problems.
        """
        apart = await self._levels.replicated(batch)
        if not apart:
            return await self._writer.write(batch, size_bytes)
        rest = batch.ids() - apart
        if not rest:
            return await self._replicated.write(batch, size_bytes)
        parts = batch.only(rest), batch.only(apart)
        # By the number of items, because the sizes of single messages are unknown here.
        share = size_bytes * len(parts[0]) // len(batch)
        problems = await asyncio.gather(
            _write(self._writer, parts[0], share), _write(self._replicated, parts[1], size_bytes - share)
        )
        return {**problems[0], **problems[1]}


async def _write(writer: Writer, batch: WriteBatch, size_bytes: int) -> Mapping[bytes, Problem]:
    try:
        return await writer.write(batch, size_bytes)
    except (BrokerUnavailable, OutcomeUnknown) as exc:
        return dict.fromkeys(batch.ids(), exc)


class Writers:
    """All writers of a broker. Each connects when it first has something to write. on_ends, on_due: as `Writer`."""

    def __init__(
        self,
        pool: Pool,
        config: BrokerConfig,
        segments: Segments,
        *,
        on_ends: Callable[[Mapping[int, int]], None],
        on_due: Callable[[int], None],
    ) -> None:
        self._levels = DurabilityLevels(pool, segments)
        self._look_s = config.topic_refresh_s
        half = Writer(config, segments, on_ends=on_ends, on_due=on_due)
        other = Writer(config, segments, on_ends=on_ends, on_due=on_due)
        # Less than a request may take, so that a sender is told why its message is not confirmed.
        standby_wait_s = min(config.standby_wait_s, 0.75 * config.request_timeout_s)
        replicated = Writer(config, segments, on_ends=on_ends, on_due=on_due, standby_wait_s=standby_wait_s)
        self.by_name = {"half": half, "other": other, "replicated": replicated}
        self._all = tuple(self.by_name.values())
        self.half = LeveledWriter(self._levels, half, replicated)
        """For half messages, which take no queue lock: so they never wait behind outcomes, nor outcomes behind them."""
        self.other = LeveledWriter(self._levels, other, replicated)
        """For outcomes and plain messages."""

    @property
    def trouble(self) -> str:
        """The reason why half messages, or outcomes and plain messages, cannot be written; empty if both can.

        Without that of the replicated writer: the other messages can be sent without a standby.
        """
        return self.by_name["half"].trouble or self.by_name["other"].trouble

    def apply_settings(self, config: BrokerConfig) -> None:
        """Apply these settings from the next batch on."""
        for writer in self._all:
            writer.apply_settings(config)

    def look_again(self, ids: list[bytes]) -> None:
        """Move messages that wait for ordering keys, as `Writer.look_again`."""
        self._all[1].look_again(ids)

    async def run(self) -> None:
        """Write until cancelled, or until `close` was called and nothing waits."""
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._levels.run(self._look_s), name="levels")
            await asyncio.wait([tasks.create_task(writer.run(), name="writer") for writer in self._all])
            looking.cancel()

    def close(self) -> None:
        """Refuse new work; `run` ends when all accepted work is written."""
        for writer in self._all:
            writer.close()
