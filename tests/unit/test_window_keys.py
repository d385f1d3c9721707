"""Ordering keys in the in-flight window alone. Nothing waits."""

from __future__ import annotations

from tests.unit.test_window import LARGE, refuse, taken
from txmsg.broker.delivery.offsets import Visibility
from txmsg.broker.delivery.window import (
    BEHIND,
    ROW_SIZE_BYTES,
    DeliveryFailure,
    InFlightWindow,
    QueueFetch,
    WindowMemory,
)
from txmsg.broker.store.rows import StoredRow
from txmsg.message import Offset
from txmsg.wire.tags import parse_tags


def keyed(start: int, *keys: str | None, tag: str | None = None) -> list[StoredRow]:
    """Return messages from offset `start`, one for each key."""
    return [
        StoredRow(Offset(start + n), bytes(16), 0, None, tag, None, b"body", 0, 0, key) for n, key in enumerate(keys)
    ]


def test_only_one_message_of_a_key_is_delivered_and_other_keys_continue() -> None:
    window = InFlightWindow(0)
    window.put_rows(keyed(0, "a", "a", None, "b", "a"))
    assert taken(window, 10) == [0, 2, 3]
    assert taken(window, 10, token=2) == []
    assert window.ack(1, [0, 3]) == []
    assert taken(window, 10, token=3) == [1]
    window.ack(3, [1])
    assert taken(window, 10, token=4) == [4]


def test_a_failing_message_turns_the_rest_of_its_key_into_retries() -> None:
    window = InFlightWindow(0)
    window.put_rows(keyed(0, "a", "b", "a"))
    taken(window, 10)
    refuse(window, DeliveryFailure("boom"), 0)
    assert window.failing() == {0: DeliveryFailure("boom"), 2: BEHIND}
    window.put_rows(keyed(3, "a", "b"))
    assert taken(window, 10, token=2) == []
    window.ack(1, [1])
    assert taken(window, 10, token=3) == [4]
    assert window.keys_of(window.failing()) == {"a"}
    window.stored(window.failing())
    assert window.outstanding_count == 1
    assert window.progress()[:2] == (4, ())


def test_a_key_is_unblocked_when_its_retries_are_done() -> None:
    window = InFlightWindow(0, blocked_keys=["a"])
    window.put_rows(keyed(0, "a", "b"))
    assert taken(window, 10) == [1]
    assert window.failing() == {0: BEHIND}
    window.unblock(["a"])
    assert window.blocked_keys() == ["a"], "one is on its way to the table"
    window.stored([0])
    window.unblock(["a", "unknown"])
    window.put_rows(keyed(2, "a"))
    assert taken(window, 10, token=2) == [2]


def test_a_requested_retry_waits_for_the_delivered_message_of_its_key() -> None:
    window = InFlightWindow(5)
    window.put_rows(keyed(5, "a", "a"))
    taken(window, 10)
    assert not window.block("a")
    assert window.failing() == {}, "in the table it would be before the one that is out"
    window.ack(1, [5])
    assert window.failing() == {6: BEHIND}
    assert window.block("a")
    assert window.block("another")
    window = InFlightWindow(5)
    window.put_rows(keyed(5, "a", "a"))
    assert not window.block("a")
    assert run(window, 9) == [5], "the retry comes before 6"


def run(window: InFlightWindow, count: int, *, token: int = 1, wanted: str = "*") -> list[int]:
    """Take messages, several of a key at once."""
    mine = parse_tags(wanted)
    rows = window.take_rows(
        QueueFetch(count, LARGE, wanted=mine, wanted_by_any=parse_tags("*"), in_runs=True),
        Visibility(token=token, deadline=30.0),
    )
    return [row.offset for row in rows]


def test_a_run_of_a_key_goes_to_one_consumer_until_all_its_messages_are_settled() -> None:
    window = InFlightWindow(0)
    window.put_rows(keyed(0, "a", "b", "a", None, "a", "b", "a"))
    assert run(window, 6) == [0, 1, 2, 3, 4, 6]
    assert run(window, 6, token=2) == []
    assert window.ack(1, [2, 6, 0, 3]) == []
    assert run(window, 6, token=3) == []
    window.ack(1, [1])
    assert run(window, 6, token=4) == [5]
    window.put_rows(keyed(7, "a", "a"))
    window.ack(1, [4])
    assert run(window, 6, token=5) == [7, 8]


def test_a_run_ends_at_the_limit_and_before_messages_for_another_member() -> None:
    window = InFlightWindow(0)
    window.put_rows([*keyed(0, "a", "a", tag="x"), *keyed(2, "a", tag="y"), *keyed(3, "a", tag="x")])
    assert run(window, 9, wanted="x") == [0, 1]
    window.ack(1, [0, 1])
    assert run(window, 9, token=2, wanted="x") == []
    assert run(window, 9, token=3) == [2, 3]
    window.put_rows(keyed(4, "a", "a", "a"))
    window.ack(3, [2, 3])
    assert [
        row.offset for row in window.take_rows(QueueFetch(9, 11, in_runs=True), Visibility(token=4, deadline=30.0))
    ] == [
        4,
        5,
    ]


def test_messages_without_a_subscriber_are_acked_within_a_run() -> None:
    window = InFlightWindow(0)
    window.put_rows([*keyed(0, "a", tag="x"), *keyed(1, "a", tag="y"), *keyed(2, "a", tag="x")])
    mine = parse_tags("x")
    taken = window.take_rows(
        QueueFetch(9, LARGE, wanted=mine, wanted_by_any=mine, in_runs=True), Visibility(token=1, deadline=30.0)
    )
    assert [row.offset for row in taken] == [0, 2]
    window.ack(1, [0])
    assert window.progress().next_offset == 2


