"""Keeps messages whose handlers run for long: extends their visibility timeout. Belongs to one loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from txmsg.client.receiving.fetch_budget import FetchBudget
from txmsg.client.receiving.polls import LinkPolls
from txmsg.client.receiving.settling import Settling
from txmsg.client.receiving.unsettled import UnsettledMessages

RENEWALS = 4
"""Reports of held messages within a visibility timeout: all but one of the calls may be lost."""
HELD_COUNT_MAX = 1000
"""Receipts in such a call."""


class VisibilityExtender:
    """Extends the reservation of a link's held messages."""

    def __init__(self, held: UnsettledMessages, room: FetchBudget, polls: LinkPolls, settling: Settling) -> None:
        self._held = held
        self._room = room
        self._polls = polls
        self._settling = settling
        self._is_due = asyncio.Event()

    def look_soon(self) -> None:
        """Look at once, because the visibility timeout may have changed."""
        self._is_due.set()

    async def run(self) -> None:
        """Repeat `run_once` in time, until cancelled."""
        while True:
            # What the poll under way brings may be left to us for a shorter time than now holds.
            time_s = min(self._room.bounds.visibility_timeout_s, self._polls.asked_s) / RENEWALS
            with suppress(TimeoutError):
                async with asyncio.timeout(time_s):
                    await self._is_due.wait()
            self._is_due.clear()
            await self.run_once()

    async def run_once(self) -> None:
        """Report the held messages to the broker, if it has not heard of them for long."""
        visibility_timeout_s = self._room.bounds.visibility_timeout_s
        now = asyncio.get_running_loop().time()
        # Only batches that are older than a quarter of the timeout: fast handlers settle before that, and cost no
        # report.
        old = self._held.until_before(now + visibility_timeout_s * (1 - 1 / RENEWALS))
        # In parts: one call with all receipts could exceed the size of a request.
        for start in range(0, len(old), HELD_COUNT_MAX):
            hands = old[start : start + HELD_COUNT_MAX]
            receipts = self._held.receipts(hands)
            if receipts and await self._settling.settle(receipts):
                self._held.extend(hands, now + visibility_timeout_s)
