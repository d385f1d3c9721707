"""The messages of one broker that a consumer has not settled, and until when each is reserved for it.

Knows no connection and no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from txmsg.client.receiving.queues_held import QueuesHeld
from txmsg.message import ReceivedMessage
from txmsg.wire.v1.txmsg_pb2 import Receipt

_OFFSET, _BODY = attrgetter("offset"), attrgetter("body")


class DeliveredBatch(NamedTuple):
    """Messages that were delivered together from one queue: their receipt without the offsets."""

    queue_id: int
    token: int
    epoch: int

    def receipt(self, offsets: Sequence[int]) -> Receipt:
        """Return the receipt of some of its messages."""
        return Receipt(queue_id=self.queue_id, token=self.token, epoch=self.epoch, offset=offsets)


def hand_of(receipt: Receipt) -> DeliveredBatch:
    """Return the delivered batch that a receipt belongs to."""
    return DeliveredBatch(receipt.queue_id, receipt.token, receipt.epoch)


@dataclass(slots=True)
class _UnsettledOfBatch:
    """The unsettled messages of one hand, and until when they are reserved unless that is extended."""

    sizes: dict[int, int]
    """Of bodies, in bytes, by offset: of all that is in memory."""
    until: float
    lost: set[int] = field(default_factory=set)
    """Offsets that the broker has taken back."""

    @property
    def ours(self) -> set[int]:
        """The offsets that are still reserved for this consumer."""
        return self.sizes.keys() - self.lost


class UnsettledMessages:
    """Messages received and not settled, by hand. count: of them. size_bytes: of their bodies."""

    def __init__(self, queues: QueuesHeld) -> None:
        self._queues = queues
        self.count = 0
        self.size_bytes = 0
        self._by_hand: dict[DeliveredBatch, _UnsettledOfBatch] = {}
        self.repeats: defaultdict[tuple[DeliveredBatch, int], list[DeliveredBatch]] = defaultdict(list)
        """Later deliveries of messages, by hand and offset of the one that is handled: they end together."""

    def add(
        self, hand: DeliveredBatch, messages: Sequence[ReceivedMessage], unreadable: Collection[int], until: float
    ) -> None:
        """Add delivered messages, and offsets whose message cannot be read."""
        self.count += len(messages) + len(unreadable)
        # What came before from one queue and under one token came in this reply: a part are retries.
        sizes = self._by_hand.setdefault(hand, _UnsettledOfBatch({}, until)).sizes
        if not sizes and (messages or unreadable):
            self._queues.add(hand.queue_id)
        sizes.update(dict.fromkeys(unreadable, 0))
        # Not from the columns: protobuf copies a body each time it is read.
        sizes.update(zip(map(_OFFSET, messages), map(len, map(_BODY, messages)), strict=True))
        self.size_bytes += sum(map(len, map(_BODY, messages)))

    def drop(self, hand: DeliveredBatch, offset: int) -> None:
        """Remove a message that is settled, or given up."""
        self.count -= 1
        found = self._by_hand.get(hand)
        if found is not None:
            self.size_bytes -= found.sizes.pop(offset, 0)
            if not found.sizes:
                del self._by_hand[hand]
                self._queues.drop(hand.queue_id)

    def holds(self, hand: DeliveredBatch, offset: int, now: float) -> bool:
        """Return True if this message is still reserved for this consumer."""
        found = self._by_hand.get(hand)
        return found is not None and offset in found.sizes and offset not in found.lost and now < found.until

    def is_repeat(self, hand: DeliveredBatch, offset: int) -> bool:
        """Return True if an earlier delivery holds this message already; this one is then added to its `repeats`."""
        for known, found in self._by_hand.items():
            if known.queue_id == hand.queue_id and known != hand and offset in found.sizes:
                self.repeats[known, offset].append(hand)
                return True
        return False

    def until_before(self, moment: float) -> list[DeliveredBatch]:
        """Return the batches whose reservation ends before this time."""
        return [hand for hand, found in self._by_hand.items() if found.until < moment]

    def receipts(self, hands: Iterable[DeliveredBatch]) -> list[Receipt]:
        """Return the receipts of the messages in these batches that are still reserved."""
        ours = [(hand, self._by_hand[hand].ours) for hand in hands if hand in self._by_hand]
        return [hand.receipt(sorted(offsets)) for hand, offsets in ours if offsets]

    def extend(self, hands: Iterable[DeliveredBatch], until: float) -> None:
        """Note that the broker has extended their reservation until this time."""
        for hand in hands:
            if hand in self._by_hand:
                self._by_hand[hand].until = until

    def lose(self, receipt: Receipt) -> int:
        """Note that the broker has taken messages back. Returns the number of those that were still held."""
        found = self._by_hand.get(hand_of(receipt))
        if found is None:
            return 0
        gone = found.ours.intersection(receipt.offset)
        # Kept in `sizes`: the handler still runs, and its message's memory counts until it ends.
        found.lost |= gone
        return len(gone)
