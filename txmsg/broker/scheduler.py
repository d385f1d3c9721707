"""The scheduler of delayed messages: a window over their due times that moves forward, and periodic sweeps.

Knows the database only as `DueMessages`. A sweep also finds messages that wait for a free ordering key, left behind by
a broker that died between two batches (decision 4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from txmsg.broker.periodic import repeat
from txmsg.message import datetime_of_us
from txmsg.settings.catalogue import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The pace of searching for due delayed messages."""

    interval_s: float = setting(
        0.25,
        "Time between polls for due messages: no message is delivered much later than this.",
        least=0,
        is_open=True,
    )
    sweep_s: float = setting(
        60.0,
        "Time between scans of all delayed messages, also at the start: for messages of other brokers that became "
        "visible after their due time.",
        least=0,
        is_open=True,
    )
    rows_max: int = setting(
        2000,
        "Messages that enter their queues at a time.",
        least=1,
    )
    size_bytes_max: int = setting(
        8 * 1024 * 1024,
        "Bytes of bodies at a time. A larger message is moved alone.",
        least=1,
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The result of moving due messages. ends: queue id -> its end, at least. through: the new start of the window."""

    ends: Mapping[int, int]
    count: int
    more: bool
    through: datetime


class DueMessages(Protocol):
    """The delayed messages of a Notify database."""

    async def release_due(self, *, since: datetime | None, rows_max: int, size_bytes_max: int) -> Released:
        """Move the first due messages, by due time from `since` on, into their queues. Safe on several brokers."""
        ...

    async def left_behind(self, limit: int) -> Sequence[UUID]:
        """Return transactions whose ordered messages could enter their queues, and have not."""
        ...


@dataclass(slots=True)
class DueScan:
    """A scan over due times. since: its start; None: the first one. through: where the next scan may begin."""

    since: datetime | None
    through: datetime | None = None


class DueWindow:
    """The due time at which the next scan begins. Every write of a delayed message notes its due time."""

    def __init__(self) -> None:
        self._since: datetime | None = None
        self._noted: datetime | None = None

    def note(self, deliver_at_us: int) -> None:
        """Note the due time of a stored message: the window may already have moved past it."""
        self._note(datetime_of_us(deliver_at_us))

    def _note(self, deliver_at: datetime) -> None:
        self._noted = deliver_at if self._noted is None else min(self._noted, deliver_at)

    def forget_window(self, _: str) -> None:
        """Scan all messages next time: the database has gone back, and moved messages may be due again."""
        self._since = self._noted = None

    @contextmanager
    def begin_scan(self) -> Iterator[DueScan]:
        """Scan from the start of the window. If the scan fails, the noted times stay noted."""
        # Taken out before the scan: a time that is noted while it runs belongs to the next one.
        before, noted, self._noted = self._since, self._noted, None
        look = DueScan(before if before is None or noted is None else min(before, noted))
        try:
            yield look
        except BaseException:
            if noted is not None:
                self._note(noted)
            raise
        if self._since is before:  # else `forget` was called meanwhile
            self._since = look.through


class Scheduler:
    """Moves delayed messages into their queues when they are due."""

    def __init__(
        self,
        due: DueMessages,
        window: DueWindow,
        *,
        on_ends: Callable[[Mapping[int, int]], None],
        look_again: Callable[[list[bytes]], None],
        config: SchedulerConfig | None = None,
    ) -> None:
        self._due = due
        self._window = window
        self._on_ends = on_ends
        self._look_again = look_again
        self._config = config or SchedulerConfig()
        self.released = 0
        """Messages moved since the start."""

    async def run_once(self, *, sweep: bool = False) -> Released:
        """Move one batch of due messages. sweep: from the first one on. Raises BrokerUnavailable."""
        with self._window.begin_scan() as look:
            released = await self._due.release_due(
                since=None if sweep else look.since,
                rows_max=self._config.rows_max,
                size_bytes_max=self._config.size_bytes_max,
            )
            look.through = released.through
        self.released += released.count
        if released.ends:
            self._on_ends(released.ends)
        return released

    async def sweep_keys(self) -> None:
        """Move messages that wait for a free ordering key into their queues."""
        if left := await self._due.left_behind(self._config.rows_max):
            self._look_again([transaction_id.bytes for transaction_id in left])

    async def run(self) -> None:
        """Repeat `run_once` until cancelled, with a sweep at the start and every sweep_s."""
        loop = asyncio.get_running_loop()
        more = asyncio.Event()
        sweep_at = loop.time()

        async def step() -> None:
            nonlocal sweep_at
            sweep = loop.time() >= sweep_at
            released = await self.run_once(sweep=sweep)
            if sweep:
                await self.sweep_keys()
                sweep_at = loop.time() + self._config.sweep_s
            if released.more:
                # At once again: a backlog must not be released at rows_max per interval.
                more.set()

        await repeat("releasing delayed messages", step, self._config.interval_s, soon=more)
