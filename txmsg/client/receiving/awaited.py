"""Queues that a broker does not deliver until it hears that this consumer holds no message of them (hand-over).

Knows no connection; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from txmsg.client.receiving.shard import Shard
from txmsg.wire.v1.txmsg_pb2 import Receipt


class AwaitedQueues:
    """Queues that one broker waits for, by its last reply."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._epochs: dict[int, int] = {}

    def hear(self, awaited: Sequence[Receipt], now: float) -> None:
        """Note the broker's request. From now on, deliveries of these queues under lower epochs are refused."""
        self._epochs = {
            receipt.queue_id: receipt.epoch
            for receipt in awaited
            if self._shard.epochs.is_current(receipt.queue_id, receipt.epoch, now)
        }

    def forget_queues(self) -> None:
        """Forget the queues, because the broker did not answer: if it still waits, it asks again."""
        self._epochs = {}

    def watch(self, on_free: Callable[[int], None]) -> None:
        """Call on_free with the id of each queue of the shard once no message of it is held."""
        self._shard.queues.watch(on_free)

    def unwatch(self, on_free: Callable[[int], None]) -> None:
        """End `watch`. Idempotent."""
        self._shard.queues.unwatch(on_free)

    def includes(self, queue_id: int) -> bool:
        """Return True if the broker waits for this queue."""
        return queue_id in self._epochs

    def free(self) -> list[Receipt]:
        """Return receipts of the queues of which no message is held, from any broker."""
        return [
            Receipt(queue_id=queue_id, epoch=epoch)
            for queue_id, epoch in self._epochs.items()
            if not self._shard.queues.holds(queue_id)
        ]
