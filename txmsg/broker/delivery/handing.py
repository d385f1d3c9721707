"""Waiting for what consumers still have of queues that are handed over. Knows no database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from txmsg.broker.delivery.group import Feed

__all__ = ["Settling", "is_settled", "still_out"]


class Settling:
    """Wakes those who wait for settlements."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def settled(self) -> None:
        """Something was settled, or has run out of time."""
        self._event.set()

    async def wait(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it is done within this time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not is_done():
                    self._event.clear()
                    await self._event.wait()
        except TimeoutError:
            return False
        return True


def still_out(feeds: Sequence[Feed]) -> bool:
    """Whether something of these feeds is in the hands of consumers, or has failed and is not yet written."""
    queue_ids = {feed.queue_id for feed in feeds}
    return any(feed.window.out_count for feed in feeds) or any(
        group.retrying.is_out(queue_ids) for group in {feed.group for feed in feeds}
    )


def is_settled(feeds: Sequence[Feed]) -> bool:
    """Whether nothing of these feeds is out, and their cursors are written: they can be read anew at any time."""
    return not still_out(feeds) and not any(feed.window.is_dirty for feed in feeds)
