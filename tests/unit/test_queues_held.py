"""Queues of which a consumer holds messages, over all its links to a Notify database."""

from __future__ import annotations

from txmsg.client.receiving.queues_held import QueuesHeld
from txmsg.client.receiving.unsettled import DeliveredBatch, UnsettledMessages


def test_a_queue_is_free_when_no_link_holds_its_messages() -> None:
    queues = QueuesHeld()
    free: list[int] = []
    queues.watch(free.append)
    dead, living = UnsettledMessages(queues), UnsettledMessages(queues)
    dead.add(DeliveredBatch(7, 1, 1), [], {0, 1}, 60.0)
    living.add(DeliveredBatch(7, 1, 2), [], {2}, 60.0)
    living.add(DeliveredBatch(8, 1, 2), [], {0}, 60.0)
    dead.drop(DeliveredBatch(7, 1, 1), 0)
    dead.drop(DeliveredBatch(7, 1, 1), 1)
    assert (queues.holds(7), free) == (True, [])
    living.drop(DeliveredBatch(7, 1, 2), 2)
    assert (queues.holds(7), queues.holds(8), free) == (False, True, [7])


def test_a_removed_watcher_is_not_notified() -> None:
    queues = QueuesHeld()
    free: list[int] = []
    queues.watch(free.append)
    queues.unwatch(free.append)
    queues.unwatch(free.append)
    queues.add(7)
    queues.drop(7)
    assert free == []
