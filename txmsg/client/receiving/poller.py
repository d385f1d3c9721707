"""Polls one broker for messages, while there is room for them and it is neither paused nor stopped.

The broker holds a poll until there is a message. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from txmsg.client.receiving.arrivals import Arrivals
from txmsg.client.receiving.broker_failures import BrokerFailures
from txmsg.client.receiving.calls import CALL_GRACE_S, LinkCalls
from txmsg.client.receiving.fetch_budget import FetchAllowance, FetchBudget
from txmsg.client.receiving.polls import LinkPolls
from txmsg.client.receiving.settlements import PendingSettlements
from txmsg.client.receiving.settling import Settling
from txmsg.consumer.isolation import isolation
from txmsg.wire.v1.txmsg_pb2 import ReceiveReply

POLL_WAIT_S = 300.0
"""Seconds that the broker holds a poll when there is no message."""
ISOLATION_LOOK_S = 0.02
"""Seconds between looks if suspects still wait in the process."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Poller:
    """Asks for messages, and passes them to `arrivals`."""

    calls: LinkCalls
    polls: LinkPolls
    room: FetchBudget
    settlements: PendingSettlements
    settling: Settling
    arrivals: Arrivals
    trouble: BrokerFailures

    async def run(self) -> None:
        """Poll until stopped. After a failure of the broker, pause and poll again."""
        while not self.polls.stopping.is_set():
            free = self.room.free(asyncio.get_running_loop().time())
            if self.polls.is_paused:
                self.settling.soon()
            if isolation.is_wanted:
                await self._stopped_within(ISOLATION_LOOK_S)
            elif self.polls.is_paused or free is None:
                await self.room.change()
            elif (reply := await self.poll(free)) is None:
                await self._stopped_within(self.trouble.pause_s())
            else:
                self._hear(reply)
        self.settling.soon()

    async def poll(self, free: FetchAllowance) -> ReceiveReply | None:
        """Make one poll. Returns None after a failure, and if a pause or a stop ended it."""
        request = self.calls.request(names_line=True)
        request.max_messages, request.max_bytes = free.count, free.size_bytes
        request.wait_ms = int(POLL_WAIT_S * 1000)
        # Kept with the poll: the bounds may change while the broker holds it, but its messages are reserved for the
        # time that was asked for.
        self.polls.asked_s = self.room.bounds.visibility_timeout_s
        if not self.polls.is_in_doubt:
            self.settlements.forget_heard()
        return await self.polls.poll(self.calls.call(request, timeout_s=POLL_WAIT_S + CALL_GRACE_S))

    def _hear(self, reply: ReceiveReply) -> None:
        self.trouble.note_pause(reply.pause)
        now = asyncio.get_running_loop().time()
        for columns in reply.batches:
            self.arrivals.add(columns, now, self.polls.asked_s)

    async def _stopped_within(self, time_s: float) -> None:
        """Return when it is stopped, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(time_s):
                await self.polls.stopping.wait()
