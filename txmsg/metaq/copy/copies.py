"""The copies of a log, their progress on disk, and appends that wait for them. Belongs to one loop; uses no network.

Each request of a copy reports its progress. So a leader knows no copies when it starts, and learns of them at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from txmsg.errors import Overloaded

COPIES_MAX: Final = 64
"""Copies of a log; more are refused."""
FORGOTTEN_S: Final = 600.0
"""Seconds of silence after which a copy is not listed any more."""
AWAY_S: Final = 5.0
"""Seconds of silence after which a copy is away. It asks every second at the latest."""


@dataclass(slots=True)
class Copy:
    """A copy. position: everything before it is on its disk."""

    name: str
    position: int
    heard_at: float


class Copies:
    """The copies of one log. required: the number that an append waits for; timeout_s: the longest wait.

    goes_on: True if appends that do not request copies themselves continue without them while some are missing.
    """

    def __init__(self, required: int, timeout_s: float, *, goes_on: bool, clock: Callable[[], float]) -> None:
        self.required = required
        self.timeout_s = timeout_s
        self.goes_on = goes_on
        self.timeouts = 0
        """Appends that were not on enough copies in time."""
        self._clock = clock
        self._copies: dict[bytes, Copy] = {}
        self._changed = asyncio.Event()

    def heard(self, copy_id: bytes, name: str, position: int) -> None:
        """Record the progress that a copy reports. Raises Overloaded for one too many."""
        now = self._clock()
        copy = self._copies.get(copy_id)
        if copy is None:
            self._copies = {key: each for key, each in self._copies.items() if now - each.heard_at < FORGOTTEN_S}
            if len(self._copies) >= COPIES_MAX:
                raise Overloaded(f"the log has {COPIES_MAX} copies already; stop one that is not needed")
            copy = self._copies[copy_id] = Copy(name, position, now)
        copy.name, copy.position, copy.heard_at = name, position, now
        # A new event for the next change: those that wait for this one all wake, and none misses it.
        self._changed.set()
        self._changed = asyncio.Event()

    def forget_copy(self, copy_id: bytes) -> None:
        """Forget the progress of a copy that has begun again, until its next report."""
        self._copies.pop(copy_id, None)

    def all(self) -> Sequence[tuple[Copy, float]]:
        """Return the copies heard of lately, each with the seconds since."""
        now = self._clock()
        return [(copy, now - copy.heard_at) for copy in self._copies.values() if now - copy.heard_at < FORGOTTEN_S]

    def in_touch(self) -> int:
        """Return the number of copies that are not away."""
        return sum(silent_s < AWAY_S for _, silent_s in self.all())

    def having(self, position: int) -> int:
        """Return the number of copies that have everything before this position on disk."""
        return sum(copy.position >= position for copy in self._copies.values())

    async def reached(self, position: int) -> bool:
        """Wait until as many copies as are required have this on disk; return False if they do not in time."""
        try:
            async with asyncio.timeout(self.timeout_s):
                while self.having(position) < self.required:
                    await self._changed.wait()
        except TimeoutError:
            self.timeouts += 1
            return False
        return True
