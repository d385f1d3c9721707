"""The messages that a reply brings: noted as held, then handed over unless they are known or out of date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from txmsg.client.receiving.deliveries import Deliveries
from txmsg.client.receiving.epochs import Epochs
from txmsg.client.receiving.poll_sequence import PollSequence
from txmsg.client.receiving.received import delivered
from txmsg.client.receiving.unsettled import DeliveredBatch, UnsettledMessages, hand_of
from txmsg.consumer.counts import ConsumerCounts
from txmsg.consumer.failures import HandlerFailure
from txmsg.message import ReceivedMessage
from txmsg.wire.v1.txmsg_pb2 import DeliveredColumns


@dataclass(frozen=True, slots=True)
class Arrival:
    """Messages of one queue that came together. losses: with how many consumers they were lost before, at most."""

    deliveries: Deliveries
    hand: DeliveredBatch
    messages: Sequence[ReceivedMessage]
    losses: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """The arriving messages of one link. `take` gets those that are to be handled."""

    held: UnsettledMessages
    deliveries: Deliveries
    line: PollSequence
    epochs: Epochs
    counts: ConsumerCounts
    take: Callable[[Arrival], None]

    def add(self, columns: DeliveredColumns, now: float, visibility_timeout_s: float) -> None:
        """Add messages of one queue, reserved for this many seconds. Raises ProtocolError for columns that no broker
        sends."""
        self.line.note_received(columns.receipt.token)
        hand = hand_of(columns.receipt)
        messages, unreadable = delivered(columns)
        self.counts.received += len(messages) + len(unreadable)
        self.held.add(hand, messages, unreadable.keys(), now + visibility_timeout_s)
        for offset, error in unreadable.items():
            self.deliveries.refuse(hand, offset, HandlerFailure(str(error)))
        # Only redelivered messages can be known here, so the usual reply, of first deliveries, costs no look-up per
        # message.
        if columns.attempt or columns.losses:  # some were delivered before
            messages = [each for each in messages if not self.deliveries.is_known(hand, _offset(each))]
        if not messages:
            return
        if self.epochs.is_current(hand.queue_id, hand.epoch, now):
            self.take(Arrival(self.deliveries, hand, messages, max(columns.losses, default=0)))
            return
        # Of a broker that was paused beyond its lease; another one delivers this queue now, and these messages, too.
        for message in messages:
            self.deliveries.drop(hand, _offset(message))


def _offset(message: ReceivedMessage) -> int:
    assert message.offset is not None
    return message.offset
