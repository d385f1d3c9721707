"""Leases of a broker: deliverable queues, deadlines, and preferences for new messages."""

from __future__ import annotations

import pytest

from txmsg.broker.cluster import Leases, OwnQueues
from txmsg.broker.store.leases import LeaseRow
from txmsg.broker.store.topics import StoredTopic
from txmsg.errors import BrokerUnavailable
from txmsg.message import QueueId


def leases_at(now: list[float]) -> Leases:
    return Leases("b", 5.0, lambda: now[0])


def test_leases_are_valid_until_the_deadline_of_the_last_heartbeat() -> None:
    now = [100.0]
    leases = leases_at(now)
    with pytest.raises(BrokerUnavailable, match="has not started yet"):
        leases.require()
    leases.renew(asked_at=99.0)
    now[0] = 103.9
    leases.require()
    now[0] = 104.0
    with pytest.raises(BrokerUnavailable, match="expired"):
        leases.require()
    assert leases.is_member
    leases.renew(asked_at=104.0)
    leases.require()
    leases.lose("why")
    with pytest.raises(BrokerUnavailable, match="why"):
        leases.require()


def test_a_queue_under_another_epoch_is_both_lost_and_gained() -> None:
    leases = leases_at([0.0])
    assert leases.set([LeaseRow(QueueId(1), 7, None), LeaseRow(QueueId(2), 7, None)]) == ({1, 2}, set(), {})
    assert leases.set([LeaseRow(QueueId(1), 9, None), LeaseRow(QueueId(3), 9, "other")]) == ({1, 3}, {1, 2}, {3: 9})
    assert leases.epochs() == {1: 9, 3: 9}


def topic_of(*queue_ids: int, write_queues: int) -> StoredTopic:
    return StoredTopic("t", tuple(map(QueueId, queue_ids)), write_queues, ordered_queues=write_queues, version=1)


def test_messages_prefer_writable_queues_delivered_by_this_broker() -> None:
    leases = leases_at([0.0])
    own = OwnQueues(leases)
    topic = topic_of(1, 2, 3, 4, write_queues=3)
    assert own(topic) == ()
    leases.set([LeaseRow(QueueId(2), 7, None), LeaseRow(QueueId(4), 7, None), LeaseRow(QueueId(3), 7, None)])
    assert own(topic) == (2, 3)
    leases.give_up([QueueId(2)])
    assert own(topic) == (3,)
    assert own(topic_of(1, 2, 3, 4, 5, write_queues=1)) == ()
    leases.lose("why")
    assert own(topic) == ()
