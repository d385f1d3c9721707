"""The in-flight window. Nothing waits: the clock is an argument."""

from __future__ import annotations

import random

import pytest

from txmsg.broker.delivery.offsets import Visibility
from txmsg.broker.delivery.window import DeliveryFailure, InFlightWindow, QueueFetch
from txmsg.broker.store.failures import EXPIRED
from txmsg.broker.store.rows import StoredRow
from txmsg.message import Offset
from txmsg.wire.tags import ALL_TAGS, parse_tags

LARGE = 1 << 30


def row(offset: int, *, tag: str | None = None, body: bytes = b"body") -> StoredRow:
    return StoredRow(Offset(offset), bytes(16), 0, None, tag, None, body, 0, 0, None)


def rows(start: int, end: int) -> list[StoredRow]:
    return [row(offset) for offset in range(start, end)]


def ack(window: InFlightWindow, *offsets: int, token: int = 1) -> list[int]:
    """Acknowledge offsets and return those that came too late."""
    return window.ack(token, offsets)


def refuse(window: InFlightWindow, failure: DeliveryFailure, *offsets: int, token: int = 1) -> list[int]:
    """Refuse offsets and return those that came too late."""
    done, late = window.take_back(token, offsets)
    window.fail(done, failure)
    return late


def expire(window: InFlightWindow, now: float) -> int:
    """Expire messages not acknowledged in time and return their number."""
    late = window.expire(now)
    for _, offsets, _ in late:
        window.fail(offsets, DeliveryFailure(EXPIRED))
    return sum(len(offsets) for _, offsets, _ in late)


def taken(window: InFlightWindow, count: int, *, token: int = 1, deadline: float = 30.0) -> list[int]:
    return [each[0] for each in window.take_rows(QueueFetch(count, LARGE), Visibility(token=token, deadline=deadline))]


def test_messages_are_delivered_in_order_and_once() -> None:
    window = InFlightWindow(0)
    window.put_rows(rows(0, 5))
    assert taken(window, 3) == [0, 1, 2]
    assert taken(window, 3, token=2) == [3, 4]
    assert taken(window, 3, token=3) == []
    assert window.outstanding_count == 5


def test_the_cursor_advances_over_contiguous_acknowledgements() -> None:
    window = InFlightWindow(0)
    window.put_rows(rows(0, 6))
    taken(window, 6)
    assert ack(window, 1, 2, 5) == []
    assert window.progress()[:2] == (0, ((1, 3), (5, 6)))
    ack(window, 0)
    assert window.progress()[:2] == (3, ((5, 6),))
    ack(window, 4, 3)
    assert window.progress()[:2] == (6, ())
    assert window.outstanding_count == 0


def test_an_ack_with_another_token_is_late() -> None:
    window = InFlightWindow(0)
    window.put_rows(rows(0, 2))
    taken(window, 2, token=4)
    assert ack(window, 0, token=3) == [0]
    assert ack(window, 0, token=4) == []
    assert ack(window, 0, token=4) == [0]


def test_an_offset_named_twice_in_one_ack_is_done_and_late() -> None:
    window = InFlightWindow(0)
    window.put_rows(rows(0, 2))
    taken(window, 2)
    assert ack(window, 0, 0) == [0]
    assert refuse(window, DeliveryFailure("no"), 1, 1) == [1]
    assert window.progress().next_offset == 1
    assert window.failing() == {1: DeliveryFailure("no")}


def test_a_refused_message_is_not_acked_before_its_retry_is_stored() -> None:
    window = InFlightWindow(0)
    window.put_rows(rows(0, 2))
    taken(window, 2)
    ack(window, 1)
    assert refuse(window, DeliveryFailure("boom", 2.0), 0) == []
    assert window.progress()[:2] == (0, ((1, 2),))
    assert window.failing() == {0: DeliveryFailure("boom", 2.0)}
    assert ack(window, 0) == [0]
    window.stored([0])
    assert window.progress()[:2] == (2, ())
    window.stored([0])
    assert not window.failing()


def test_a_message_not_acked_in_time_fails_and_its_receipt_is_void() -> None:
    window = InFlightWindow(0)
    window.put_rows(rows(0, 3))
    taken(window, 2, deadline=30)
    assert expire(window, 29.9) == 0
    assert expire(window, 30.0) == 2
    assert window.failing() == {0: DeliveryFailure(EXPIRED), 1: DeliveryFailure(EXPIRED)}
    assert ack(window, 0) == [0]
    assert refuse(window, DeliveryFailure("late"), 1) == [1]
    assert window.progress().next_offset == 0
    window.stored(window.failing())
    assert window.progress().next_offset == 2


