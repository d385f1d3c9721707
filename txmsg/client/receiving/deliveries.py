"""The end of a broker's messages: done, failed, or given up. Knows no handlers."""

from __future__ import annotations

from txmsg.client.receiving.fetch_budget import FetchBudget
from txmsg.client.receiving.reports import Reports
from txmsg.client.receiving.settlements import PendingSettlements
from txmsg.client.receiving.settling import Settling
from txmsg.client.receiving.unsettled import DeliveredBatch, UnsettledMessages
from txmsg.consumer.failures import HandlerFailure


class Deliveries:
    """The messages that came over a link. Each receiver of one calls `ack`, `refuse` or `drop` for it, exactly once."""

    def __init__(
        self,
        held: UnsettledMessages,
        room: FetchBudget,
        settlements: PendingSettlements,
        reports: Reports,
        settling: Settling,
    ) -> None:
        self._held = held
        self._room = room
        self._settlements = settlements
        self._reports = reports
        self._settling = settling

    def ack(self, hand: DeliveredBatch, offset: int) -> None:
        """Acknowledge a message."""
        self._settlements.ack(hand, offset)
        self._held.drop(hand, offset)
        self._room.note_settled()
        self._settling.later()
        if self._held.repeats:  # seldom
            for repeat in self._held.repeats.pop((hand, offset), ()):
                self.ack(repeat, offset)

    def refuse(self, hand: DeliveredBatch, offset: int, failure: HandlerFailure) -> None:
        """Refuse a message: `failure` determines what becomes of it. Its text is shown with it, cut to 4,000
        characters."""
        self._settlements.refuse(hand, offset, failure)
        self._held.drop(hand, offset)
        self._room.note_settled()
        self._settling.later()
        for repeat in self._held.repeats.pop((hand, offset), ()):
            self.refuse(repeat, offset, failure)

    def drop(self, hand: DeliveredBatch, offset: int) -> None:
        """Give a message up without settling it: it is redelivered when its visibility timeout ends."""
        for each in (hand, *self._held.repeats.pop((hand, offset), ())):
            self._held.drop(each, offset)
        self._room.changed.set()

    def holds(self, hand: DeliveredBatch, offset: int, now: float) -> bool:
        """Return True if this message is still reserved for this consumer; otherwise another one gets it."""
        return self._held.holds(hand, offset, now) or any(
            self._held.holds(repeat, offset, now) for repeat in self._held.repeats.get((hand, offset), ())
        )

    def is_known(self, hand: DeliveredBatch, offset: int) -> bool:
        """Return True if a message that was just delivered is held already, or done; it then ends as the earlier
        delivery.

        The broker may have heard too late from this process, as when a handler blocks the loop: the handler would be
        called again at once, and again.
        """
        if self._settlements.is_acknowledged(hand, offset):
            self.ack(hand, offset)
            return True
        return self._held.is_repeat(hand, offset)

    async def tell_alone(self, hand: DeliveredBatch, offset: int, *, is_alone: bool) -> bool:
        """Report that a message is alone, or no longer; see `Reports.tell_alone`."""
        return await self._reports.tell_alone(hand, offset, is_alone=is_alone)
