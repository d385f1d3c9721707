"""How much more a link may fetch: within bounds, and ahead of its handlers as far as they are quick.

Knows no connection; time is an argument.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from txmsg.client.receiving.unsettled import UnsettledMessages

OUT_SIZE_BYTES_MAX = 64 * 1024 * 1024
"""By default."""
AHEAD_S = 0.2
"""Messages are fetched ahead for as long as this: many for quick handlers, few for slow ones, who leave the others free
to take them."""
AHEAD_COUNT_MAX = 5000
PACE_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchBounds:
    """How much may be out at once, and for how long the broker leaves it to us. Others may hold later.

    out_min: messages that may be out, at least; more are when they are settled quickly. out_size_bytes_max: of their
    bodies; one message more may be.
    """

    out_min: int
    visibility_timeout_s: float
    out_size_bytes_max: int = OUT_SIZE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class FetchAllowance:
    """What a poll may ask for: so many messages, of so many bytes."""

    count: int
    size_bytes: int


class FetchBudget:
    """What a link may hold beside what it holds already. `changed` is set when that may be more than before."""

    def __init__(self, held: UnsettledMessages, bounds: FetchBounds) -> None:
        self.bounds = bounds
        self.changed = asyncio.Event()
        self._held = held
        self._out_max = bounds.out_min
        self._settled_count = 0
        self._paced_at = 0.0

    def apply_bounds(self, bounds: FetchBounds) -> None:
        """Applies new bounds."""
        self.bounds = bounds
        self._out_max = bounds.out_min
        self.changed.set()

    def note_settled(self) -> None:
        """A message was settled: how many are in a while is the pace."""
        self._settled_count += 1
        self.changed.set()

    def free(self, now: float) -> FetchAllowance | None:
        """What a poll may ask for now. None: too little to be worth one, under a quarter of it all."""
        self._set_pace(now)
        size_bytes_max = self.bounds.out_size_bytes_max
        free = FetchAllowance(self._out_max - self._held.count, size_bytes_max - self._held.size_bytes)
        is_worth_it = free.count >= max(1, self._out_max // 4) and free.size_bytes >= max(1, size_bytes_max // 4)
        return free if is_worth_it else None

    def _set_pace(self, now: float) -> None:
        passed_s = now - self._paced_at
        if passed_s >= PACE_INTERVAL_S:
            ahead = round(self._settled_count / passed_s * AHEAD_S)
            self._out_max = max(self.bounds.out_min, min(ahead, AHEAD_COUNT_MAX))
            self._settled_count, self._paced_at = 0, now

    async def change(self) -> None:
        """Returns when there may be more room."""
        self.changed.clear()
        await self.changed.wait()

    async def emptied(self) -> None:
        """Returns when all messages are settled."""
        while self._held.count:
            await self.change()