def test_a_restart_skips_acknowledged_messages() -> None:
    window = InFlightWindow(10, [(12, 14), (15, 16)])
    assert window.position == 10
    window.put_rows(rows(10, 13))
    assert window.position == 14, "the rest of the acked range is not even read"
    window.put_rows(rows(14, 18))
    assert taken(window, 10) == [10, 11, 14, 16, 17]
    ack(window, 10, 11)
    assert window.progress()[:2] == (14, ((15, 16),))


def test_a_restart_advances_the_cursor_over_adjacent_ranges() -> None:
    assert InFlightWindow(3, [(3, 5), (5, 6), (8, 9)]).progress()[:2] == (6, ((8, 9),))


def test_settled_messages_missing_from_the_cursor_are_still_written() -> None:
    assert not InFlightWindow(3, [(5, 6)], settled=[2, 5]).is_dirty, "the cursor says so already"
    window = InFlightWindow(3, [(5, 6)], settled=[3, 7])
    assert window.is_dirty
    assert window.progress()[:2] == (4, ((5, 6), (7, 8)))
    window.written(window.progress())
    assert not window.is_dirty


def test_put_accepts_only_the_next_offset() -> None:
    window = InFlightWindow(0)
    with pytest.raises(AssertionError, match="dense"):
        window.put_rows(rows(1, 3))
    with pytest.raises(AssertionError, match="dense"):
        window.put_rows([row(0), row(2)])


def test_room_is_bounded_by_messages_not_yet_acked() -> None:
    window = InFlightWindow(0, count_max=10)
    window.put_rows(rows(0, 10))
    assert window.room_count() == 0
    taken(window, 10)
    assert window.room_count() == 0
    ack(window, 9)
    assert window.room_count() == 1
    refuse(window, DeliveryFailure("boom"), 0)
    assert window.room_count() == 1
    window.stored([0])
    assert window.room_count() == 2


def test_one_slow_message_does_not_stop_the_queue() -> None:
    window = InFlightWindow(0, count_max=10)
    window.put_rows(rows(0, 1))
    assert taken(window, 1) == [0]
    for offset in range(1, 1000):
        assert window.room_count() == 9
        window.put_rows(rows(offset, offset + 1))
        taken(window, 1, token=offset + 1)
        ack(window, offset, token=offset + 1)
    assert window.progress()[:2] == (0, ((1, 1000),))


def test_room_is_bounded_by_ready_bytes() -> None:
    window = InFlightWindow(0, size_bytes_max=10)
    window.put_rows([row(0, body=b"x" * 8)])
    assert window.room_bytes() == 2
    window.put_rows([row(1, body=b"x" * 8)])
    assert window.room_bytes() == 0
    assert window.room_count() == 0
    taken(window, 1)
    assert window.room_bytes() == 2


def test_take_is_bounded_by_bytes_but_gives_at_least_one() -> None:
    window = InFlightWindow(0)
    window.put_rows([row(offset, body=b"x" * 10) for offset in range(5)])
    assert len(window.take_rows(QueueFetch(5, 25), Visibility(token=1, deadline=1))) == 2
    assert len(window.take_rows(QueueFetch(5, 3), Visibility(token=2, deadline=1))) == 1
    mine = parse_tags("*")
    assert len(window.take_rows(QueueFetch(5, 20, wanted=mine), Visibility(token=3, deadline=1))) == 2


def test_headers_count_as_bytes() -> None:
    window = InFlightWindow(0, size_bytes_max=20)
    heavy = row(0, body=b"x" * 10)._replace(headers=b"h" * 10)
    window.put_rows([heavy, heavy._replace(offset=Offset(1))])
    assert window.room_count() == 0
    assert len(window.take_rows(QueueFetch(5, 39), Visibility(token=1, deadline=1))) == 1
    assert len(window.take_rows(QueueFetch(5, 40), Visibility(token=2, deadline=1))) == 1
    assert window.room_bytes() == 20


