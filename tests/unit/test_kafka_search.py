"""The search for a queue offset in a partition."""

from __future__ import annotations

from itertools import accumulate

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message
from hypothesis import given
from hypothesis import strategies as st

from txmsg.metaq.kafka.positions import RecordSearch


def record(at: int, offset: int) -> Message:
    return Message(topic="t", partition=0, offset=at, headers=[("txmsg-place", b"t/0/%d" % offset)])


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), max_size=60), st.integers(0, 50), st.integers(0, 250))
def test_the_first_record_at_or_after_an_offset_is_found(steps: list[tuple[int, int]], begin: int, wanted: int) -> None:
    """Between records are markers; between queue offsets are gaps that the log has recorded."""
    places = list(accumulate((step for step, _ in steps), initial=3))
    offsets = list(accumulate((step for _, step in steps), initial=begin))
    high = places[-1] + 2
    search = RecordSearch(wanted, 3, high, 3 + max(0, min(wanted - begin, high - 4)))
    looks = 0
    while not search.is_done:
        guess = search.guess
        assert 0 <= guess < high
        search.saw(next((record(*pair) for pair in zip(places, offsets, strict=True) if pair[0] >= guess), None))
        looks += 1
    expected = next((at for at, offset in zip(places, offsets, strict=True) if offset >= wanted), None)
    assert (None if search.best is None else search.best.offset()) == expected
    assert looks <= 8 + high.bit_length() + 2


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), max_size=60), st.integers(0, 60))
def test_the_first_record_at_or_after_a_time_is_found(steps: list[tuple[int, int]], wanted: int) -> None:
    """Several records have the same time, and the search begins at a marker long before."""
    places = list(accumulate((step for step, _ in steps), initial=3))
    times = list(accumulate((step for _, step in steps), initial=10))
    search = RecordSearch(wanted, 0, places[-1] + 2, 0, by_time=True)
    looks = 0
    while not search.is_done:
        guess = search.guess
        found = next((each for each in zip(places, times, strict=True) if each[0] >= guess), None)
        search.saw(found and Message(offset=found[0], timestamp=(TIMESTAMP_CREATE_TIME, found[1])))
        looks += 1
    expected = next((at for at, time in zip(places, times, strict=True) if time >= wanted), None)
    assert (None if search.best is None else search.best.offset()) == expected
    assert looks <= (places[-1] + 2).bit_length() + 2


def test_a_distant_offset_is_found_in_few_reads() -> None:
    """The partition has a hundred million messages, with a marker after each thousand."""
    wanted, per = 87_654_321, 1000

    def first_from(at: int) -> Message:
        block, within = divmod(at, per + 1)
        return record(at, block * per + within) if within < per else record(at + 1, (block + 1) * per)

    search = RecordSearch(wanted, 0, 100_100_000, wanted)
    looks = 0
    while not search.is_done:
        search.saw(first_from(search.guess))
        looks += 1
    assert search.best is not None
    assert search.best.offset() == wanted + wanted // per
    assert looks <= 4
