"""Ranges of offsets and messages in flight. Nothing waits: the clock is an argument."""

from __future__ import annotations

import random

from txmsg.broker.delivery.offsets import Expiry, InFlight, OffsetRanges, Visibility, runs

LARGE = 1 << 30


# ---- ranges


def test_ranges_merge_with_neighbours_and_overlaps() -> None:
    ranges = OffsetRanges([(5, 7), (1, 3)])
    ranges.add(3, 5)
    assert list(ranges) == [(1, 7)]
    ranges.add(9, 10)
    ranges.add(0, 20)
    assert list(ranges) == [(0, 20)]


def test_ranges_agree_with_a_set_of_numbers() -> None:
    rng = random.Random(20)
    for _ in range(200):
        ranges, plain = OffsetRanges(), set[int]()
        for _ in range(rng.randrange(1, 40)):
            start = rng.randrange(60)
            end = start + rng.randrange(1, 8)
            ranges.add(start, end)
            plain |= set(range(start, end))
            assert {offset for each in ranges for offset in range(*each)} == plain
            assert list(ranges) == list(runs(plain))
            assert ranges.count() == len(plain)
            assert all((offset in ranges) == (offset in plain) for offset in range(70))


def test_unsorted_offsets_form_runs() -> None:
    assert list(runs([5, 3, 4, 9, 1])) == [(1, 2), (3, 6), (9, 10)]
    assert list(runs([])) == []


# ---- in flight


def test_a_key_is_returned_once_and_only_with_its_token() -> None:
    out: InFlight[int] = InFlight()
    out.give([1, 2], Visibility(token=8, deadline=10))
    assert out.give_back([1], token=7) == ([], [1])
    assert out.give_back([1, 1, 5], token=8) == ([1], [1, 5])
    assert out.give_back([1], token=8) == ([], [1])
    assert 2 in out
    assert len(out) == 1


def test_each_batch_expires_at_its_deadline() -> None:
    out: InFlight[int] = InFlight()
    out.give([1, 2], Visibility(token=1, deadline=10))
    out.give([3], Visibility(token=2, deadline=5))
    assert out.expire(4.9) == []
    assert out.expire(5) == [(2, [3], Expiry.COUNTED)]
    out.give_back([1], token=1)
    assert out.expire(100) == [(1, [2], Expiry.COUNTED)]
    assert out.give_back([2], token=1) == ([], [2])


def test_a_redelivered_key_does_not_expire_at_its_former_deadline() -> None:
    out: InFlight[int] = InFlight()
    out.give([1], Visibility(token=1, deadline=10))
    out.give_back([1], token=1)
    out.give([1], Visibility(token=2, deadline=20))
    assert out.expire(15) == []
    assert out.expire(20) == [(2, [1], Expiry.COUNTED)]


def test_finished_batches_are_removed_before_their_deadline() -> None:
    out: InFlight[int] = InFlight()
    for offset in range(10_000):
        out.give([offset], Visibility(token=offset, deadline=1e9))
        out.give_back([offset], token=offset)
    assert len(out._heap) < 200


def test_only_named_keys_of_a_batch_are_renewed() -> None:
    out: InFlight[int] = InFlight()
    out.give([1, 2, 3], Visibility(token=1, deadline=10))
    assert out.renew([1, 3, 3, 9], token=1, deadline=15) == [9]
    assert out.renew([1], token=2, deadline=99) == [1], "another delivery of it"
    assert out.expire(10) == [(1, [2], Expiry.COUNTED)]
    assert out.give_back([1], token=1) == ([1], [])
    assert out.expire(15) == [(1, [3], Expiry.COUNTED)]
    assert len(out) == 0


def test_a_renewal_extends_a_deadline_up_to_its_limit_and_never_shortens_it() -> None:
    out: InFlight[int] = InFlight()
    out.give([1], Visibility(token=1, deadline=10, deadline_max=25))
    for now in range(1, 25):
        assert out.renew([1], token=1, deadline=now + 10) == []
        assert out.expire(now) == []
    assert out.expire(25) == [(1, [1], Expiry.COUNTED)]
    out.give([1], Visibility(token=2, deadline=50))
    out.renew([1], token=2, deadline=40)
    assert out.expire(45) == []


def test_an_exact_deadline_can_move_earlier_or_later() -> None:
    out: InFlight[int] = InFlight()
    out.give([1, 2, 3], Visibility(token=1, deadline=10, deadline_max=25))
    assert out.renew([1, 9], token=1, deadline=5, is_exact=True) == [9]
    assert out.renew([2], token=1, deadline=99, is_exact=True) == []
    assert out.expire(4.9) == []
    assert out.expire(5) == [(1, [1], Expiry.EXACT)]
    assert out.expire(10) == [(1, [3], Expiry.COUNTED)]
    assert out.expire(25) == [(1, [2], Expiry.EXACT)]
    assert out.renew([1], token=1, deadline=30, is_exact=True) == [1], "too late"
    out.give([4], Visibility(token=2, deadline=40, expiry=Expiry.EXACT))
    out.renew([4], token=2, deadline=30)
    assert out.expire(39) == [], "only an exact deadline is brought forward"
    assert out.expire(40) == [(2, [4], Expiry.EXACT)]


def test_many_renewals_do_not_grow_memory() -> None:
    out: InFlight[int] = InFlight()
    out.give([1], Visibility(token=1, deadline=1))
    for now in range(1, 10_000):
        out.renew([1], token=1, deadline=now + 1)
    assert len(out._heap) < 200
