"""Queues that a broker does not deliver until it hears that this consumer holds no message of them (hand-over).

Knows no connection; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from txmsg.client.receiving.shard import Shard
from txmsg.wire.v1.txmsg_pb2 import Receipt


class AwaitedQueues:
    """Those that one broker waits for, as it last said."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._epochs: dict[int, int] = {}

    def hear(self, awaited: Sequence[Receipt], now: float) -> None:
        """Notes what the broker asks. From now on, deliveries of these queues under lower epochs are refused."""
        self._epochs = {
            receipt.queue_id: receipt.epoch
            for receipt in awaited
            if self._shard.epochs.is_current(receipt.queue_id, receipt.epoch, now)
        }

    def forget_queues(self) -> None:
        """The broker did not answer: if it still waits, it asks again."""
        self._epochs = {}

    def watch(self, on_free: Callable[[int], None]) -> None:
        """Calls on_free with the id of each queue of the shard of which no message is held any more."""
        self._shard.queues.watch(on_free)

    def unwatch(self, on_free: Callable[[int], None]) -> None:
        """The end of `watch`. Idempotent."""
        self._shard.queues.unwatch(on_free)

    def includes(self, queue_id: int) -> bool:
        """Whether the broker waits for this queue."""
        return queue_id in self._epochs

    def free(self) -> list[Receipt]:
        """Those of which no message is held, whatever broker it came from."""
        return [
            Receipt(queue_id=queue_id, epoch=epoch)
            for queue_id, epoch in self._epochs.items()
            if not self._shard.queues.holds(queue_id)
        ]
