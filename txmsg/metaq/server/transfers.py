"""Room for transfers from a server, so that a few slow callers do not lock out others. Knows no network and no log.

Transfers under way are counted in bytes; a caller has a share of them; each transfer has a time limit. Slow ones are
ended when others want their room. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

BYTES_PER_S_MIN: Final = 1024 * 1024
"""The least rate. Slower transfers are ended when others want room; the time limit grows with the size by it."""
_GRACE_S: Final = 1.0
_LOOK_S: Final = 0.1
_SHARES: Final = 4


class Transfer:
    """One transfer."""

    def __init__(self, caller: object, patience_s: float) -> None:
        self.caller = caller
        self.held_bytes = 0
        """Bytes that it keeps in memory."""
        self.moved_bytes = 0
        """Bytes that its caller has sent or taken."""
        self.is_ended = False
        """True if its room was given to others."""
        self._patience_s = patience_s
        self._begun = 0.0
        self._paused = 0.0
        self._step: asyncio.Timeout | None = None

    def take_bytes(self, size_bytes: int) -> None:
        """Hold so many bytes more. Its time runs from the first ones on, but not while it holds none."""
        if not self.held_bytes:
            # A transfer that holds nothing waits for others, not for its caller: that time does not make it slow.
            self._begun += asyncio.get_running_loop().time() - self._paused
        self.held_bytes += size_bytes

    def give_back(self) -> int:
        """Hold nothing from now on, so that it need not be ended for others. Returns the bytes that it held."""
        size_bytes, self.held_bytes, self.is_ended = self.held_bytes, 0, False
        if size_bytes:
            self._paused = asyncio.get_running_loop().time()
        return size_bytes

    def slow_for_s(self, now: float) -> float:
        """Return the seconds for which it has been behind the least rate; below 0: it is not."""
        return now - (self._begun + _GRACE_S + self.moved_bytes / BYTES_PER_S_MIN)

    @asynccontextmanager
    async def step(self) -> AsyncIterator[None]:
        """Move a piece. Raises TimeoutError after too long, for this piece or in all, or when it is ended."""
        if self.is_ended:
            raise TimeoutError
        now = asyncio.get_running_loop().time()
        in_all_s = self._patience_s + (self.moved_bytes + self.held_bytes) / BYTES_PER_S_MIN
        async with asyncio.timeout_at(min(now + self._patience_s, self._begun + in_all_s)) as step:
            self._step = step
            try:
                yield
            finally:
                self._step = None

    def end_transfer(self) -> None:
        """End it, so that it gives its room to others."""
        self.is_ended = True
        if self._step is not None and not self._step.expired():  # its own time may be over in this turn of the loop
            self._step.reschedule(asyncio.get_running_loop().time())


class Transfers:
    """All transfers of a server. size_bytes_max: of all under way, or one alone.

    patience_s: for a piece, and in all besides the size.
    """

    def __init__(self, size_bytes_max: int, patience_s: float) -> None:
        self._size_bytes_max = size_bytes_max
        self._patience_s = patience_s
        self._held_bytes = 0
        self._under_way: dict[Transfer, None] = {}
        self._waiting: deque[tuple[Transfer, int, asyncio.Future[None]]] = deque()

    @property
    def held_bytes(self) -> int:
        """The bytes that all transfers under way keep in memory."""
        return self._held_bytes

    @contextmanager
    def begun(self, caller: object) -> Iterator[Transfer]:
        """Yield a transfer, which holds nothing yet."""
        transfer = Transfer(caller, self._patience_s)
        self._under_way[transfer] = None
        try:
            yield transfer
        finally:
            del self._under_way[transfer]
            self._give_back(transfer)

    def hold_now(self, transfer: Transfer, size_bytes: int) -> bool:
        """Hold so many bytes in all for a transfer. Returns False if there is no room."""
        size_bytes -= transfer.held_bytes
        if size_bytes <= 0:
            return True
        # A transfer that waits and would fit comes first; otherwise small ones could keep a large one waiting forever.
        if not self._fits(transfer, size_bytes) or any(self._fits(other, size) for other, size, _ in self._waiting):
            return False
        self._take_bytes(transfer, size_bytes)
        return True

    async def hold_bytes(self, transfer: Transfer, size_bytes: int) -> None:
        """Hold so many bytes in all for a transfer, and return when there is room. The slowest are ended for it.

        A waiting transfer holds nothing: otherwise some that wait for each other could hold all room.
        """
        if self.hold_now(transfer, size_bytes):
            return
        # Before it waits: two transfers that each hold a part and wait for the rest would wait for each other.
        self._give_back(transfer)
        entry = (transfer, size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            while not (await asyncio.wait([entry[2]], timeout=_LOOK_S))[0]:
                self._make_room(transfer, size_bytes)
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def _fits(self, transfer: Transfer, size_bytes: int) -> bool:
        if self._held_bytes == transfer.held_bytes:
            return True  # alone
        return self._held_bytes + size_bytes <= self._size_bytes_max and self._is_within_share(transfer, size_bytes)

    def _is_within_share(self, transfer: Transfer, size_bytes: int) -> bool:
        """Return True if a caller's share allows it. A caller's only transfer may be larger than its share."""
        of_caller = self._of_caller_bytes(transfer)
        return of_caller == transfer.held_bytes or of_caller + size_bytes <= self._size_bytes_max // _SHARES

    def _of_caller_bytes(self, transfer: Transfer) -> int:
        return sum(other.held_bytes for other in self._under_way if other.caller == transfer.caller)

    def _take_bytes(self, transfer: Transfer, size_bytes: int) -> None:
        transfer.take_bytes(size_bytes)
        self._held_bytes += size_bytes

    def _give_back(self, transfer: Transfer) -> None:
        self._held_bytes -= transfer.give_back()
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        for entry in list(self._waiting):
            transfer, size_bytes, granted = entry
            if self._fits(transfer, size_bytes):
                self._waiting.remove(entry)
                self._take_bytes(transfer, size_bytes)
                granted.set_result(None)

    def _make_room(self, transfer: Transfer, size_bytes: int) -> None:
        """End slow ones until there will be room: of its caller, once that has its share; else of any caller."""
        now = asyncio.get_running_loop().time()
        rivals = [other for other in self._under_way if other is not transfer and other.held_bytes]
        missing_bytes = self._held_bytes + size_bytes - self._size_bytes_max
        if not self._is_within_share(transfer, size_bytes):
            # A caller that has its share makes room among its own transfers only.
            rivals = [rival for rival in rivals if rival.caller == transfer.caller]
            missing_bytes = self._of_caller_bytes(transfer) + size_bytes - self._size_bytes_max // _SHARES
        for rival in sorted(rivals, key=lambda rival: (rival.is_ended, rival.slow_for_s(now)), reverse=True):
            # Sorted by slowness, so the first one that keeps the rate ends the search. Transfers that were ended
            # already will give their room back.
            if missing_bytes <= 0 or not (rival.is_ended or rival.slow_for_s(now) > 0):
                return
            rival.end_transfer()
            missing_bytes -= rival.held_bytes
