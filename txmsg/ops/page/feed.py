"""The newest bulletin, for every open browser. Knows no HTTP and no clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class BulletinFeed:
    """A feed that passes on only the newest bulletin: a slow reader misses some, and delays no others. One
    event loop.
    """

    def __init__(self) -> None:
        self._newest: bytes | None = None
        self.number = 0
        """The number of bulletins so far."""
        self.readers = 0
        """The number of open browsers, as the application counts them."""
        self._changed = asyncio.Event()
        self._is_closed = False

    @property
    def newest(self) -> bytes | None:
        """The newest bulletin; None before the first."""
        return self._newest

    def put_bulletin(self, bulletin: bytes) -> None:
        """Replace the newest bulletin."""
        self._newest = bulletin
        self.number += 1
        self._wake_readers()

    def close(self) -> None:
        """End all iterators, also before they have seen the newest bulletin."""
        self._is_closed = True
        self._wake_readers()

    async def bulletins(self) -> AsyncIterator[bytes]:
        """Yield the newest bulletin, and then, at each step, the newest again once there is a newer one."""
        seen = 0
        while not self._is_closed:
            changed = self._changed
            if self._newest is not None and self.number != seen:
                seen = self.number
                yield self._newest
            else:
                await changed.wait()

    def _wake_readers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
