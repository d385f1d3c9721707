"""Reports of a link to its broker about the messages that came: settled, still held, begun alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from txmsg.client.receiving.awaited import AwaitedQueues
from txmsg.client.receiving.broker_failures import BrokerFailures
from txmsg.client.receiving.calls import LinkCalls
from txmsg.client.receiving.polls import LinkPolls
from txmsg.client.receiving.settlements import PendingSettlements
from txmsg.client.receiving.unsettled import DeliveredBatch, UnsettledMessages
from txmsg.wire.v1.txmsg_pb2 import Receipt

TELL_TIMEOUT_S = 5.0
"""Seconds for reporting that a suspect begins: no other handler begins meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reports:
    """Sends reports, by calls that ask for no messages. Others decide on the time."""

    calls: LinkCalls
    held: UnsettledMessages
    settlements: PendingSettlements
    polls: LinkPolls
    awaited: AwaitedQueues
    trouble: BrokerFailures

    @property
    def unsent_count(self) -> int:
        """Number of settlements that wait."""
        return len(self.settlements)

    @property
    def is_any_due(self) -> bool:
        """True if there is something to report."""
        return bool(self.settlements or self.awaited.free()) or self.polls.is_last_word_due

    async def send_reports(self, held: Sequence[Receipt] = ()) -> bool:
        """Send all due reports, and the receipts still held. Returns False after a failure: settlements then wait
        again."""
        is_last_word = self.polls.is_last_word_due
        request = self.calls.request(names_line=is_last_word)
        # Kept aside until the answer: a lost call has to be repeated, and the message may be delivered again meanwhile.
        taken = self.settlements.take_waiting()
        taken.put_into_request(request)
        request.held.extend(held)
        if is_last_word:
            self.polls.is_in_doubt = False
        reply = None
        try:
            reply = await self.calls.call(request)
        finally:
            if reply is None:
                self.settlements.give_back(taken)
                self.polls.is_in_doubt |= is_last_word
        if reply is None:
            return False
        self.settlements.confirm(taken, keeps=self.polls.is_in_doubt)
        self._hear_expired(reply.expired)
        return True

    async def tell_alone(self, hand: DeliveredBatch, offset: int, *, is_alone: bool) -> bool:
        """Report that a message begins, alone in this process, or that others run beside it from now on.

        Returns True if the broker has heard it and the message is still ours.
        """
        request = self.calls.request()
        (request.alone if is_alone else request.joined).append(hand.receipt([offset]))
        reply = await self.calls.call(request, timeout_s=TELL_TIMEOUT_S)
        if reply is None:
            return False
        self._hear_expired(reply.expired)
        return self.held.holds(hand, offset, asyncio.get_running_loop().time())

    def _hear_expired(self, expired: Sequence[Receipt]) -> None:
        """Handle receipts that the broker no longer honours: settled too late, or still held here."""
        late = lost = 0
        for receipt in expired:
            gone = self.held.lose(receipt)
            lost += gone
            late += len(receipt.offset) - gone
        if late:
            self.trouble.note_late(late)
        if lost:
            self.trouble.note_lost(lost)
