"""Retries in memory. Nothing here waits: the clock is an argument."""

from __future__ import annotations

from tests.unit.test_window import LARGE, row
from txmsg.broker.delivery.retries import Outcome, Retries
from txmsg.broker.delivery.window import EXPIRED, Failure
from txmsg.broker.store.rows import RetryKey, RetryRow
from txmsg.message import QueueId


def wants_all(_queue_id: int, _tag: str | None) -> bool:
    return True


def settle(box: Retries, offset: int, failure: Failure | None, token: int = 4) -> list[int]:
    """Settles a retry of queue 7; the offsets that came too late."""
    done, late = box.take_back(QueueId(7), token, [offset])
    box.settled(done, failure)
    return late


def test_retry_is_known_until_its_outcome_is_written() -> None:
    box = Retries()
    box.put([RetryRow(QueueId(7), 1, 0, row(3)), RetryRow(QueueId(7), 2, 0, row(5))])
    box.put([RetryRow(QueueId(7), 1, 0, row(3))])
    assert box.ready_count == 2
    assert [retry.message.offset for retry in box.take(9, LARGE, token=4, deadline=10, wants=wants_all)] == [3, 5]
    assert settle(box, 3, None) == []
    assert settle(box, 3, None) == [3]
    assert settle(box, 5, Failure("again")) == []
    assert box.outcomes() == {(7, 3): Outcome(2, None), (7, 5): Outcome(3, Failure("again"))}
    assert box.known() == [(7, 3), (7, 5)]
    box.written([RetryKey(QueueId(7), 3), RetryKey(QueueId(7), 5)])
    box.written([RetryKey(QueueId(7), 3)])
    assert box.known() == []
    assert not box.outcomes()


def test_retry_not_acked_in_time_fails_again() -> None:
    box = Retries()
    box.put([RetryRow(QueueId(7), 1, 0, row(3))])
    box.take(9, LARGE, token=4, deadline=10, wants=wants_all)
    assert box.expire(9) == []
    ((token, late, _),) = box.expire(10)
    assert (token, late) == (4, [(7, 3)])
    box.settled(late, Failure(EXPIRED))
    assert box.outcomes() == {(7, 3): Outcome(2, Failure(EXPIRED))}
    assert settle(box, 3, None) == [3]


def test_retries_are_bounded_by_count_and_bytes() -> None:
    box = Retries(count_max=3, size_bytes_max=10)
    box.put([RetryRow(QueueId(7), 1, 0, row(0, body=b"x" * 6)), RetryRow(QueueId(7), 1, 0, row(1, body=b"x" * 6))])
    assert box.room_count() == 0
    assert len(box.take(9, 6, token=1, deadline=1, wants=wants_all)) == 1
    assert box.room_count() == 1
    assert box.room_bytes() == 4


def test_retry_that_this_member_does_not_want_waits_for_another() -> None:
    box = Retries()
    box.put([RetryRow(QueueId(7), 1, 0, row(0, tag="a")), RetryRow(QueueId(7), 1, 0, row(1, tag="b"))])
    got = box.take(9, LARGE, token=1, deadline=1, wants=lambda _, tag: tag == "b")
    assert [retry.message.offset for retry in got] == [1]
    assert [retry.message.offset for retry in box.take(9, LARGE, token=2, deadline=1, wants=wants_all)] == [0]
