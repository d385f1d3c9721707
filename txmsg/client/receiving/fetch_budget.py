"""The number of messages that a link may fetch: within bounds, and ahead of its handlers if they are quick.

Knows no connection; time is an argument.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from txmsg.client.receiving.unsettled import UnsettledMessages

OUT_SIZE_BYTES_MAX = 64 * 1024 * 1024
"""Default of the total size of bodies."""
AHEAD_S = 0.2
"""Seconds of work that are fetched ahead: many messages for quick handlers, few for slow ones, which leave the others
to other members."""
AHEAD_COUNT_MAX = 5000
PACE_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchBounds:
    """Bounds of the messages held at once, and the time for which the broker reserves them. They may change later.

    out_min: messages that may be held, at least; more if they are settled quickly. out_size_bytes_max: of their bodies;
    one further message may exceed it.
    """

    out_min: int
    visibility_timeout_s: float
    out_size_bytes_max: int = OUT_SIZE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class FetchAllowance:
    """The messages that a poll may ask for: their number, and their total size."""

    count: int
    size_bytes: int


class FetchBudget:
    """Room of a link for further messages. `changed` is set when there may be more than before."""

    def __init__(self, held: UnsettledMessages, bounds: FetchBounds) -> None:
        self.bounds = bounds
        self.changed = asyncio.Event()
        self._held = held
        self._out_max = bounds.out_min
        self._settled_count = 0
        self._paced_at = 0.0

    def apply_bounds(self, bounds: FetchBounds) -> None:
        """Apply new bounds."""
        self.bounds = bounds
        self._out_max = bounds.out_min
        self.changed.set()

    def note_settled(self) -> None:
        """Count a settled message: their rate is the pace."""
        self._settled_count += 1
        self.changed.set()

    def free(self, now: float) -> FetchAllowance | None:
        """Return the messages that a poll may ask for now; None if they are too few, under a quarter of all."""
        self._set_pace(now)
        size_bytes_max = self.bounds.out_size_bytes_max
        free = FetchAllowance(self._out_max - self._held.count, size_bytes_max - self._held.size_bytes)
        # A quarter at least: as soon as the room is nearly used up, polls for the rest would be a call per message.
        is_worth_it = free.count >= max(1, self._out_max // 4) and free.size_bytes >= max(1, size_bytes_max // 4)
        return free if is_worth_it else None

    def _set_pace(self, now: float) -> None:
        passed_s = now - self._paced_at
        if passed_s >= PACE_INTERVAL_S:
            ahead = round(self._settled_count / passed_s * AHEAD_S)
            self._out_max = max(self.bounds.out_min, min(ahead, AHEAD_COUNT_MAX))
            self._settled_count, self._paced_at = 0, now

    async def change(self) -> None:
        """Return when there may be more room."""
        self.changed.clear()
        await self.changed.wait()

    async def emptied(self) -> None:
        """Return when all messages are settled."""
        while self._held.count:
            await self.change()
