"""Acknowledgements and refusals: those that wait to be sent, those on their way, and those that the broker has heard.

Knows no connection and no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from txmsg.client.receiving.unsettled import DeliveredBatch
from txmsg.consumer.counts import ConsumerCounts
from txmsg.consumer.failures import HandlerFailure
from txmsg.wire.v1.txmsg_pb2 import ReceiveRequest, Refusal

ERROR_TEXT_SIZE_MAX = 4000


@dataclass(frozen=True, slots=True, eq=False)
class SettlementsUnderWay:
    """Settlements that leave together."""

    acks: Mapping[DeliveredBatch, list[int]]
    refusals: Sequence[Refusal]

    def put_into_request(self, request: ReceiveRequest) -> None:
        """Add the settlements to a request."""
        request.acks.extend(hand.receipt(offsets) for hand, offsets in self.acks.items())
        request.refusals.extend(self.refusals)


class PendingSettlements:
    """Settlements of one link. counts: of those that the broker has heard."""

    def __init__(self, counts: ConsumerCounts) -> None:
        self._counts = counts
        self._acks: defaultdict[DeliveredBatch, list[int]] = defaultdict(list)
        self._refusals: list[Refusal] = []
        self._under_way: list[SettlementsUnderWay] = []
        self._heard: list[SettlementsUnderWay] = []
        """Settlements that the broker has heard since the poll in progress began: its reply may bring these messages
        once more."""

    def __len__(self) -> int:
        """Return the number of waiting settlements."""
        return sum(map(len, self._acks.values())) + len(self._refusals)

    def __bool__(self) -> bool:
        return bool(self._acks or self._refusals)

    def ack(self, hand: DeliveredBatch, offset: int) -> None:
        """Add an acknowledgement."""
        self._acks[hand].append(offset)

    def refuse(self, hand: DeliveredBatch, offset: int, failure: HandlerFailure) -> None:
        """Add a refusal: `failure` determines what becomes of the message. Its text is shown with it, cut to 4,000
        characters."""
        self._refusals.append(
            Refusal(
                receipt=hand.receipt([offset]),
                error=failure.error[:ERROR_TEXT_SIZE_MAX],
                delay_ms=-1 if failure.delay_s is None else round(failure.delay_s * 1000),
                dead=failure.is_final,
                rejected=failure.is_rejected,
            )
        )

    def is_acknowledged(self, hand: DeliveredBatch, offset: int) -> bool:
        """Return True if this message's acknowledgement is on its way, or was heard since the broker was asked, for any
        delivery."""
        return any(
            each.queue_id == hand.queue_id and offset in offsets
            for acks in (self._acks, *(taken.acks for taken in (*self._under_way, *self._heard)))
            for each, offsets in acks.items()
        )

    def take_waiting(self) -> SettlementsUnderWay:
        """Remove and return all waiting settlements: they are on their way until `give_back` or `confirm`."""
        taken = SettlementsUnderWay(self._acks, self._refusals)
        self._acks, self._refusals = defaultdict(list), []
        self._under_way.append(taken)
        return taken

    def give_back(self, taken: SettlementsUnderWay) -> None:
        """Let settlements wait again that the broker may not have heard."""
        self._under_way.remove(taken)
        for hand, offsets in taken.acks.items():
            self._acks[hand] += offsets
        # In front: they are older than what has come to wait meanwhile.
        self._refusals[:0] = taken.refusals

    def confirm(self, taken: SettlementsUnderWay, *, keeps: bool) -> None:
        """Count settlements that the broker has heard. keeps: True if a poll is in progress that began before."""
        self._under_way.remove(taken)
        if taken.acks and keeps:
            self._heard.append(taken)
        self._counts.acknowledged += sum(map(len, taken.acks.values()))
        self._counts.refused += len(taken.refusals)

    def forget_heard(self) -> None:
        """Forget heard settlements: a new poll, with none in doubt before it, brings no message of them."""
        self._heard.clear()