def test_a_message_too_large_for_the_rest_of_a_reply_stays() -> None:
    window = InFlightWindow(0)
    window.put_rows([row(0, tag="a", body=b"x" * 10)])
    for mine in (ALL_TAGS, parse_tags("a")):
        assert (
            window.take_rows(QueueFetch(5, 9, wanted=mine, at_least_one=False), Visibility(token=1, deadline=1)) == []
        )
    assert [
        each[0] for each in window.take_rows(QueueFetch(5, 10, at_least_one=False), Visibility(token=1, deadline=1))
    ] == [0]


def test_messages_without_a_subscriber_are_acked_at_once() -> None:
    window = InFlightWindow(0)
    window.put_rows([row(0, tag="b"), row(1, tag="a"), row(2), row(3, tag="a")])
    a = parse_tags("a")
    assert [
        each[0]
        for each in window.take_rows(QueueFetch(10, LARGE, wanted=a, wanted_by_any=a), Visibility(token=1, deadline=1))
    ] == [1, 3]
    assert window.progress()[:2] == (1, ((2, 3),))
    assert window.room_bytes() == InFlightWindow(0).room_bytes()


def test_messages_for_another_member_stay_in_order() -> None:
    window = InFlightWindow(0)
    window.put_rows([row(0, tag="b"), row(1, tag="a"), row(2, tag="b"), row(3, tag="c")])
    a, b, both = parse_tags("a"), parse_tags("b"), parse_tags("a || b")
    assert [
        each[0]
        for each in window.take_rows(
            QueueFetch(10, LARGE, wanted=a, wanted_by_any=both), Visibility(token=1, deadline=1)
        )
    ] == [1]
    assert window.ready_count == 2
    assert [
        each[0]
        for each in window.take_rows(
            QueueFetch(10, LARGE, wanted=b, wanted_by_any=both), Visibility(token=2, deadline=1)
        )
    ] == [0, 2]
    assert window.progress().acked == ((3, 4),)


def test_skipped_offsets_count_as_done() -> None:
    window = InFlightWindow(0)
    window.put_rows(rows(0, 2))
    taken(window, 2)
    window.skip_to(100)
    assert window.position == 100
    assert window.progress()[:2] == (0, ((2, 100),))
    ack(window, 0, 1)
    assert window.progress()[:2] == (100, ())


def test_a_window_is_dirty_until_its_latest_progress_is_written() -> None:
    window = InFlightWindow(0)
    window.put_rows(rows(0, 2))
    taken(window, 2)
    assert not window.is_dirty
    ack(window, 0)
    progress = window.progress()
    ack(window, 1)
    window.written(progress)
    assert window.is_dirty
    window.written(window.progress())
    window.written(progress)
    assert not window.is_dirty


def test_any_interleaving_acks_each_offset_once_and_not_too_early() -> None:
    rng = random.Random(5)
    for _ in range(60):
        window, end, token, now = InFlightWindow(0, count_max=25), 120, 0, 0.0
        out: dict[int, int] = {}
        done: set[int] = set()
        while window.progress().next_offset < end:
            step = rng.randrange(6)
            if step == 0 and (count := min(window.room_count(), end - window.position, 9)):
                window.put_rows(rows(window.position, window.position + count))
            elif step == 1:
                token += 1
                out.update(dict.fromkeys(taken(window, rng.randrange(1, 8), token=token, deadline=now + 5), token))
            elif step == 2 and out:
                offset = rng.choice(sorted(out))
                assert ack(window, offset, token=out.pop(offset)) == []
                done.add(offset)
            elif step == 3 and out:
                offset = rng.choice(sorted(out))
                assert refuse(window, DeliveryFailure("no"), offset, token=out.pop(offset)) == []
            elif step == 4:
                now += rng.random() * 2
                expire(window, now)
                out = {offset: token for offset, token in out.items() if offset not in window.failing()}
            else:
                done |= window.failing().keys()
                window.stored(window.failing())
            progress = window.progress()
            acked = set(range(progress.next_offset)) | {o for each in progress.acked for o in range(*each)}
            assert acked == done
            assert window.outstanding_count <= 25
            assert len(progress.acked) <= window.outstanding_count + 1


def test_a_window_accepts_all_tags_by_default() -> None:
    window = InFlightWindow(0)
    window.put_rows([row(0), row(1, tag="x")])
    assert len(window.take_rows(QueueFetch(2, LARGE, wanted=ALL_TAGS), Visibility(token=1, deadline=1))) == 2
