"""Retries in memory. Nothing waits: the clock is an argument."""

from __future__ import annotations

from tests.unit.test_window import LARGE, row
from txmsg.broker.delivery.offsets import Visibility
from txmsg.broker.delivery.retries import Retries, RetryFetch, RetryOutcome
from txmsg.broker.delivery.window import DeliveryFailure
from txmsg.broker.store.failures import EXPIRED
from txmsg.broker.store.rows import RetryKey, RetryRow
from txmsg.message import QueueId


def wants_all(_queue_id: int, _tag: str | None) -> bool:
    return True


def settle(box: Retries, offset: int, failure: DeliveryFailure | None, token: int = 4) -> list[int]:
    """Settle a retry of queue 7 and return the offsets that came too late."""
    done, late = box.take_back(QueueId(7), token, [offset])
    box.settled(done, failure)
    return late


def test_a_retry_is_known_until_its_outcome_is_written() -> None:
    box = Retries()
    box.put_retries([RetryRow(QueueId(7), 1, 0, row(3)), RetryRow(QueueId(7), 2, 0, row(5))])
    box.put_retries([RetryRow(QueueId(7), 1, 0, row(3))])
    assert box.ready_count == 2
    assert [
        retry.message.offset
        for retry in box.take_retries(RetryFetch(9, LARGE, wants_all), Visibility(token=4, deadline=10))
    ] == [3, 5]
    assert settle(box, 3, None) == []
    assert settle(box, 3, None) == [3]
    assert settle(box, 5, DeliveryFailure("again")) == []
    assert box.outcomes() == {(7, 3): RetryOutcome(2, None), (7, 5): RetryOutcome(3, DeliveryFailure("again"))}
    assert box.known() == [(7, 3), (7, 5)]
    box.written([RetryKey(QueueId(7), 3), RetryKey(QueueId(7), 5)])
    box.written([RetryKey(QueueId(7), 3)])
    assert box.known() == []
    assert not box.outcomes()


def test_a_retry_not_acked_in_time_fails_again() -> None:
    box = Retries()
    box.put_retries([RetryRow(QueueId(7), 1, 0, row(3))])
    box.take_retries(RetryFetch(9, LARGE, wants_all), Visibility(token=4, deadline=10))
    assert box.expire(9) == []
    ((token, late, _),) = box.expire(10)
    assert (token, late) == (4, [(7, 3)])
    box.settled(late, DeliveryFailure(EXPIRED))
    assert box.outcomes() == {(7, 3): RetryOutcome(2, DeliveryFailure(EXPIRED))}
    assert settle(box, 3, None) == [3]


def test_retries_are_bounded_by_count_and_bytes() -> None:
    box = Retries(count_max=3, size_bytes_max=10)
    box.put_retries(
        [RetryRow(QueueId(7), 1, 0, row(0, body=b"x" * 6)), RetryRow(QueueId(7), 1, 0, row(1, body=b"x" * 6))]
    )
    assert box.room_count() == 0
    assert len(box.take_retries(RetryFetch(9, 6, wants_all), Visibility(token=1, deadline=1))) == 1
    assert box.room_count() == 1
    assert box.room_bytes() == 4


def chain(*offsets: int, key: str = "k") -> list[RetryRow]:
    """Return retries of an ordering key, as read together: the first has failed, the others wait behind it."""
    return [
        RetryRow(QueueId(7), int(offset == offsets[0]), 0, row(offset)._replace(ordering_key=key)) for offset in offsets
    ]


def taken(box: Retries, token: int = 4) -> list[int]:
    return [
        each.message.offset
        for each in box.take_retries(RetryFetch(9, LARGE, wants_all), Visibility(token=token, deadline=10))
    ]


def test_retries_of_a_key_run_in_order_in_memory_and_are_written_together() -> None:
    box = Retries()
    box.put_retries([*chain(3, 5, 8), *chain(4, 6, key="other")])
    assert taken(box) == [3, 4]
    assert settle(box, 3, None) == []
    assert taken(box) == [5]
    assert settle(box, 5, None) == []
    assert box.outcomes() == {(7, 3): RetryOutcome(2, None, "k"), (7, 5): RetryOutcome(1, None, "k")}
    assert (box.goes_on(QueueId(7), "k"), taken(box)) == (True, [8])
    assert settle(box, 8, None) == []
    assert (box.goes_on(QueueId(7), "k"), box.is_busy(QueueId(7), "k")) == (False, True)
    box.written(box.outcomes())
    assert not box.is_busy(QueueId(7), "k")
    assert box.known() == [(7, 4), (7, 6)]


def test_messages_behind_a_failed_or_returned_retry_are_read_again() -> None:
    box = Retries()
    box.put_retries([*chain(3, 5, 8), *chain(4, 6, key="other")])
    taken(box)
    assert settle(box, 3, None) == []
    assert taken(box) == [5]
    assert settle(box, 5, DeliveryFailure("again")) == []
    box.leave(box.take_back(QueueId(7), 4, [4])[0])
    assert taken(box) == []
    assert box.known() == [(7, 3), (7, 5)]
    box.put_retries(chain(8, 9))
    assert box.known() == [(7, 3), (7, 5)], "the key is known until its outcomes are written"
    box.written(box.outcomes())
    assert (box.is_empty, box.room_behind()) == (True, Retries().room_behind())


def test_a_lost_queue_drops_messages_waiting_behind_its_retries() -> None:
    box = Retries()
    box.put_retries(chain(3, 5, 8))
    taken(box)
    settle(box, 3, None)
    box.forget_queues([QueueId(7)])
    assert (box.is_empty, box.ready_count, box.outcomes()) == (True, 0, {})
    assert box.room_behind() == Retries().room_behind()


def test_messages_waiting_behind_retries_use_at_most_half_of_the_room() -> None:
    box = Retries(count_max=6, size_bytes_max=20)
    assert box.room_behind() == (3, 10)
    box.put_retries(chain(0, 1, 2))
    assert (box.room_behind(), box.room_count(), box.room_bytes()) == ((1, 2), 3, 8)


def test_a_retry_unwanted_by_this_member_waits_for_another() -> None:
    box = Retries()
    box.put_retries([RetryRow(QueueId(7), 1, 0, row(0, tag="a")), RetryRow(QueueId(7), 1, 0, row(1, tag="b"))])
    got = box.take_retries(RetryFetch(9, LARGE, lambda _, tag: tag == "b"), Visibility(token=1, deadline=1))
    assert [retry.message.offset for retry in got] == [1]
    assert [
        retry.message.offset
        for retry in box.take_retries(RetryFetch(9, LARGE, wants_all), Visibility(token=2, deadline=1))
    ] == [0]