def test_a_failure_in_a_run_is_written_after_earlier_messages_are_settled() -> None:
    window = InFlightWindow(0)
    window.put_rows(keyed(0, "a", "a", "a", "a"))
    assert run(window, 3) == [0, 1, 2]
    refuse(window, DeliveryFailure("boom"), 1)
    assert window.failing() == {}
    assert window.unsettled_count == 3
    window.ack(1, [0])
    assert window.failing() == {1: DeliveryFailure("boom")}
    window.stored([1])
    assert not window.block("a"), "2 is out"
    assert window.failing() == {}, "nor does 3 overtake 2 in the table"
    window.ack(1, [2])
    assert window.failing() == {3: BEHIND}
    assert window.block("a")


def test_an_uncounted_return_is_not_overtaken_by_later_failures_of_its_run() -> None:
    window = InFlightWindow(0)
    window.put_rows(keyed(0, "a", "a", "a", "a"))
    assert run(window, 3) == [0, 1, 2]
    refuse(window, DeliveryFailure("boom"), 1)
    window.unread(window.take_back(1, [0])[0])
    refuse(window, DeliveryFailure("boom"), 2)
    assert window.failing() == {}
    window.rewind()
    assert window.position == 0
    window.put_rows(keyed(0, "a", "a", "a", "a"))
    assert run(window, 9, token=2) == [0, 1, 2, 3]


def test_messages_with_unsubscribed_tags_do_not_block_their_key() -> None:
    window = InFlightWindow(0)
    window.put_rows([*keyed(0, "a", "a", tag="x"), *keyed(2, "a", tag="y")])
    mine = parse_tags("y")
    assert [
        row[0]
        for row in window.take_rows(
            QueueFetch(5, LARGE, wanted=mine, wanted_by_any=mine), Visibility(token=1, deadline=9)
        )
    ] == [2]
    assert window.progress().next_offset == 2


def test_messages_waiting_behind_a_key_count_as_room_and_memory() -> None:
    memory = WindowMemory(10 * (ROW_SIZE_BYTES + 4))
    window = InFlightWindow(0, count_max=10, size_bytes_max=40, memory=memory)
    window.put_rows(keyed(0, *["a"] * 10))
    assert (window.room_count(), window.room_bytes()) == (0, 0)
    assert memory.is_full
    taken(window, 10)
    assert not memory.is_full
    refuse(window, DeliveryFailure("boom"), 0)
    assert memory.size_bytes == 0
    assert window.room_bytes() == 40


def test_a_closed_window_uses_no_memory() -> None:
    memory = WindowMemory()
    window = InFlightWindow(0, memory=memory)
    window.put_rows(keyed(0, "a", "a", None))
    assert memory.size_bytes == 3 * (ROW_SIZE_BYTES + 4)
    window.close()
    window.put_rows(keyed(3, None))
    assert memory.size_bytes == 0


def test_messages_failed_during_a_pause_are_read_again_before_others_of_their_key() -> None:
    window = InFlightWindow(0)
    window.put_rows(keyed(0, "a", None, "a", None, None))
    assert taken(window, 4) == [0, 1, 3, 4]
    window.ack(1, [3])
    window.unread(window.take_back(1, [0, 1])[0])
    assert (window.has_unread, window.failing()) == (True, {})
    assert taken(window, 9, token=2) == [], "its key waits, too"
    window.rewind()
    assert window.position == 0
    window.put_rows(keyed(0, "a", None, "a", None, None))
    assert taken(window, 9, token=3) == [0, 1], "4 is still out, 3 is done"
    assert window.ack(1, [4]) == []
    window.ack(3, [0, 1])
    assert taken(window, 9, token=4) == [2]
    window.ack(4, [2])
    assert window.progress()[:2] == (5, ())


def test_messages_waiting_before_the_first_unread_one_are_read_again() -> None:
    window = InFlightWindow(0)
    window.put_rows(keyed(0, "a", "a", "b", None))
    assert taken(window, 2) == [0, 2]
    window.unread(window.take_back(1, [2])[0])
    window.rewind()
    assert window.position == 1, "behind its key"
    window.put_rows(keyed(1, "a", "b", None))
    assert taken(window, 9, token=2) == [2, 3]
    window.ack(1, [0])
    assert taken(window, 9, token=3) == [1]
    window = InFlightWindow(0)
    window.put_rows(keyed(0, None, None, tag="b"))
    window.put_rows(keyed(2, None, tag="a"))
    window.take_rows(
        QueueFetch(1, LARGE, wanted=parse_tags("a"), wanted_by_any=parse_tags("a || b")),
        Visibility(token=1, deadline=9),
    )
    window.unread(window.take_back(1, [2])[0])
    window.rewind()
    assert window.position == 0, "ready for another member"


def test_a_message_returned_during_a_reread_is_not_lost() -> None:
    window = InFlightWindow(0)
    window.put_rows(keyed(0, "a", "b", "b"))
    taken(window, 9)
    window.unread(window.take_back(1, [0])[0])
    window.rewind()
    window.unread(window.take_back(1, [1])[0])
    assert not window.has_unread, "it is read anyway"
    window.put_rows(keyed(0, "a", "b", "b"))
    assert taken(window, 9, token=2) == [0, 1]


def test_rows_acknowledged_during_their_read_are_left_out() -> None:
    window = InFlightWindow(0)
    window.put_rows(keyed(0, None, None, None))
    taken(window, 9)
    window.unread(window.take_back(1, [0])[0])
    window.rewind()
    window.put_rows(keyed(0, None))
    window.ack(1, [1])
    assert window.position == 2
    window.put_rows(keyed(1, None, None))
    assert (window.position, taken(window, 9, token=2)) == (3, [0])
